"""The whole training of heads: states, heads, labels, span predictor and gate, checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any, Literal

import torch
from torch import Tensor, nn

import multitoken
from multitoken.errors import DataError
from multitoken.methods.heads.checkpoint import TrainedHeads, save_heads
from multitoken.methods.heads.modules import Gate, Heads, HeadShape, Reader, SpanPredictor
from multitoken.models.loading import LoadedModel
from multitoken.training.corpus import Corpus, Sample
from multitoken.training.heads.labels import Labels, span_labels
from multitoken.training.heads.objective import HeadLoss, HeadObjective
from multitoken.training.heads.span import SpanObjective
from multitoken.training.heads.states import States, make_states
from multitoken.training.loop import LoopOptions, Outcome, Report, derived_seed, train
from multitoken.training.processes import Processes

# Shares of a time budget after which held-out states, all states, heads, and labels must be done; predictors have the
# rest.
HELD_OUT_BY, STATES_BY, HEADS_BY, LABELS_BY = 0.05, 0.35, 0.85, 0.92
SPAN_BATCH = 512
HELD_OUT_LABELS = 8192
# (what is trained, its steps) -> context manager that gives a report
Bars = Callable[[str, int], Any]


@dataclass(frozen=True, slots=True)
class HeadTraining:
    """What to train.

    Attributes:
        kind, heads, rank, shared: see `HeadShape`.
        vocabulary: tokens that the heads may propose: the most frequent of the corpus (0: all of the model's).
        loss: see `HeadLoss`.
        gate: train the gate baseline too.
        span_steps: of the predictors.
        labels: places of the training text that the predictors learn from.
        held_out: share of the corpus to judge by.
        states: folder of hidden states, None for one inside the result's.
        store: precision on disk.
    """

    kind: Literal["parallel", "sequential", "competing"] = "sequential"
    heads: int = 4
    rank: int = 768
    shared: bool = True
    vocabulary: int = 8192
    loss: HeadLoss = field(default_factory=HeadLoss)
    gate: bool = True
    span_steps: int = 1000
    labels: int = 65536
    held_out: float = 0.05
    states: Path | None = None
    store: torch.dtype = torch.float16


@dataclass(slots=True)
class _Clock:
    """Parts of a time budget, in seconds from the start of this run."""

    budget: float | None
    start: float

    def deadline(self, share: float) -> float | None:
        return None if self.budget is None else self.start + share * self.budget

    def left(self, share: float) -> float | None:
        """Seconds until a share of the budget is over."""
        return None if self.budget is None else max(1.0, self.start + share * self.budget - monotonic())


def train_heads(
    model: LoadedModel,
    corpus: Corpus,
    settings: HeadTraining,
    loop: LoopOptions,
    *,
    command: str = "",
    bars: Bars,
    progress: bool = False,
    processes: Processes | None = None,
) -> dict[str, Any]:
    """Train heads and predictors into ``loop.out``. Returns the facts written to ``heads.json``.

    Raises `DataError` for a corpus that is too small, or a folder that was begun with other settings.
    """
    processes = processes or Processes()
    clock = _Clock(loop.time_budget, monotonic())
    run = _Training(model, corpus, settings, loop, bars, progress, processes, clock)
    heads = run.heads()
    span = run.predictor(SpanPredictor(run.shape.width, run.shape.heads), "span")
    gate = run.predictor(Gate(run.shape.width, run.shape.heads), "gate") if settings.gate else None
    facts = {**run.provenance(command), "figures": run.figures}
    if processes.first:
        save_heads(loop.out, TrainedHeads(heads, span, gate), facts, settings.store)
    processes.wait()
    return facts


class _Training:
    def __init__(
        self,
        model: LoadedModel,
        corpus: Corpus,
        settings: HeadTraining,
        loop: LoopOptions,
        bars: Bars,
        progress: bool,
        processes: Processes,
        clock: _Clock,
    ):
        self._model, self._corpus, self._settings, self._loop = model, corpus, settings, loop
        self._bars, self._progress, self._processes, self._clock = bars, progress, processes, clock
        self.shape = HeadShape(settings.kind, settings.heads, model.backbone.width, settings.rank, settings.shared)
        self.figures: dict[str, Any] = {}
        self._key = {
            "fingerprint": model.backbone.fingerprint,
            "corpus": corpus.digest,
            "held_out": settings.held_out,
        }
        samples, judged = corpus.split(settings.held_out)
        self._judged = self._states("held-out", judged, HELD_OUT_BY)
        self._train = self._states("train", samples, STATES_BY)

    def heads(self) -> Heads:
        """Train the heads."""
        settings, backbone = self._settings, self._model.backbone
        torch.manual_seed(derived_seed(self._loop.seed, "heads"))
        vocabulary = frequent_tokens(self._corpus.split(settings.held_out)[0], settings.vocabulary, backbone.vocab_size)
        heads = Heads(self.shape, vocabulary).to(backbone.device)
        reader = Reader(backbone, vocabulary, torch.float32)
        self._objective = HeadObjective(
            heads, reader, self._train, self._judged, settings.loss, self._key, backbone.vocab_size
        )
        loop = replace(self._loop, time_budget=self._clock.left(HEADS_BY))
        outcome = self._run(self._objective, loop, "heads")
        self.figures["heads"] = {**_figures(outcome), "positions": self._train.positions}
        heads.eval().requires_grad_(False)
        self._judged_labels = self._span_labels(self._judged, HELD_OUT_LABELS, (HEADS_BY + LABELS_BY) / 2)
        self._labels = self._span_labels(self._train, settings.labels, LABELS_BY)
        if not len(self._labels.spans) or not len(self._judged_labels.spans):
            raise DataError(f"the answers are too short for {settings.heads} heads; use fewer, or longer answers")
        return heads

    def predictor(self, module: Any, name: str) -> Any:
        """Train a span predictor or gate on the labels of the heads."""
        torch.manual_seed(derived_seed(self._loop.seed, name))
        for layer in module.modules():
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
        module.to(self._model.backbone.device)
        objective = SpanObjective(module, self._labels, self._judged_labels, self._key)
        share = 1.0 if name == "gate" or not self._settings.gate else (1 + LABELS_BY) / 2
        if self._loop.time_budget is not None and self._processes.first:
            # The clock decides how many labels there are, so an earlier run may have had others.
            shutil.rmtree(self._loop.out / name / "checkpoints", ignore_errors=True)
        self._processes.wait()
        loop = replace(
            self._loop,
            out=self._loop.out / name,
            steps=self._settings.span_steps,
            batch=min(SPAN_BATCH, objective.size),
            accumulate=1,
            learning_rate=1e-3,
            precision="float32",
            time_budget=self._clock.left(share),
        )
        outcome = self._run(objective, loop, name)
        self.figures[name] = {**_figures(outcome), "labels": objective.size, "confusion": objective.confusion()}
        module.eval().requires_grad_(False)
        return module

    def provenance(self, command: str) -> dict[str, Any]:
        header = self._corpus.header
        settings = asdict(self._settings)
        settings["states"], settings["store"] = None, str(self._settings.store).removeprefix("torch.")
        return {
            "model": self._model.name,
            "fingerprint": self._model.backbone.fingerprint,
            "corpus": {
                "digest": self._corpus.digest,
                "samples": len(self._corpus.samples),
                "tokens": self._corpus.tokens,
                "seed": header.get("seed"),
                "source": header.get("source"),
                "prompts_sha256": header.get("prompts_sha256"),
            },
            "settings": settings,
            "loop": {**self._loop.key, "time_budget": self._loop.time_budget, "processes": self._processes.count},
            "command": command,
            "versions": {"multitoken": multitoken.__version__, "torch": str(torch.__version__)},
        }

    def _states(self, name: str, samples: list[Sample], share: float) -> States:
        folder = self._settings.states or self._loop.out / "states"
        backbone = self._model.backbone
        key = {**self._key, "dtype": backbone.dtype_name, "runtime": "int8" if backbone.quantize == "int8" else "full"}
        deadline = self._clock.deadline(share)
        return make_states(backbone, samples, folder, name, key, self._processes, deadline, self._progress)

    def _span_labels(self, states: States, positions: int, share: float) -> Labels:
        deadline = self._clock.deadline(share)

        def enough() -> bool:
            return deadline is not None and bool(self._processes.agree(monotonic() > deadline))

        return span_labels(self._objective, states, self._settings.loss.window, positions, enough)

    def _run(self, objective: HeadObjective | SpanObjective, loop: LoopOptions, name: str) -> Outcome:
        with self._bars(name, loop.steps) as bar:
            report: Report = bar
            return train(objective, loop, report, self._processes)


def frequent_tokens(samples: list[Sample], count: int, vocab_size: int) -> Tensor:
    """The ``count`` most frequent tokens of the answers, int64 ascending; made up with the lowest ids.

    Byte-pair vocabularies are in order of merging, so low ids are frequent ones.
    """
    if count == 0 or count >= vocab_size:
        return torch.arange(vocab_size)
    tokens = torch.tensor([token for sample in samples for token in sample.answer])
    counts = torch.bincount(tokens, minlength=vocab_size)
    return counts.argsort(descending=True, stable=True)[:count].sort().values


def _figures(outcome: Outcome) -> dict[str, Any]:
    rounded = {name: round(value, 4) for name, value in outcome.held_out.items()}
    return {"steps": outcome.steps, "seconds": round(outcome.seconds, 1), "held_out": rounded}
