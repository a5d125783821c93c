"""The one training loop: heads, span predictors, probes and adapters are objectives of it.

A step's items, random numbers and learning rate follow from the seed and the step's number alone, so a training that
was killed and taken up again ends with the same bits. A time budget is the exception: there the clock decides.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from multitoken.training import checkpoint
from multitoken.training.curve import Point, save_curve
from multitoken.training.processes import Processes

Report = Callable[[int, float | None, Mapping[str, float] | None], None]
SMOOTHING = 0.05  # of the loss beside the bar
SPARE = 1.5  # of the longest step and evaluation, kept free at the end of a time budget


class Objective(Protocol):
    """What is trained."""

    @property
    def module(self) -> nn.Module:
        """Its parameters that require gradients are trained; nothing else of it is saved."""
        ...

    @property
    def size(self) -> int:
        """Number of items to learn from."""
        ...

    @property
    def key(self) -> Mapping[str, Any]:
        """What a checkpoint must agree with to be taken up again (model, data, shape), as JSON values."""
        ...

    def loss(self, items: Sequence[int], step: int) -> Tensor:
        """Mean loss over ``items`` (each from 0 to size - 1). PyTorch's default generator is seeded by step."""
        ...

    def evaluate(self) -> dict[str, float]:
        """Figures on held-out text, ``loss`` among them. Must not draw random numbers that depend on earlier calls."""
        ...


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """How to train.

    Attributes:
        out: folder of checkpoints and curve.
        steps: optimizer steps.
        batch: items per forward and process.
        accumulate: forwards per step.
        learning_rate: its largest value, after ``warmup`` steps of linear rise.
        schedule: what follows: ``cosine`` (to zero at the end) or ``constant``.
        weight_decay: of matrices.
        clip: largest norm of the gradient (0: off).
        precision: ``bfloat16`` computes in mixed precision; weights and optimizer stay in float32.
        seed: of the order of items and of all draws.
        time_budget: seconds, over all runs, after which it ends with what it has; the schedule then follows the clock.
        checkpoint_every, evaluate_every: steps.
    """

    out: Path
    steps: int
    batch: int = 16
    accumulate: int = 1
    learning_rate: float = 1e-3
    warmup: int = 50
    schedule: Literal["cosine", "constant"] = "cosine"
    weight_decay: float = 0.0
    clip: float = 1.0
    precision: Literal["float32", "bfloat16"] = "float32"
    seed: int = 0
    time_budget: float | None = None
    checkpoint_every: int = 100
    evaluate_every: int = 200

    @property
    def key(self) -> dict[str, Any]:
        """What a resumed training must share. How often it saves or looks may change, and so may the clock's limit."""
        free = ("out", "time_budget", "checkpoint_every", "evaluate_every")
        return {name: value for name, value in asdict(self).items() if name not in free}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a training came to: steps done, seconds over all runs, the last figures on held-out text."""

    steps: int
    seconds: float
    held_out: dict[str, float]
    points: list[Point]


def train(
    objective: Objective, options: LoopOptions, report: Report | None = None, processes: Processes | None = None
) -> Outcome:
    """Train ``objective.module`` in place, taking up what an earlier run left under ``options.out``.

    Raises `DataError` if what lies there was begun with other settings, or cannot be written.
    """
    run = _Run(objective, options, report or (lambda step, loss, held_out: None), processes or Processes())
    return run.all()


@dataclass(frozen=True)
class Order:
    """Which items each step takes: a new shuffle per pass over the data, a pure function of seed and step."""

    size: int
    per_step: int
    seed: int

    @cached_property
    def _passes(self) -> dict[int, list[int]]:
        return {}

    def at(self, step: int) -> list[int]:
        """The items of a step (numbered from 0), over all processes and forwards."""
        places = range(step * self.per_step, (step + 1) * self.per_step)
        return [self._shuffled(place // self.size)[place % self.size] for place in places]

    def _shuffled(self, number: int) -> list[int]:
        if number not in self._passes:
            for old in [old for old in self._passes if old < number - 1]:
                del self._passes[old]
            generator = torch.Generator().manual_seed(derived_seed(self.seed, "order", number))
            self._passes[number] = torch.randperm(self.size, generator=generator).tolist()
        return self._passes[number]


def derived_seed(*parts: object) -> int:
    """A seed from several values; other values give unrelated ones."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1


def learning_rate(options: LoopOptions, step: int, progress: float) -> float:
    """Of a step (numbered from 0), when ``progress`` (0 to 1) of the training is over."""
    rise = min(1.0, (step + 1) / options.warmup) if options.warmup else 1.0
    fall = 0.5 * (1 + math.cos(math.pi * min(progress, 1.0))) if options.schedule == "cosine" else 1.0
    return options.learning_rate * rise * fall


