"""`auto`: the tree, or none, that is expected to commit the most tokens per second on this machine.

Each step weighs what a slot is likely to bring (the probability that its path is accepted, or for a probe its worth in
the next step) against what it costs (measured forwards). With rho the tokens per second committed lately, the block of
s slots that maximises  tokens(s) - rho * seconds(s)  also maximises tokens per second in the long run (the usual
treatment of a ratio of two sums); a block of one slot is plain decoding, and is always among the choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
from pydantic import Field

from multitoken.engine.draft import ROOT, Draft
from multitoken.engine.method import Step
from multitoken.engine.row import Row
from multitoken.methods.auto.cost import StepCost, step_cost
from multitoken.methods.fused.method import Fused, FusedOptions, FusedState
from multitoken.methods.probe.method import lay_out
from multitoken.methods.probe.tree import Candidates, endings
from multitoken.methods.registry import MethodOptions, NamedMethod, register
from multitoken.models.backbone import Backbone

CHOICES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
MEMORY = 0.05  # weight of the newest step in running means
GAIN_EVERY = 8  # steps with probe levels between two measurements of what they bring
EXPLORE = 64  # steps between two looks at what a probe would bring, while probes are off
STRONG_VOTE = 0.3  # an n-gram trusted less than this does not make a tree worth building when probes are off


class AutoOptions(MethodOptions):
    """Limits within which the method chooses."""

    max_block_size: int = Field(32, ge=2, le=64, description="largest block that may be chosen")
    depth: int = Field(10, ge=1, le=64, description="deepest candidates")
    rescore: float = Field(1.0, ge=0, description="weight of the next-token table in a candidate's score (0: off)")
    table_seconds: float = Field(120.0, gt=0, description="time to make the next-token table, as in the probe method")


@dataclass(slots=True)
class AutoState:
    """A row's sources, and how its predictions have fared.

    Attributes:
        honesty: accepted over predicted nodes, a running ratio that scales the predictions.
        predicted: expected accepted nodes of the draft in flight.
        idle: steps since the row last had probe logits.
    """

    fused: FusedState
    honesty: float = 1.0
    predicted: float = 0.0
    idle: int = 0


@dataclass(slots=True)
class Pace:
    """Running figures of one model: tokens per second, and what probes add.

    Attributes:
        tokens, seconds: running means of a step's tokens and time; their ratio is rho.
        gain: net worth in tokens that the anchor's probe levels add to a step.
        slots, started, rows: the step in flight.
    """

    tokens: float
    seconds: float
    gain: float = 0.3
    steps: int = 0
    slots: int = 0
    started: float = 0.0
    rows: list[Row] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Tokens per second lately."""
        return self.tokens / self.seconds


