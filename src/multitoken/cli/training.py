"""The options that trainings share: data, steps, pace, where the result goes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from multitoken.cli.models import ModelFlags
from multitoken.errors import OptionError
from multitoken.models.loading import LoadedModel, load_model
from multitoken.training.corpus import Corpus, read_corpus
from multitoken.training.loop import LoopOptions
from multitoken.training.processes import Processes


class TrainingFlags(ModelFlags):
    """What to learn from, for how long, and how fast."""

    data: Path = Field(..., description="corpus that multitoken data synthesize wrote with this model")
    out: Path = Field(..., description="folder of the result; a training that was begun there goes on")
    steps: int = Field(1000, ge=1, description="optimizer steps")
    batch: int = Field(4, ge=1, description="texts per forward and process")
    accumulate: int = Field(1, ge=1, description="forwards per step")
    learning_rate: float = Field(1e-3, gt=0, description="its largest value")
    warmup: int = Field(50, ge=0, description="steps in which it rises")
    schedule: Literal["cosine", "constant"] = Field("cosine", description="what follows: down to zero, or constant")
    weight_decay: float = Field(0.0, ge=0, description="of matrices")
    clip: float = Field(1.0, ge=0, description="largest norm of the gradient (0: off)")
    precision: Literal["float32", "bfloat16"] = Field("float32", description="bfloat16: mixed precision")
    seed: int = Field(0, ge=0, lt=2**32, description="of the order of the texts and of all draws")
    time_budget: float | None = Field(None, gt=0, description="seconds after which it ends with what it has")
    checkpoint_every: int = Field(100, ge=1, description="steps between checkpoints")
    evaluate_every: int = Field(100, ge=1, description="steps between looks at held-out text")
    held_out: float = Field(0.05, gt=0, lt=1, description="share of the corpus that is held out")

    def load_trainable(self, processes: Processes) -> LoadedModel:
        """The model in the one runtime that has gradients, on this process's device."""
        if self.runtime not in ("auto", "eager"):
            raise OptionError("runtime", self.runtime, "has no gradients; leave it out to train")
        if self.quantize != "none":
            raise OptionError("quantize", self.quantize, "has no gradients; leave it out to train")
        device = processes.device if self.device == "auto" and processes.device else self.device
        return load_model(self.model, **{**self.loading, "runtime": "eager", "device": device})

    def corpus(self, model: LoadedModel) -> Corpus:
        return read_corpus(self.data, model.backbone.fingerprint)

    def loop(self) -> LoopOptions:
        names = [name for name in LoopOptions.__dataclass_fields__ if name in type(self).model_fields]
        return LoopOptions(**{name: getattr(self, name) for name in names})
