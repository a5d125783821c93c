"""What a forward costs against its block size: measured, since every machine and precision has its own curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from multitoken.errors import OptionError
from multitoken.models.backbone import Backbone
from multitoken.models.block import Block, causal_block
from multitoken.models.cache import KVCache

PREFILL = 512


@dataclass(frozen=True, slots=True)
class CostPoint:
    """Cost of one block size.

    Attributes:
        size: slots per row.
        seconds: median time of a forward with the projection of every slot.
        fastest: the shortest of the repeats.
        context: tokens in the cache of each row.
        rows: rows per forward.
        dtype: of the model, as in ``float32``.
        repeats: forwards timed.
        runtime: of the model, as in ``packed``.
    """

    size: int
    seconds: float
    fastest: float
    context: int
    rows: int
    dtype: str
    repeats: int
    runtime: str = "eager"

    @property
    def label(self) -> str:
        """Names its curve."""
        return f"{self.dtype} {self.runtime}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure_cost(
    backbone: Backbone, sizes: Sequence[int], context: int, rows: int = 1, repeats: int = 5
) -> list[CostPoint]:
    """Time ``forward`` and ``project`` at each block size behind ``context`` cached tokens.

    Returns one point per size, in the order given. The sizes take turns, so that a change in the machine's speed
    meets all of them; a first round is not counted.

    Raises:
        OptionError: no sizes, a number below 1, or a context that the model has no positions for.
    """
    return measure_costs([backbone], sizes, context, rows, repeats)


def measure_costs(
    backbones: Sequence[Backbone], sizes: Sequence[int], context: int, rows: int = 1, repeats: int = 5
) -> list[CostPoint]:
    """`measure_cost` for several backbones (one model in several precisions), which take turns as the sizes do.

    Returns the points of the first backbone, then those of the second, and so on.
    """
    for backbone in backbones:
        _check(backbone, sizes, context, rows, repeats)
    benches = [_Bench(backbone, context, rows, max(sizes)) for backbone in backbones]
    times: dict[tuple[int, int], list[float]] = {(b, s): [] for b in range(len(benches)) for s in range(len(sizes))}
    for turn in range(repeats + 1):
        for b, bench in enumerate(benches):
            for s, size in enumerate(sizes):
                elapsed = bench.run(size)
                if turn:
                    times[b, s].append(elapsed)
    return [
        CostPoint(
            size=sizes[s],
            seconds=median(found),
            fastest=min(found),
            context=context,
            rows=rows,
            dtype=backbones[b].dtype_name,
            repeats=repeats,
            runtime=backbones[b].runtime,
        )
        for (b, s), found in times.items()
    ]


class _Bench:
    """A backbone with a filled cache. Nothing is ever committed, so each forward overwrites the one before."""

    def __init__(self, backbone: Backbone, context: int, rows: int, largest: int):
        self._backbone = backbone
        generator = torch.Generator().manual_seed(0)
        size = context + largest
        self._tokens = torch.randint(0, backbone.vocab_size, (rows, size), generator=generator).to(backbone.device)
        self._context = context
        self._cache = self._filled(rows)

    def run(self, size: int) -> float:
        """Seconds of one forward of ``size`` slots, all of them projected."""
        block = self._block(size)
        self._wait()
        started = perf_counter()
        self._backbone.project(self._backbone.forward(block, self._cache))
        self._wait()
        return perf_counter() - started

    def _filled(self, rows: int) -> KVCache:
        cache = self._backbone.new_cache(rows)
        for _ in range(rows):
            cache.add_row()
        for start in range(0, self._context, PREFILL):
            part = self._tokens[:, start : min(start + PREFILL, self._context)]
            begin = torch.full((rows,), start, dtype=torch.int64, device=part.device)
            self._backbone.forward(causal_block(part, begin), cache)
            for row in range(rows):
                cache.commit(row, part.shape[1], [])
        return cache

    def _block(self, size: int) -> Block:
        """A root and ``size - 1`` candidates for the token behind it."""
        tokens = self._tokens[:, self._context : self._context + size]
        visible = torch.eye(size, dtype=torch.bool, device=tokens.device)
        visible[:, 0] = True
        positions = torch.full_like(tokens, self._context + 1)
        positions[:, 0] = self._context
        return Block(tokens, positions, _per_row(visible, len(tokens)), causal=size == 1)

    def _wait(self) -> None:
        if self._backbone.device.type == "cuda":
            torch.cuda.synchronize(self._backbone.device)


def _per_row(visible: Tensor, rows: int) -> Tensor:
    return visible.expand(rows, *visible.shape)


def _check(backbone: Backbone, sizes: Sequence[int], context: int, rows: int, repeats: int) -> None:
    if not sizes or min(sizes) < 1:
        raise OptionError("sizes", list(sizes), "give block sizes of 1 or more")
    for name, value, least in (("context", context, 0), ("rows", rows, 1), ("repeats", repeats, 1)):
        if value < least:
            raise OptionError(name, value, f"use {least} or more")
    limit = backbone.max_positions
    if limit is not None and context + max(sizes) > limit:
        raise OptionError(
            "context", context, f"context and largest block must fit in the model's {limit} positions together"
        )
