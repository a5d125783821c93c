"""What heads and span predictor cost beside the model's forward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch

from multitoken.methods.heads.checkpoint import TrainedHeads
from multitoken.methods.heads.tree import chains, trees
from multitoken.models.backbone import Backbone
from multitoken.models.cost import measure_cost

LEAST = 0.01  # as the method's default


@dataclass(frozen=True, slots=True)
class HeadCost:
    """Median seconds at one batch size.

    Attributes:
        rows: sequences at once.
        forward: the model's, of one slot per row, with its projection.
        span: the span predictor.
        gate: the gate; None where the checkpoint has none.
        chain: all heads, one continuation per row.
        tree: all heads, a tree of ``block_size`` slots per row.
    """

    rows: int
    forward: float
    span: float
    gate: float | None
    chain: float
    tree: float

    def share(self, seconds: float) -> float:
        """Of a step with this forward."""
        return seconds / (self.forward + seconds)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def head_costs(
    backbone: Backbone, trained: TrainedHeads, rows: Sequence[int], context: int, block_size: int, repeats: int
) -> list[HeadCost]:
    """Time heads, predictor, gate and the forward beside them; see `measure_cost` for the errors.

    Args:
        trained: heads for ``backbone`` (see `ready`).
        rows: batch sizes.
        context: tokens in the cache of each row.
        block_size: slots of a tree.
        repeats: of each measurement; the median counts. One more at first is not counted.
    """
    return [_cost(backbone, trained, number, context, block_size, repeats) for number in rows]


@torch.inference_mode()
def _cost(
    backbone: Backbone, trained: TrainedHeads, rows: int, context: int, block_size: int, repeats: int
) -> HeadCost:
    forward = measure_cost(backbone, [1], context, rows, repeats)[0].seconds
    generator = torch.Generator().manual_seed(0)
    roots = torch.randint(0, backbone.vocab_size, (rows,), generator=generator).tolist()
    hidden = torch.randn(rows, backbone.width, generator=generator).to(backbone.device)
    depths = [trained.heads.shape.heads] * rows

    def timed(work: Callable[[], object]) -> float:
        seconds = []
        for _ in range(repeats + 1):
            started = perf_counter()
            work()
            if backbone.device.type == "cuda":
                torch.cuda.synchronize(backbone.device)
            seconds.append(perf_counter() - started)
        return median(seconds[1:])

    gate = trained.gate
    state = hidden.to(trained.span.linear.weight.dtype)
    return HeadCost(
        rows,
        forward,
        timed(lambda: trained.span(state).argmax(-1).tolist()),
        None if gate is None else timed(lambda: gate(state).sigmoid().tolist()),
        timed(lambda: chains(trained, hidden, roots, depths)),
        timed(lambda: trees(trained, hidden, roots, depths, block_size - 1, LEAST)),
    )
