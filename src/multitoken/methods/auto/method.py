"""`auto`: the tree, or none, that is expected to commit the most tokens per second on this machine.

Each step weighs what a slot is likely to bring (the probability that its path is accepted, or for a probe its worth in
the next step) against what it costs (measured forwards). With rho the tokens per second committed lately, the block of
s slots that maximises  tokens(s) - rho * seconds(s)  also maximises tokens per second in the long run (the usual
treatment of a ratio of two sums); a block of one slot is plain decoding, and is always among the choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np
from pydantic import Field

from multitoken.engine.draft import ROOT, Draft
from multitoken.engine.method import Step
from multitoken.engine.row import Row
from multitoken.methods.auto.cost import step_cost
from multitoken.methods.auto.trust import Reliability
from multitoken.methods.fused.history import LONGEST
from multitoken.methods.fused.method import HEADS_HELP, Fused, FusedOptions, FusedState
from multitoken.methods.probe.method import lay_out
from multitoken.methods.probe.options import Init
from multitoken.methods.probe.tree import Candidates, endings, share
from multitoken.methods.registry import MethodOptions, NamedMethod, register
from multitoken.models.backbone import Backbone

CHOICES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
MEMORY = 0.05  # weight of the newest step in running means
TRUSTED = 4.0  # accepted nodes that a row's predictions are taken to have brought before it has seen any
FIRST_GAIN = 0.1  # tokens that an anchor's probe levels are taken to add to a step before that was measured
GAIN_EVERY = 8  # steps with probe levels between two measurements of what they bring, after the first few
EXPLORE = 64  # steps between two looks at what a probe would bring, while probes are off
STRONG_VOTE = 0.3  # with an n-gram trusted as much, a tree is always worth its making


class AutoOptions(MethodOptions):
    """Limits within which the method chooses."""

    max_block_size: int = Field(32, ge=2, le=64, description="most slots of a row: root, nodes and probes")
    depth: int = Field(10, ge=1, le=64, description="deepest candidates")
    probes: int = Field(1, ge=1, le=8, description="probes per owner")
    init: Init = Field("vocab", description="probe vectors, as in the probe method")
    checkpoint: Path | None = Field(None, description="of learned probes or masks, as in the probe method")
    rescore: float = Field(1.0, ge=0, description="weight of the next-token table in a candidate's score (0: off)")
    table_seconds: float = Field(120.0, gt=0, description="time to make the next-token table, as in the probe method")
    heads: str | Path = Field("shipped", description=HEADS_HELP)


@dataclass(slots=True)
class AutoState:
    """A row's sources, and how its predictions have fared.

    Attributes:
        accepted, predicted: accepted nodes and how many were expected, sums that fade with every step.
        drafted: expected accepted nodes of the draft in flight.
        scores: log-probabilities of its nodes, as the sources gave them.
        idle: steps since the row last had probe logits.
        explored: the logits that it has came after a long time without.
    """

    fused: FusedState
    accepted: float = 0.0
    predicted: float = 0.0
    drafted: float = 0.0
    scores: list[float] = field(default_factory=list)
    idle: int = 0
    explored: bool = False

    @property
    def honesty(self) -> float:
        """Accepted over predicted nodes, which scales the predictions."""
        # A ratio of sums: the mean of each step's ratio would be ruled by steps of which little was expected.
        return (self.accepted + TRUSTED) / (self.predicted + TRUSTED)

    def learn(self, accepted: int) -> None:
        """Take in the nodes that the draft in flight brought."""
        self.accepted += accepted - MEMORY * self.accepted
        self.predicted += self.drafted - MEMORY * self.predicted


@dataclass(slots=True)
class Pace:
    """Running figures of one model: tokens per second, and what probes add.

    Attributes:
        tokens, seconds: running means of a step's tokens and time; their ratio is rho.
        gain: net worth in tokens that the anchor's probe levels add to a step.
        looks: trees made from probe levels.
        bare: net worth in tokens of making a tree where neither probes nor the text have much to say.
        bare_steps: steps at which that was asked.
        slots, started, drafted, rows: the step in flight, its draft's start and end.
    """

    tokens: float
    seconds: float
    gain: float = FIRST_GAIN
    looks: int = 0
    bare: float = FIRST_GAIN
    bare_steps: int = 0
    slots: int = 0
    started: float = 0.0
    drafted: float = 0.0
    rows: list[Row] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Tokens per second lately."""
        return self.tokens / self.seconds