@register
class Auto(NamedMethod):
    """Chooses the draft of every step by measured costs and acceptance, lossless, and falls back to plain decoding."""

    name = "auto"
    summary = "training-free: the fused tree, sized each step by measured cost and acceptance; never slower than plain"
    Options = AutoOptions
    options: AutoOptions

    def __init__(self, options: AutoOptions | None = None):
        super().__init__(options)
        o = self.options
        self._fused = Fused(FusedOptions.model_validate(o.model_dump(exclude={"max_block_size"})))
        self._cost: StepCost | None = None
        self._choices = np.array([size for size in CHOICES if size <= o.max_block_size])

    def bind(self, backbone: Backbone) -> None:
        self._fused.bind(backbone)
        if self._cost is None:
            self._cost = step_cost(backbone)
            self._pace = Pace(tokens=1.0, seconds=float(self._cost.of(1)))

    def start(self, row: Row) -> AutoState:
        return AutoState(self._fused.start(row))

    def draft(self, rows: Sequence[Row]) -> Sequence[Draft]:
        assert self._cost is not None
        trees = [self._tree(row) for row in rows]
        size = self._best_size(rows, trees)
        drafts = [self._lay_out(row, tree, size - 1) for row, tree in zip(rows, trees, strict=True)]
        pending = sum(row.pending for row in rows)
        pace = self._pace
        pace.slots = pending + sum(draft.slots for draft in drafts)
        pace.rows = list(rows) if all(row.prefilled for row in rows) else []
        pace.started = perf_counter()
        return drafts

    def observe(self, rows: Sequence[Row], step: Step) -> None:
        self._learn_pace(rows, step)
        for index, row in enumerate(rows):
            state: AutoState = row.state
            if state.predicted > 0:
                ratio = len(step.paths[index]) / state.predicted
                state.honesty += MEMORY * (min(ratio, 3.0) - state.honesty)
            logits = step.probe_logits[index]
            state.idle = 0 if len(logits) else state.idle + 1
            self._fused.learn(state.fused, logits, step.tokens[index])

    # -- choosing -----------------------------------------------------------------------------------------------------

    def _tree(self, row: Row) -> Candidates:
        """Candidates of a row, in order of score; none where nothing worth a slot can be expected."""
        state: AutoState = row.state
        nothing = Candidates([], [], [])
        if not row.prefilled:
            return nothing
        history = state.fused.history
        history.update(row.tokens)
        if not state.fused.probe.levels:
            votes = history.votes(row.tokens[-8:])
            if max((trust for trust, _ in votes), default=0.0) < STRONG_VOTE:
                return nothing
        tree = self._fused.tree_of(state.fused, row.tokens, self.options.max_block_size - 1)
        if state.fused.probe.levels:
            self._pace.steps += 1
            if self._pace.steps % GAIN_EVERY == 1:
                self._learn_gain(row, tree)
        return tree

    def _best_size(self, rows: Sequence[Row], trees: Sequence[Candidates]) -> int:
        """Slots per row that maximise expected tokens less their price."""
        assert self._cost is not None
        price = self._pace.rate * self._cost.of(self._choices * len(rows))
        tokens = sum(self._tokens(row, tree) for row, tree in zip(rows, trees, strict=True))
        return int(self._choices[int(np.argmax(tokens - price))])

    def _tokens(self, row: Row, tree: Candidates) -> np.ndarray:
        """Expected tokens of a step with the first nodes of ``tree``, for each choice of block size."""
        worth = np.concatenate([[0.0], row.state.honesty * np.cumsum(np.exp(tree.scores))])
        return 1 + worth[np.minimum(self._choices - 1, len(tree))]

    def _net(self, row: Row, tree: Candidates) -> np.ndarray:
        """Expected tokens less their price when the row is alone, for each choice of block size."""
        assert self._cost is not None
        return self._tokens(row, tree) - self._pace.rate * self._cost.of(self._choices)

    def _lay_out(self, row: Row, tree: Candidates, slots: int) -> Draft:
        """The best ``slots`` nodes, and probes for the anchors where they are worth their price."""
        assert self._cost is not None
        state: AutoState = row.state
        kept = tree.first(slots)
        ending = endings(kept)
        state.predicted = float(np.exp(kept.scores).sum())
        now = 1 + len(kept)
        price = self._pace.rate * float(self._cost.of(now + 1) - self._cost.of(now))
        owners = [int(slot) - 1 for slot in np.flatnonzero(ending * self._pace.gain > price)]
        if not owners and state.idle >= EXPLORE:
            owners = [ROOT]
        return lay_out(kept, owners, state.fused.probe.vectors[:1])

    # -- learning -----------------------------------------------------------------------------------------------------

    def _learn_pace(self, rows: Sequence[Row], step: Step) -> None:
        """Update costs, rate and the worth of probes from a decode step whose rows are all still here."""
        assert self._cost is not None
        pace = self._pace
        if len(pace.rows) != len(rows) or any(a is not b for a, b in zip(pace.rows, rows, strict=True)):
            return
        elapsed = perf_counter() - pace.started
        self._cost.learn(pace.slots, elapsed)
        pace.tokens += MEMORY * (sum(len(tokens) for tokens in step.tokens) - pace.tokens)
        pace.seconds += MEMORY * (elapsed - pace.seconds)

    def _learn_gain(self, row: Row, tree: Candidates) -> None:
        """What the probe levels behind ``tree`` are worth: the best block's net tokens with them, less without."""
        state: AutoState = row.state
        levels, state.fused.probe.levels = state.fused.probe.levels, []
        without = self._fused.tree_of(state.fused, row.tokens, self.options.max_block_size - 1)
        state.fused.probe.levels = levels
        gain = self._net(row, tree).max() - self._net(row, without).max()
        self._pace.gain += 2 * MEMORY * (float(gain) - self._pace.gain)
