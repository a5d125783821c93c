"""``train heads``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field

from multitoken.cli.show import console, print_json
from multitoken.cli.training import TrainingFlags
from multitoken.errors import OptionError
from multitoken.models.loading import load_model
from multitoken.training.bar import TrainingBar
from multitoken.training.heads.objective import HeadLoss
from multitoken.training.heads.run import HeadTraining, train_heads
from multitoken.training.processes import Processes

ON_DISK = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class TrainHeadsCommand(TrainingFlags):
    """Options of ``train heads``."""

    heads: int = Field(4, ge=1, le=16, description="number of heads (k); head i predicts the token i + 1 ahead")
    kind: Literal["parallel", "sequential", "competing"] = Field(
        "sequential",
        description="parallel: each sees the hidden state alone, as in the paper; sequential: also the tokens before "
        "its own; competing: head 1 predicts what the model's own head predicts (a baseline)",
    )
    rank: int = Field(768, ge=1, description="inner width of sequential heads")
    shared: bool = Field(True, description="sequential heads share one block")
    vocabulary: int = Field(8192, ge=0, description="tokens that heads may propose: the corpus's commonest (0: all)")
    window: int = Field(16, ge=1, description="neighbouring places of an answer that one item holds")
    decay: float = Field(0.8, gt=0, le=1, description="weight of a head's loss relative to the head before it")
    rise: int = Field(100, ge=0, description="steps over which each deeper head's weight rises")
    distill: float = Field(0.5, ge=0, le=1, description="share of the loss that learns the model's distribution")
    gate: bool = Field(True, description="train the million-parameter gate too")
    span_steps: int = Field(1000, ge=1, description="steps of the span predictor, and of the gate")
    labels: int = Field(65536, ge=1, description="places that span predictor and gate learn from")
    states: Path | None = Field(
        None, description="folder of hidden states, to share between trainings (default: in out)"
    )
    store: Literal["float32", "bfloat16", "float16"] = Field("float16", description="precision on disk")
    batch: int = Field(16, ge=1, description="windows per forward and process")
    steps: int = Field(2000, ge=1, description="optimizer steps of the heads")


def run_train_heads(options: TrainHeadsCommand) -> int:
    if options.kind != "sequential":
        for name in ("rank", "shared"):
            if name in options.model_fields_set:
                raise OptionError(name, getattr(options, name), "goes with kind=sequential")
    processes = Processes()
    device = processes.device if options.device == "auto" and processes.device else options.device
    # Nothing is trained through the model itself, so any runtime will do.
    model = load_model(options.model, **{**options.loading, "device": device})
    shown = options.progress and processes.first
    facts = train_heads(
        model,
        options.corpus(model),
        _settings(options),
        options.loop(),
        command=shlex.join(["multitoken", *sys.argv[1:]]),
        bars=lambda name, steps: TrainingBar(shown, f"train {name}", steps),
        progress=shown,
        processes=processes,
    )
    if processes.first:
        _show(options, facts)
    return 0


def _settings(options: TrainHeadsCommand) -> HeadTraining:
    loss = HeadLoss(options.window, options.decay, options.rise, options.distill)
    names = [name for name in HeadTraining.__slots__ if name not in ("loss", "store")]
    given = {name: getattr(options, name) for name in names}
    return HeadTraining(**given, loss=loss, store=ON_DISK[options.store])


def _show(options: TrainHeadsCommand, facts: dict[str, Any]) -> None:
    figures = facts["figures"]
    if options.as_json:
        print_json({"path": str(options.out), "kind": options.kind, "figures": figures})
        return
    heads = figures["heads"]
    accuracy = ", ".join(f"{name} {value:.3f}" for name, value in heads["held_out"].items())
    lines = [f"{options.out}: {heads['steps']} steps in {heads['seconds']:.0f} s; held out: {accuracy}"]
    for name in ("span", "gate"):
        if name in figures:
            lines.append(f"{name}: accuracy {figures[name]['held_out']['accuracy']:.3f} on held-out places")
    console().print("\n".join(lines), soft_wrap=True, markup=False)
