"""Who takes part in a benchmark: this engine's methods, by one interface that peers share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import torch

from multitoken.bench.records import Trace
from multitoken.engine.engine import Engine
from multitoken.engine.method import Method
from multitoken.engine.row import Request, Row
from multitoken.engine.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt to answer: token ids, budget, and how tokens are chosen."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    temperature: float
    seed: int
    eos: frozenset[int]


@dataclass(frozen=True, slots=True)
class Entry:
    """A method as the user wrote it.

    Attributes:
        label: shown in results, unique.
        method: made once, serves the whole run.
        options: its options, defaults included.
    """

    label: str
    method: Method
    options: dict[str, Any] = field(default_factory=dict)


class Competitor(Protocol):
    """Answers prompts and tells how. ``peer``: not this project's engine."""

    label: str
    name: str
    options: dict[str, Any]
    lossless: bool
    peer: bool
    dtype: str

    def answer(self, tasks: Sequence[Task]) -> list[Trace]:
        """One trace per task, without text."""
        ...


class EngineCompetitor:
    """A method in this project's engine. Several share one engine, so that none pays for a cold cache."""

    peer = False

    def __init__(self, engine: Engine, entry: Entry):
        self._engine, self._method = engine, entry.method
        self.label, self.options = entry.label, entry.options
        self.name, self.lossless = entry.method.name, entry.method.lossless
        self.dtype = engine.backbone.dtype_name

    def answer(self, tasks: Sequence[Task]) -> list[Trace]:
        with PeakMemory(self._engine.backbone.device) as memory:
            rows, times = self._run(tasks)
        return [self._trace(row, share, memory.peak) for row, share in zip(rows, shares(rows, *times), strict=True)]

    def _run(self, tasks: Sequence[Task]) -> tuple[list[Row], tuple[float, float, float]]:
        """Rows when done, and wall-clock seconds (prefill, decode, end to end)."""
        engine, clock = self._engine, self._engine.clock
        started = perf_counter()
        rows = [engine.add(self._request(task)) for task in tasks]
        prefill = decode = 0.0
        mark = perf_counter()
        while engine.rows:
            steps = clock.steps
            engine.step()
            now = perf_counter()
            if clock.steps > steps:
                decode += now - mark
            else:
                prefill += now - mark
            mark = now
        return rows, (prefill, decode, perf_counter() - started)

    def _request(self, task: Task) -> Request:
        sampling = Sampling(temperature=task.temperature, seed=task.seed)
        return Request(task.prompt, self._method, sampling, task.max_new_tokens, eos=task.eos)

    def _trace(self, row: Row, share: tuple[float, float, float], memory: int | None) -> Trace:
        return Trace(
            tokens=row.output,
            spans=row.spans,
            drafted=row.drafted,
            accepted=row.accepted,
            blocks=row.blocks,
            prefill_seconds=share[0],
            decode_seconds=share[1],
            seconds=share[2],
            finish_reason=row.finish_reason or "",
            peak_memory=memory,
        )


def shares(rows: Sequence[Row], prefill: float, decode: float, total: float) -> list[tuple[float, float, float]]:
    """Each row's share of a batch's wall clock, so that sums over rows are the wall clock.

    Prefill by prompt tokens, decode by decoded tokens, the whole by output tokens.
    """
    prompts = [row.prompt_length for row in rows]
    decoded = [sum(row.spans[1:]) for row in rows]
    outputs = [row.generated for row in rows]
    return [
        (prefill * p / sum(prompts), decode * d / max(sum(decoded), 1), total * o / sum(outputs))
        for p, d, o in zip(prompts, decoded, outputs, strict=True)
    ]


class PeakMemory:
    """Largest memory in use while open: allocated on a CUDA device, or resident in this process (Linux).

    ``peak`` is in bytes, or None where the system cannot measure a part of a process's life.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self.peak: int | None = None

    def __enter__(self) -> PeakMemory:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            self._reset = self._reset_resident()
        return self

    def __exit__(self, *_: object) -> None:
        if self._device.type == "cuda":
            self.peak = torch.cuda.max_memory_allocated(self._device)
        elif self._reset:
            self.peak = self._resident_peak()

    @staticmethod
    def _reset_resident() -> bool:
        try:
            Path("/proc/self/clear_refs").write_text("5")  # sets VmHWM back to the present size
        except OSError:
            return False
        return True

    @staticmethod
    def _resident_peak() -> int | None:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return None