class _Run:
    def __init__(self, objective: Objective, options: LoopOptions, report: Report, processes: Processes):
        self._objective, self._options = objective, options
        self._report, self._processes = report, processes
        self._parameters = list(checkpoint.trained(objective.module).values())
        self._device = self._parameters[0].device
        matrices = [p for p in self._parameters if p.dim() > 1]
        others = [p for p in self._parameters if p.dim() <= 1]
        groups = [{"params": matrices, "weight_decay": options.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self._optimizer = AdamW([g for g in groups if g["params"]], lr=options.learning_rate, betas=(0.9, 0.95))
        per_step = options.batch * options.accumulate * processes.count
        self._order = Order(objective.size, per_step, options.seed)
        self._key = {**options.key, **objective.key, "processes": processes.count, "items": objective.size}
        self._step, self._points = 0, []
        self._before, self._started = 0.0, monotonic()
        self._longest = {"step": 0.0, "evaluate": 0.0}
        self._loss: float | None = None  # smoothed
        self._since: list[float] = []  # losses since the last point

    def all(self) -> Outcome:
        self._resume()
        options = self._options
        if self._step == 0 and not self._points:
            self._evaluate()
        while not self._over():
            self._timed("step", self._one_step)
            if self._step % options.evaluate_every == 0:
                self._evaluate()
            if self._step % options.checkpoint_every == 0:
                self._save()
            self._report(self._step, self._loss, None)
        if self._points[-1].step != self._step:
            self._evaluate()
        self._save()
        self._processes.wait()
        return Outcome(self._step, self._elapsed, self._points[-1].held_out, self._points)

    # -- one step -----------------------------------------------------------------------------------------------------

    def _one_step(self) -> None:
        options, step = self._options, self._step
        rate = learning_rate(options, step, self._progress())
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        torch.manual_seed(derived_seed(options.seed, "step", step, self._processes.rank))
        items = self._order.at(step)
        mine = items[self._processes.rank :: self._processes.count]
        self._optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for part in range(options.accumulate):
            with torch.autocast(self._device.type, torch.bfloat16, enabled=options.precision == "bfloat16"):
                loss = self._objective.loss(mine[part * options.batch : (part + 1) * options.batch], step)
            (loss / options.accumulate).backward()
            total += float(loss.detach()) / options.accumulate
        self._processes.mean_gradients(self._parameters)
        if options.clip:
            torch.nn.utils.clip_grad_norm_(self._parameters, options.clip)
        self._optimizer.step()
        self._step += 1
        self._since.append(total)
        self._loss = total if self._loss is None else self._loss + SMOOTHING * (total - self._loss)

    def _progress(self) -> float:
        done = self._step / self._options.steps
        budget = self._options.time_budget
        return done if budget is None else max(done, self._processes.agree(self._elapsed / budget))

    def _over(self) -> bool:
        if self._step >= self._options.steps:
            return True
        if self._options.time_budget is None:
            return False
        left = self._options.time_budget - self._elapsed - SPARE * sum(self._longest.values())
        return self._processes.agree(left) <= 0

    # -- looking and keeping ------------------------------------------------------------------------------------------

    @property
    def _elapsed(self) -> float:
        return self._before + monotonic() - self._started

    def _timed(self, name: str, action: Callable[[], None]) -> None:
        start = monotonic()
        action()
        self._longest[name] = max(self._longest[name], monotonic() - start)

    def _evaluate(self) -> None:
        self._timed("evaluate", self._look)
        if self._processes.first:
            save_curve(self._options.out, self._points)
        self._report(self._step, self._loss, self._points[-1].held_out)

    def _look(self) -> None:
        with torch.no_grad():
            held_out = self._objective.evaluate()
        loss = sum(self._since) / len(self._since) if self._since else None
        self._since = []
        self._points.append(Point(self._step, round(self._elapsed, 2), loss, held_out))

    def _save(self) -> None:
        tensors = checkpoint.state(self._objective.module, self._optimizer)
        if not self._processes.first:
            return
        facts = {
            "key": self._key,
            "seconds": self._elapsed,
            "loss": self._loss,
            "since": self._since,
            "points": [asdict(point) for point in self._points],
        }
        folder = self._options.out / "checkpoints"
        checkpoint.save(folder, self._step, tensors, facts)

    def _resume(self) -> None:
        folder = self._options.out / "checkpoints"
        facts = checkpoint.restore(folder, self._objective.module, self._optimizer, self._key)
        if facts is None:
            return
        self._step, self._before, self._loss = facts["step"], facts["seconds"], facts["loss"]
        self._since = facts["since"]
        self._points = [Point(**point) for point in facts["points"]]
