"""Settings of the probe method."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from multitoken.methods.registry import MethodOptions

Init = Literal["mean", "last", "sample", "offset", "vocab", "calibrated", "learned"]
Tree = Literal["best", "dynamic", "static"]
TABLE_DEPTH = 2  # levels below the probes that the next-token table fills by default


class ProbeOptions(MethodOptions):
    """How probes are made, how candidates are scored, and how they are arranged."""

    probes: int = Field(1, ge=1, le=16, description="probes per owner (k); probe i proposes the token i + 1 ahead")
    init: Init = Field(
        "vocab",
        description="first probe vectors: mean, last or sample as in the paper, offset (its stress test), vocab (mean "
        "of the embedding table), calibrated (best of several on text that the model writes), learned (a checkpoint)",
    )
    checkpoint: Path | None = Field(
        None,
        description="folder that multitoken train wrote, for init=learned (default: what is shipped for the model)",
    )
    mixing: float | None = Field(
        None,
        ge=0,
        le=1,
        description="how far a probe moves toward each committed token's embedding (lambda); default 0.1 for the "
        "paper's inits, 0 for the others",
    )
    offset_scale: float | None = Field(
        None, description="standard deviations that the offset init adds to the mean (default 5)"
    )
    tree: Tree = Field(
        "best",
        description="best: the most probable paths; dynamic: the paper's Algorithm 1 (only the best candidate of a "
        "depth has children); static: fixed widths",
    )
    widths: tuple[int, ...] | None = Field(None, description="candidates per depth of a static tree, e.g. 15,4")
    block_size: int = Field(30, ge=2, le=1024, description="slots of one decode forward: root, nodes and probes")
    prune: bool = Field(True, description="never propose a token right after itself")
    rescore: float = Field(
        1.0,
        ge=0,
        description="weight of the model's own next-token table in a candidate's score (0: off, the table is not made)",
    )
    depth: int | None = Field(
        None,
        ge=1,
        le=32,
        description="deepest candidates; below the probes the next-token table alone proposes (default: two deeper "
        "than the probes for tree=best with rescoring, else as deep as the probes)",
    )
    owners: Literal["auto", "all"] | int = Field(
        "auto",
        description="which slots have probes: all (root and every node, as in the paper), so many likeliest anchors, "
        "or auto (tree=best shares its block between nodes and probes by expected worth; the others: all)",
    )
    table_seconds: float = Field(
        120.0,
        gt=0,
        description="time to make the next-token table where it is not cached yet; it covers the tokens in id order, "
        "frequent ones first in most vocabularies, and the rest go unscored",
    )

    @model_validator(mode="after")
    def _consistent(self) -> ProbeOptions:
        if (self.tree == "static") != (self.widths is not None):
            raise ValueError("widths goes with tree=static, and tree=static needs widths, one per probe")
        if isinstance(self.owners, int) and self.owners < 1:
            raise ValueError("owners must be auto, all, or a number from 1")
        if self.widths is not None:
            if len(self.widths) != self.probes:
                raise ValueError(f"widths has {len(self.widths)} numbers; give one per probe ({self.probes})")
            if min(self.widths) < 1:
                raise ValueError("widths must be 1 or more at each depth")
            if self.depth is not None:
                raise ValueError("widths sets the depth of a static tree; leave depth out")
        if self.checkpoint is not None and self.init != "learned":
            raise ValueError("checkpoint goes with init=learned")
        if self.offset_scale is not None and self.init != "offset":
            raise ValueError("offset_scale goes with init=offset")
        if self.block_size < (needed := self._slots(sum(self.widths or (1,)))):
            what = "these widths" if self.widths else "a root, a candidate and their probes"
            raise ValueError(f"block_size must be {needed} or more to hold {what}")
        if self.max_depth > self.probes and not self.rescore:
            raise ValueError("candidates deeper than the probes come from the next-token table; set rescore above 0")
        return self

    def _slots(self, nodes: int) -> int:
        """Slots of a block with ``nodes`` nodes; with a shared block, with probes for the root alone."""
        if self.all_own:
            return (self.probes + 1) * (1 + nodes)
        owners = min(self.owners, 1 + nodes) if isinstance(self.owners, int) else 1
        return 1 + nodes + owners * self.probes

    @property
    def max_depth(self) -> int:
        if self.depth is not None:
            return self.depth
        return self.probes + (TABLE_DEPTH if self.tree == "best" and self.rescore else 0)

    @property
    def all_own(self) -> bool:
        """Root and every node have probes."""
        return self.owners == "all" or (self.owners == "auto" and self.tree != "best")

    @property
    def mixing_weight(self) -> float:
        if self.mixing is not None:
            return self.mixing
        return 0.1 if self.init in ("mean", "last", "sample", "offset") else 0.0
