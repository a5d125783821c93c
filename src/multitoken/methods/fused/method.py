"""Fused drafting: n-gram history, probes and the next-token table in one tree under one block budget.

Every source gives probabilities: the history those that its match lengths have earned in this text, probes and table
the model's own. Blended, they rank all candidates on one scale; the block takes the likeliest paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, model_validator
from torch import Tensor

from multitoken.engine.draft import Draft
from multitoken.engine.method import Step
from multitoken.engine.row import Row
from multitoken.methods.fused.history import History
from multitoken.methods.fused.tree import Base, mixed_tree
from multitoken.methods.probe.candidates import continuations
from multitoken.methods.probe.method import Probe, ProbeState, lay_out
from multitoken.methods.probe.options import Init, ProbeOptions
from multitoken.methods.probe.tree import Candidates, share
from multitoken.methods.registry import MethodOptions, NamedMethod, register
from multitoken.models.backbone import Backbone

WIDTH = 32  # candidates of a base distribution that are blended


class FusedOptions(MethodOptions):
    """What goes into the tree, and how large it is."""

    block_size: int = Field(30, ge=2, le=1024, description="slots of one decode forward: root, nodes and probes")
    depth: int = Field(10, ge=1, le=64, description="deepest candidates")
    probes: int = Field(1, ge=0, le=8, description="probes per owner (0: n-grams and the next-token table only)")
    init: Init = Field("vocab", description="probe vectors, as in the probe method")
    checkpoint: Path | None = Field(None, description="of learned probes or masks, as in the probe method")
    rescore: float = Field(1.0, ge=0, description="weight of the next-token table in a candidate's score (0: off)")
    table_seconds: float = Field(120.0, gt=0, description="time to make the next-token table, as in the probe method")

    @model_validator(mode="after")
    def _consistent(self) -> FusedOptions:
        if self.probes and self.block_size < self.probes + 2:
            raise ValueError(f"block_size must be {self.probes + 2} or more to hold a root, a candidate and its probes")
        if self.checkpoint is not None and self.init != "learned":
            raise ValueError("checkpoint goes with init=learned")
        return self


@dataclass(slots=True)
class FusedState:
    history: History
    probe: ProbeState


@register
class Fused(NamedMethod):
    """Candidates of n-grams, probes and the next-token table in one tree, lossless."""

    name = "fused"
    summary = "training-free: n-grams, probes and the model's own next-token table in one tree"
    Options = FusedOptions
    options: FusedOptions

    def __init__(self, options: FusedOptions | None = None):
        super().__init__(options)
        o = self.options
        shared = {"init": o.init, "rescore": o.rescore, "table_seconds": o.table_seconds, "checkpoint": o.checkpoint}
        probes = max(o.probes, 1)
        # The probe method lends its vectors and its table; trees and blocks are made here.
        self._probe = Probe(ProbeOptions.model_validate({**shared, "probes": probes, "block_size": probes + 2}))

    def bind(self, backbone: Backbone) -> None:
        self._probe.bind(backbone)
        self.adapter, self.lossless = self._probe.adapter, self._probe.lossless

    def start(self, row: Row) -> FusedState:
        return FusedState(History(), self._probe.start(row))

    def draft(self, rows: Sequence[Row]) -> Sequence[Draft]:
        return [self._draft(row) for row in rows]

    def observe(self, rows: Sequence[Row], step: Step) -> None:
        for index, row in enumerate(rows):
            self.learn(row.state, step.probe_logits[index], step.tokens[index])

    def learn(self, state: FusedState, logits: Tensor, tokens: list[int]) -> None:
        """Take in the anchor's probe logits and the tokens just committed."""
        self._probe.learn(state.probe, logits, tokens)

    def tree_of(self, state: FusedState, tokens: Sequence[int], nodes: int) -> Candidates:
        """The likeliest ``nodes`` paths after ``tokens``, in order of score."""
        state.history.update(tokens)
        return mixed_tree(tokens, state.history, self._base(state.probe), self.options.depth, nodes)

    def _draft(self, row: Row) -> Draft:
        slots, probes = self.options.block_size - 1, self.options.probes
        tree = self.tree_of(row.state, row.tokens, slots)
        nodes, owners = share(tree, slots, probes, self._probe.gain)
        return lay_out(tree.first(nodes), owners if probes else [], row.state.probe.vectors[:probes])

    def _base(self, state: ProbeState) -> Base:
        table, rescore = self._probe.table, self.options.rescore
        deepest = len(state.levels) + 1 if table is not None else len(state.levels)

        def base(level: int, parents: Sequence[int]) -> list[dict[int, float]] | None:
            if level > deepest:
                return None
            probe = state.levels[level - 1] if level <= len(state.levels) else None
            tokens, logprobs = continuations(probe, parents, table, rescore, WIDTH, prune=True)
            pairs = zip(tokens.tolist(), logprobs.exp().tolist(), strict=True)
            return [dict(zip(ids, values, strict=True)) for ids, values in pairs]

        return base
