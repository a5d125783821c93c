"""Fused drafting: n-gram history, probes, the next-token table and heads in one tree under one block budget.

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
from multitoken.methods.fused.history import LONGEST, History
from multitoken.methods.fused.tree import Base, mixed_tree
from multitoken.methods.heads.checkpoint import chosen_heads
from multitoken.methods.heads.source import HeadSource, HeadView
from multitoken.methods.probe.candidates import continuations
from multitoken.methods.probe.method import Probe, ProbeState, lay_out
from multitoken.methods.probe.options import Init, ProbeOptions
from multitoken.methods.probe.tree import Candidates, share
from multitoken.methods.registry import MethodOptions, NamedMethod, register
from multitoken.models.backbone import Backbone

WIDTH = 32  # candidates of a base distribution that are blended
HEADS_HELP = "trained heads as one source more: none, shipped (the package's for this model, if any), or a folder"


class FusedOptions(MethodOptions):
    """What goes into the tree, and how large it is."""

    block_size: int = Field(30, ge=2, le=1024, description="slots of one decode forward: root, nodes and probes")
    depth: int = Field(10, ge=1, le=64, description="deepest candidates")
    probes: int = Field(1, ge=0, le=8, description="probes per owner (0: n-grams and the next-token table only)")
    init: Init = Field("vocab", description="probe vectors, as in the probe method")
    checkpoint: Path | None = Field(None, description="of learned probes or masks, as in the probe method")
    rescore: float = Field(1.0, ge=0, description="weight of the next-token table in a candidate's score (0: off)")
    table_seconds: float = Field(120.0, gt=0, description="time to make the next-token table, as in the probe method")
    heads: str | Path = Field("none", description=HEADS_HELP)

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
    heads: HeadView | None = None


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
        self._backbone: Backbone | None = None
        self._heads: HeadSource | None = None
        probes = max(o.probes, 1)
        # The probe method lends its vectors and its table; trees and blocks are made here.
        self._probe = Probe(ProbeOptions.model_validate({**shared, "probes": probes, "block_size": probes + 2}))

    def bind(self, backbone: Backbone) -> None:
        self._probe.bind(backbone)
        self.adapter, self.lossless = self._probe.adapter, self._probe.lossless
        if self._backbone is not backbone:
            trained = chosen_heads(self.options.heads, backbone)
            self._heads = None if trained is None else HeadSource(trained, WIDTH)
        self._backbone = backbone

    def start(self, row: Row) -> FusedState:
        return FusedState(History(), self._probe.start(row))

    def draft(self, rows: Sequence[Row]) -> Sequence[Draft]:
        return [self._draft(row) for row in rows]

    def observe(self, rows: Sequence[Row], step: Step) -> None:
        for index, row in enumerate(rows):
            self.learn(row.state, step.probe_logits[index], step.tokens[index], step.hidden[index])

    def learn(self, state: FusedState, logits: Tensor, tokens: list[int], hidden: Tensor) -> None:
        """Take in the anchor's probe logits, the tokens just committed and the anchor's hidden state [d]."""
        self._probe.learn(state.probe, logits, tokens)
        if self._heads is not None:
            state.heads = self._heads.look(hidden)

    def tree_of(self, state: FusedState, tokens: Sequence[int], nodes: int) -> Candidates:
        """The likeliest ``nodes`` paths after ``tokens``, in order of score."""
        state.history.update(tokens)
        return mixed_tree(tokens, state.history, self._base(state), self.options.depth, nodes)

    def _draft(self, row: Row) -> Draft:
        slots, probes = self.options.block_size - 1, self.options.probes
        tree = self.tree_of(row.state, row.tokens, slots)
        nodes, owners = share(tree, slots, probes, self._probe.gain)
        return lay_out(tree.first(nodes), owners if probes else [], row.state.probe.vectors[:probes])

    def _base(self, state: FusedState) -> Base:
        probed = self._probed(state.probe)
        heads, view = self._heads, state.heads
        if heads is None or view is None:
            return probed
        deepest = min(heads.depth, LONGEST)

        def base(level: int, paths: Sequence[tuple[int, ...]]) -> list[dict[int, float]] | None:
            if level > deepest:
                return probed(level, paths)
            found = heads.distributions(view, [path[-level:] for path in paths])
            # The table alone knows less than a head; a probe is worth hearing beside it.
            others = probed(level, paths) if level <= len(state.probe.levels) else None
            return found if others is None else [mean(*pair) for pair in zip(found, others, strict=True)]

        return base

    def _probed(self, state: ProbeState) -> Base:
        table, rescore = self._probe.table, self.options.rescore
        deepest = len(state.levels) + 1 if table is not None else len(state.levels)

        def base(level: int, paths: Sequence[tuple[int, ...]]) -> list[dict[int, float]] | None:
            if level > deepest:
                return None
            probe = state.levels[level - 1] if level <= len(state.levels) else None
            parents = [path[-1] for path in paths]
            tokens, logprobs = continuations(probe, parents, table, rescore, WIDTH, prune=True)
            pairs = zip(tokens.tolist(), logprobs.exp().tolist(), strict=True)
            return [dict(zip(ids, values, strict=True)) for ids, values in pairs]

        return base


def mean(first: dict[int, float], second: dict[int, float]) -> dict[int, float]:
    """Mean of two distributions over tokens; a token that one lacks has no probability there."""
    return {token: (first.get(token, 0.0) + second.get(token, 0.0)) / 2 for token in {**first, **second}}
