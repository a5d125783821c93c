"""From a corpus to a checkpoint: build student and objective, train, save."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from multitoken.errors import DataError, OptionError
from multitoken.methods.probe.learned import Kind, load_learned, save_learned
from multitoken.models.backbone import Backbone
from multitoken.models.loading import LoadedModel, quiet
from multitoken.training.corpus import Corpus
from multitoken.training.loop import LoopOptions, Outcome, Report, train
from multitoken.training.mask.objective import MaskObjective, MaskSettings
from multitoken.training.mask.student import Student
from multitoken.training.processes import Processes, gathered
from multitoken.training.regions import texts_of

PACKAGES = ("multitoken", "torch", "transformers")


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """An adapter's shape, and how it is stored.

    Attributes:
        rank, alpha: the update is B A x * alpha / rank.
        targets: last names of the layers that have one (none given: every linear layer of the decoder).
        dtype: on disk.
    """

    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = ()
    dtype: torch.dtype = torch.bfloat16


def train_masks(
    model: LoadedModel,
    corpus: Corpus,
    kind: Kind,
    settings: MaskSettings,
    loop: LoopOptions,
    adapter: AdapterSettings | None = None,
    *,
    start: Path | None = None,
    held_out: float = 0.05,
    command: str = "",
    report: Report | None = None,
    processes: Processes | None = None,
) -> Outcome:
    """Train and write a checkpoint to ``loop.out``: what `multitoken.methods.probe.learned.load_learned` reads.

    With kind ``full`` the folder is a Transformers checkpoint as well. Progress lies there too, and the same call takes
    it up again.

    Args:
        model: loaded with runtime ``eager``.
        corpus: the model's own text.
        start: a folder of learned probes or masks of the same model, whose vectors are the first ones.
        held_out: share of it to judge by.

    Raises:
        OptionError: options that do not go together.
        DataError: the corpus has nothing to learn from, or ``loop.out`` was begun with other settings.
    """
    shape = adapter or AdapterSettings()
    if settings.prefix_loss and kind in ("probes", "gated-lora"):
        raise OptionError("prefix_loss", True, f"{kind} leaves the text's own predictions alone; use lora or full")
    backbone = model.backbone
    train_part, held_out_part = corpus.split(held_out)
    texts, judges = texts_of(train_part, settings.longest), texts_of(held_out_part, settings.longest)
    vectors = None if start is None else load_learned(start, backbone).vectors
    masks = settings.k_max - 1
    student = Student(backbone, kind, masks, vectors, shape.rank, shape.alpha, shape.targets, loop.seed)
    facts = {"model": model.name, "model_fingerprint": backbone.fingerprint, "corpus": corpus.digest}
    key = {**facts, "rank": shape.rank, "alpha": shape.alpha, "targets": list(shape.targets), "start": _digest(vectors)}
    objective = MaskObjective(student, texts, judges, settings, model.eos, key)
    processes = processes or Processes()
    if processes.sharding:
        if kind != "full":
            raise OptionError("adapter", kind, "is small, and nothing of it is spread over processes; leave FSDP out")
        processes.shard(student, student.layers())
    try:
        outcome = train(objective, loop, report, processes)
    finally:
        if student.adapter is not None:
            student.adapter.detach()
    whole, vectors = student.whole(), gathered(student.vectors)
    if processes.first:
        training = {
            "objective": asdict(settings),
            "loop": {**loop.key, "processes": processes.count},
            "steps": outcome.steps,
            "seconds": round(outcome.seconds, 1),
            "held_out": outcome.held_out,
            "corpus": {"digest": corpus.digest, "samples": len(corpus.samples), "header": corpus.header},
        }
        provenance = {**facts, "training": training, "versions": versions(), "command": command}
        fingerprint = backbone.fingerprint if whole is None else save_model(whole, model, loop.out)
        save_learned(loop.out, kind, vectors, fingerprint, provenance, student.adapter, shape.dtype)
    processes.wait()
    return outcome


def save_model(trained: PreTrainedModel, model: LoadedModel, folder: Path) -> str:
    """Write a Transformers checkpoint with the tokenizer of ``model``. Returns its fingerprint."""
    try:
        with quiet():
            trained.save_pretrained(folder)
            model.tokenizer.save_pretrained(folder)
    except OSError as error:
        raise DataError(f"{folder}: cannot be written ({error}); free some space and run the same again") from error
    return Backbone(trained).fingerprint


def _digest(vectors: Tensor | None) -> str | None:
    """What tells starting points apart."""
    return None if vectors is None else sha256(vectors.cpu().numpy().tobytes()).hexdigest()[:16]


def versions() -> dict[str, str]:
    """Of Python and of the packages that decide a result."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}
