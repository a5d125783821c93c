"""Settings of the mask method."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from multitoken.methods.probe.options import ProbeOptions
from multitoken.methods.registry import MethodOptions

THRESHOLD = 0.9
VERIFIED_K, STATIC_K = 4, 2


class MaskOptions(MethodOptions):
    """How predictions become tokens, and what a forward holds."""

    checkpoint: Path | None = Field(
        None, description="folder that multitoken train mask wrote (default: what is shipped for the model)"
    )
    acceptance: Literal["verified", "confadapt", "static"] = Field(
        "verified",
        description="verified: the next forward checks the predictions, lossless; confadapt: commit while the "
        "probability is above the threshold, lossy; static: commit k tokens per forward, lossy",
    )
    threshold: float | None = Field(None, gt=0, le=1, description="probability that confadapt asks for (default 0.9)")
    k: int | None = Field(
        None,
        ge=1,
        le=64,
        description="tokens that one forward predicts: its own next token and k - 1 masks (default: verified 4, static "
        "2, confadapt as many as were trained)",
    )
    tree: Literal["best", "chain"] = Field("best", description="verified: the most probable paths, or one path")
    block_size: int = Field(30, ge=2, le=1024, description="verified: slots of a decode forward: root, nodes and masks")
    rescore: float = Field(
        1.0, ge=0, description="verified: weight of the model's own next-token table in a candidate's score (0: off)"
    )
    table_seconds: float = Field(120.0, gt=0, description="time to make the next-token table, as in the probe method")

    @model_validator(mode="after")
    def _consistent(self) -> MaskOptions:
        if self.threshold is not None and self.acceptance != "confadapt":
            raise ValueError("threshold goes with acceptance=confadapt")
        if self.acceptance == "verified":
            if self.k == 1:
                raise ValueError("k must be 2 or more where predictions are verified; method plain is k=1")
            nodes = 1 if self.tree == "best" else self.masks
            if self.block_size < (needed := 1 + nodes + self.masks):
                raise ValueError(f"block_size must be {needed} or more to hold a root, {nodes} candidates and masks")
        else:
            for name in ("tree", "block_size", "rescore", "table_seconds"):
                if name in self.model_fields_set:
                    raise ValueError(f"{name} goes with acceptance=verified")
        return self

    @property
    def masks(self) -> int:
        """Masks of an owner where predictions are verified."""
        return (self.k or VERIFIED_K) - 1

    def probing(self, k: int) -> ProbeOptions:
        """The probe method's options for verified acceptance of ``k`` predictions."""
        masks = k - 1
        shared = {
            "init": "learned",
            "checkpoint": self.checkpoint,
            "probes": masks,
            "rescore": self.rescore,
            "block_size": self.block_size,
            "table_seconds": self.table_seconds,
        }
        if self.tree == "best":
            return ProbeOptions.model_validate(shared)
        # What the chain leaves of the block is for the masks of its likeliest ends.
        owners = min((self.block_size - 1 - masks) // masks, masks + 1)
        return ProbeOptions.model_validate(shared | {"tree": "static", "widths": (1,) * masks, "owners": owners})
