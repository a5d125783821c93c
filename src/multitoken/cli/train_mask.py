"""``train probes`` and ``train mask``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field

from multitoken.cli.show import console, print_json
from multitoken.cli.training import TrainingFlags
from multitoken.methods.probe.learned import Kind
from multitoken.training.bar import TrainingBar
from multitoken.training.loop import Outcome
from multitoken.training.mask.objective import MaskSettings
from multitoken.training.mask.run import AdapterSettings, train_masks
from multitoken.training.processes import Processes

ON_DISK = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class RegionFlags(TrainingFlags):
    """What both ask of a text."""

    regions: int = Field(16, ge=1, description="places per text where tokens ahead are predicted")
    longest: int = Field(192, ge=8, description="tokens of a text; what is longer is cut")
    start: Path | None = Field(None, description="folder of learned probes or masks whose vectors are the first ones")
    judged: int = Field(16, ge=1, description="held-out texts that are looked at in each evaluation")
    teacher: Literal["hard", "soft"] = Field("hard", description="learn its best token, or its distribution")


class TrainProbesCommand(RegionFlags):
    """Options of ``train probes``."""

    probes: int = Field(3, ge=1, le=16, description="vectors to learn (k); probe i proposes the token i + 1 ahead")
    learning_rate: float = Field(5e-3, gt=0, description="its largest value")
    steps: int = Field(300, ge=1, description="optimizer steps")


class TrainMaskCommand(RegionFlags):
    """Options of ``train mask``."""

    adapter: Literal["gated-lora", "lora", "full"] = Field(
        "gated-lora",
        description="what is trained: an adapter that acts on masks only (next-token predictions stay the model's "
        "own), one that acts everywhere, or all weights",
    )
    k_max: int = Field(8, ge=2, le=64, description="largest number of tokens that one forward predicts")
    fixed_k: bool = Field(False, description="always k_max tokens, instead of 2 to k_max at random")
    labels: Literal["student", "truth"] = Field(
        "student", description="student: its own roll-out, judged by the frozen model; truth: the text as it went on"
    )
    bidirectional: bool = Field(False, description="masks of a region see each other")
    prefix_loss: bool = Field(False, description="lora, full: train next-token predictions along the text too")
    rank: int = Field(8, ge=1, description="of an adapter")
    alpha: float = Field(16.0, gt=0, description="of an adapter: its update is scaled by alpha / rank")
    targets: tuple[str, ...] = Field(
        (), description="a layer that has an adapter, such as q_proj; give the flag once for each (default: all)"
    )
    store: Literal["float32", "bfloat16", "float16"] = Field("bfloat16", description="precision of an adapter on disk")


def run_train_probes(options: TrainProbesCommand) -> int:
    settings = MaskSettings(
        k_max=options.probes + 1,
        fixed_k=True,
        labels="truth",
        teacher=options.teacher,
        regions=options.regions,
        longest=options.longest,
        judged=options.judged,
    )
    return _train(options, "probes", settings, AdapterSettings())


def run_train_mask(options: TrainMaskCommand) -> int:
    settings = MaskSettings(**{name: getattr(options, name) for name in MaskSettings.__slots__})
    adapter = AdapterSettings(options.rank, options.alpha, options.targets, ON_DISK[options.store])
    return _train(options, options.adapter, settings, adapter)


def _train(options: RegionFlags, kind: Kind, settings: MaskSettings, adapter: AdapterSettings) -> int:
    processes = Processes()
    model = options.load_trainable(processes)
    corpus = options.corpus(model)
    name = "probes" if kind == "probes" else "mask"
    with TrainingBar(options.progress and processes.first, f"train {name}", options.steps) as bar:
        outcome = train_masks(
            model,
            corpus,
            kind,
            settings,
            options.loop(),
            adapter,
            start=options.start,
            held_out=options.held_out,
            command=shlex.join(["multitoken", *sys.argv[1:]]),
            report=bar,
            processes=processes,
        )
    if processes.first:
        _show(options, kind, outcome)
    return 0


def _show(options: RegionFlags, kind: Kind, outcome: Outcome) -> None:
    facts: dict[str, Any] = {
        "path": str(options.out),
        "kind": kind,
        "steps": outcome.steps,
        "seconds": round(outcome.seconds, 1),
        "held_out": outcome.held_out,
    }
    if options.as_json:
        print_json(facts)
        return
    figures = ", ".join(f"{name} {value:.3f}" for name, value in outcome.held_out.items())
    text = f"{options.out}: {outcome.steps} steps in {outcome.seconds:.0f} s; held out: {figures}"
    console().print(text, soft_wrap=True, markup=False)