@register
class Auto(NamedMethod):
    """Chooses the draft of every step by measured costs and acceptance, lossless, and falls back to plain decoding."""

    name = "auto"
    summary = "training-free: the fused tree, sized each step by measured cost and acceptance, or none"
    Options = AutoOptions
    options: AutoOptions

    def __init__(self, options: AutoOptions | None = None):
        super().__init__(options)
        o = self.options
        self._fused = Fused(FusedOptions.model_validate(o.model_dump(exclude={"max_block_size"})))
        self._backbone: Backbone | None = None
        self._choices = np.array([size for size in CHOICES if size <= o.max_block_size])

    def bind(self, backbone: Backbone) -> None:
        if self._backbone is backbone:
            return
        self._fused.bind(backbone)
        self.adapter, self.lossless = self._fused.adapter, self._fused.lossless
        self._cost = step_cost(backbone)
        self._reliability = Reliability()
        self._pace = Pace(tokens=1.0, seconds=float(self._cost.of(1)))
        self._backbone = backbone

    def start(self, row: Row) -> AutoState:
        return AutoState(self._fused.start(row))

    def draft(self, rows: Sequence[Row]) -> Sequence[Draft]:
        pace = self._pace
        pace.started = perf_counter()
        trees = [self._tree(row, len(rows)) for row in rows]
        size = self._best_size(rows, trees)
        drafts = [self._lay_out(row, tree, size - 1, len(rows)) for row, tree in zip(rows, trees, strict=True)]
        # The longest row pads the others.
        pace.slots = len(rows) * max(row.pending + draft.slots for row, draft in zip(rows, drafts, strict=True))
        pace.rows = list(rows) if all(row.prefilled for row in rows) else []
        pace.drafted = perf_counter()
        return drafts

    def observe(self, rows: Sequence[Row], step: Step) -> None:
        self._learn_pace(rows, step)
        for index, row in enumerate(rows):
            state: AutoState = row.state
            if state.scores:
                state.learn(len(step.paths[index]))
                self._reliability.learn(state.scores, step.paths[index])
            logits = step.probe_logits[index]
            state.explored = len(logits) > 0 and state.idle >= EXPLORE
            state.idle = 0 if len(logits) else state.idle + 1
            self._fused.learn(state.fused, logits, step.tokens[index], step.hidden[index])

    # -- choosing -----------------------------------------------------------------------------------------------------

    def _tree(self, row: Row, rows: int) -> Candidates:
        """Candidates of a row, in order of score; none before its first token."""
        if not row.prefilled:
            return Candidates([], [], [])
        state: AutoState = row.state
        pace = self._pace
        started = perf_counter()
        informed = state.fused.probe.levels or state.fused.heads is not None
        bare = not informed and not self._echoes(state, row.tokens)
        if bare and not self._worth_making():
            return Candidates([], [], [])
        tree = self._fused.tree_of(state.fused, row.tokens, self.options.max_block_size - 1)
        if bare:
            net = self._tokens(row, tree) - self._price(self._choices, rows)
            seconds = perf_counter() - started
            pace.bare += 2 * MEMORY * (float(net.max() - net[0]) - pace.rate * seconds - pace.bare)
        elif state.fused.probe.levels:
            # A look after a long time without probes is rare, and always counts.
            if pace.looks < GAIN_EVERY or pace.looks % GAIN_EVERY == 0 or state.explored:
                self._learn_gain(row, tree, rows, perf_counter() - started)
            pace.looks += 1
        return tree

    def _echoes(self, state: AutoState, tokens: Sequence[int]) -> bool:
        """Whether the text has been here before, by what such matches have been worth."""
        history = state.fused.history
        history.update(tokens)
        return max((trust for trust, _ in history.votes(tokens[-LONGEST:])), default=0.0) >= STRONG_VOTE

    def _worth_making(self) -> bool:
        """Whether trees of the next-token table and weak votes have paid for the time of making them."""
        pace = self._pace
        pace.bare_steps += 1
        return pace.bare > 0 or pace.bare_steps % EXPLORE == 0

    def _price(self, sizes: np.ndarray, rows: int) -> np.ndarray:
        """A row's part in the price, in tokens, of a step of ``rows`` rows with blocks of ``sizes``."""
        return self._pace.rate * self._cost.of(sizes * rows) / rows

    def _best_size(self, rows: Sequence[Row], trees: Sequence[Candidates]) -> int:
        """Root and nodes per row that maximise expected tokens less their price."""
        if not any(len(tree) for tree in trees):
            return 1  # the common case on text that nothing foresees; it must cost next to nothing
        tokens = sum(self._tokens(row, tree) for row, tree in zip(rows, trees, strict=True)) / len(rows)
        return int(self._choices[int(np.argmax(tokens - self._price(self._choices, len(rows))))])

    def _tokens(self, row: Row, tree: Candidates) -> np.ndarray:
        """Expected tokens of a step with the first nodes of ``tree``, for each choice of block size."""
        worth = np.concatenate([[0.0], row.state.honesty * np.cumsum(self._reliability.corrected(tree.scores))])
        return 1 + worth[np.minimum(self._choices - 1, len(tree))]

    def _lay_out(self, row: Row, tree: Candidates, nodes: int, rows: int) -> Draft:
        """The best ``nodes`` nodes, and probes for the anchors where they are worth their price."""
        state: AutoState = row.state
        kept, limit = tree.first(nodes), self.options.max_block_size
        owners = self._owners(kept, rows)
        if not owners and state.idle >= EXPLORE:
            owners = [ROOT]
        probes = self.options.probes
        if 1 + len(kept) + len(owners) * probes > limit:
            nodes, owners = share(kept, limit - 1, probes, self._pace.gain)
            kept = kept.first(nodes)
        state.scores = kept.scores
        state.drafted = float(self._reliability.corrected(kept.scores).sum())
        return lay_out(kept, owners, state.fused.probe.vectors)

    def _owners(self, tree: Candidates, rows: int) -> list[int]:
        """The likeliest anchors, as many as make their probes' worth less their price largest."""
        ending = endings(tree)
        order = np.argsort(-ending, kind="stable")
        price = self._price(1 + len(tree) + self.options.probes * np.arange(len(order) + 1), rows)
        net = self._pace.gain * np.cumsum(ending[order]) - (price[1:] - price[0])
        best = int(np.argmax(net))
        return sorted(int(slot) - 1 for slot in order[: best + 1]) if net[best] > 0 else []

    # -- learning -----------------------------------------------------------------------------------------------------

    def _learn_pace(self, rows: Sequence[Row], step: Step) -> None:
        """Update costs, rate and the worth of probes from a decode step whose rows are all still here."""
        pace = self._pace
        if len(pace.rows) != len(rows) or any(a is not b for a, b in zip(pace.rows, rows, strict=True)):
            return
        now = perf_counter()
        self._cost.learn(pace.slots, now - pace.drafted)
        pace.tokens += MEMORY * (sum(len(tokens) for tokens in step.tokens) - pace.tokens)
        pace.seconds += MEMORY * (now - pace.started - pace.seconds)

    def _learn_gain(self, row: Row, tree: Candidates, rows: int, seconds: float) -> None:
        """What the probe levels behind ``tree`` are worth: the best block's net tokens with them, less without.

        ``seconds`` is what the tree took to make; the time is charged too.
        """
        state: AutoState = row.state
        levels, state.fused.probe.levels = state.fused.probe.levels, []
        started = perf_counter()
        without = self._fused.tree_of(state.fused, row.tokens, self.options.max_block_size - 1)
        seconds -= perf_counter() - started
        state.fused.probe.levels = levels
        price = self._price(self._choices, rows)
        gain = (self._tokens(row, tree) - price).max() - (self._tokens(row, without) - price).max()
        self._pace.gain += 2 * MEMORY * (float(gain) - self._pace.rate * seconds - self._pace.gain)
