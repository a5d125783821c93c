"""Lookahead decoding: Jacobi iterations in a window write n-grams, and the fitting ones are verified.

Source: Fu, Bailis, Stoica, Zhang, "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding",
arXiv 2402.02057. Level N and window W span a table of (N - 1) x W tokens. Level l of column w holds a guess of the
token l + w places behind the root, made l steps ago, and the root itself is level 0 of column 0. Each step predicts the
token behind the newest level of every column, which completes W n-grams of N tokens; they go to a pool, and the up to G
pool n-grams that begin with the root are verified in the same forward. Block size: (N - 1) * (W + G).

In the paper a slot sees the earlier tokens of level 0 and the tokens of its own column. That is a tree: level 0 is a
chain under the root, and level l of a column hangs from its level l - 1. Depths are then l + w, the paper's relative
positions (its Figure 2b: level 0 at 0 to 4, level 1 at 1 to 5, level 2 at 2 to 6, for W = 5 and N = 4).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import Field, model_validator

from multitoken.engine.commit import room
from multitoken.engine.draft import ROOT, Draft
from multitoken.engine.method import Step
from multitoken.engine.row import Row
from multitoken.methods.registry import MethodOptions, NamedMethod, register
from multitoken.models.backbone import Backbone

# Block size -> (level, window, guesses), the settings that published comparisons use.
PRESETS = {10: (3, 4, 1), 30: (4, 5, 5), 60: (5, 8, 7)}


class LookaheadOptions(MethodOptions):
    """Options of `Lookahead`: a preset by block size, any part of which may be set."""

    block_size: int = Field(
        30, description="preset of level, window and guesses: 10 (3, 4, 1), 30 (4, 5, 5) or 60 (5, 8, 7)"
    )
    level: int = Field(0, ge=0, description="tokens of an n-gram N, 2 or more (0: the preset's)")
    window: int = Field(0, ge=0, description="columns of the window W (0: the preset's)")
    guesses: int = Field(
        0, ge=0, description="n-grams kept per first token, and verified per forward, G (0: the preset's)"
    )
    pool_from_prompt: bool = Field(True, description="put the n-grams of prompt and output into the pool as well")
    seed: int = Field(0, ge=0, description="of the prompt tokens that the window starts from")

    @model_validator(mode="after")
    def _complete(self) -> LookaheadOptions:
        if self.block_size not in PRESETS:
            raise ValueError(f"block_size {self.block_size} has no preset; use one of {', '.join(map(str, PRESETS))}")
        if self.level == 1:
            raise ValueError("level 1 leaves nothing to guess; use 2 or more, or 0 for the preset's")
        return self

    @property
    def shape(self) -> tuple[int, int, int]:
        """(level N, window W, guesses G)."""
        level, window, guesses = PRESETS[self.block_size]
        return self.level or level, self.window or window, self.guesses or guesses


class Pool:
    """N-grams by their first token, the most recent ``guesses`` of each."""

    def __init__(self, guesses: int):
        self._guesses = guesses
        self._tails: dict[int, dict[tuple[int, ...], None]] = {}

    def add(self, first: int, tail: tuple[int, ...]) -> None:
        """Enter ``first`` + ``tail`` as the most recent n-gram of its key; the oldest beyond the limit is dropped."""
        tails = self._tails.setdefault(first, {})
        tails.pop(tail, None)
        tails[tail] = None
        if len(tails) > self._guesses:
            del tails[next(iter(tails))]

    def tails(self, first: int) -> list[tuple[int, ...]]:
        """What may follow ``first``, the most recent first."""
        return list(reversed(self._tails.get(first, {})))

    def __len__(self) -> int:
        return sum(map(len, self._tails.values()))


@dataclass(slots=True)
class Window:
    """The table of Jacobi iterations of one row.

    Attributes:
        levels: tokens by level, oldest level first. Level 0 lacks its column 0, which is the root. While fewer than
            ``full`` levels are there, the window is wider by the columns that filling up will cost.
        full: number of levels of a complete window, N - 1.
    """

    levels: list[list[int]]
    full: int

    @classmethod
    def starting(cls, prompt: Sequence[int], level: int, width: int, seed: int) -> Window:
        """Level 0 of random prompt tokens, as in the authors' implementation."""
        return cls([random.Random(seed).choices(prompt, k=width + level - 3)], level - 1)

    @property
    def columns(self) -> int:
        return len(self.levels[0]) + 1

    @property
    def newest(self) -> int:
        """Number of slots in the newest level: its predictions are wanted."""
        return len(self.levels[-1])

    def narrow(self, depth: int) -> bool:
        """Drop the columns of which a slot would be deeper than ``depth`` below the root. False if none is left."""
        columns = min(self.columns, depth - len(self.levels) + 2)
        if columns < 1:
            return False
        self.levels = [self.levels[0][: columns - 1]] + [tokens[:columns] for tokens in self.levels[1:]]
        return True

    def slots(self, offset: int) -> tuple[list[int], list[int]]:
        """Tokens and parents of the window's slots, level by level, the first of them being slot ``offset``."""
        tokens = list(self.levels[0])
        above = [ROOT, *range(offset, offset + len(tokens))]
        parents = above[:-1]
        for level in self.levels[1:]:
            start = offset + len(tokens)
            tokens += level
            parents += above
            above = list(range(start, start + len(level)))
        return tokens, parents

    def advance(self, root: int, predicted: list[int]) -> list[tuple[int, ...]]:
        """Move one place on, given the predictions behind the newest level. Returns the n-grams this completes."""
        # What was w places behind the old root is w - 1 behind the new one: each level loses its first column, and
        # level 0, which moves up from level 1, loses the one where the new root is.
        first = len(self.levels) == 1
        if len(self.levels) < self.full:
            self.levels = [tokens[1:] for tokens in self.levels] + [predicted if first else predicted[1:]]
            return []
        if first:  # N = 2, the root's own prediction is a committed token and not among the predicted
            grams = list(zip(self.levels[0], predicted, strict=True))
            self.levels = [predicted]
            return grams
        grams = list(zip([root, *self.levels[0]], *self.levels[1:], predicted, strict=True))
        self.levels = [*self.levels[1:], predicted]
        self.levels[0] = self.levels[0][1:]
        return grams


@dataclass(slots=True)
class LookaheadState:
    """What one row keeps: its pool, its window, the root of the last draft, and how much of its text is pooled."""

    pool: Pool
    window: Window
    max_positions: int | None
    root: int = -1
    pooled: int = 0


@register
class Lookahead(NamedMethod):
    """A window of Jacobi iterations as probes, and the pool's n-grams as nodes."""

    name = "lookahead"
    summary = "lookahead decoding: n-grams from parallel Jacobi iterations"
    Options = LookaheadOptions
    options: LookaheadOptions

    def __init__(self, options: MethodOptions | None = None):
        super().__init__(options)
        self._max_positions: int | None = None

    def bind(self, backbone: Backbone) -> None:
        self._max_positions = backbone.max_positions

    def start(self, row: Row) -> LookaheadState:
        level, width, guesses = self.options.shape
        window = Window.starting(row.tokens, level, width, self.options.seed)
        return LookaheadState(Pool(guesses), window, self._max_positions)

    def draft(self, rows: Sequence[Row]) -> Sequence[Draft]:
        return [self._draft(row) for row in rows]

    def _draft(self, row: Row) -> Draft:
        state: LookaheadState = row.state
        if self.options.pool_from_prompt:
            self._pool_text(row)
        state.root = row.tokens[-1]
        tokens, parents = trie(state.pool.tails(state.root))
        # Near the end of the budget the engine would cut through the window's levels; whole columns are dropped first.
        if not state.window.narrow(room(row, state.max_positions)):
            return Draft(tokens, parents)
        probe_tokens, probe_parents = state.window.slots(len(tokens))
        return Draft(tokens, parents + probe_parents, probe_tokens=probe_tokens)

    def wanted(self, row: Row, draft: Draft, path: list[int]) -> list[int]:
        state: LookaheadState = row.state
        newest = state.window.newest if draft.probes else 0
        return list(range(draft.slots - newest, draft.slots))

    def observe(self, rows: Sequence[Row], step: Step) -> None:
        best = torch.cat(list(step.probe_logits)).argmax(-1).tolist()
        for row, slots in zip(rows, step.probe_slots, strict=True):
            predicted, best = best[: len(slots)], best[len(slots) :]
            if predicted:
                state: LookaheadState = row.state
                for first, *tail in state.window.advance(state.root, predicted):
                    state.pool.add(first, tuple(tail))

    def _pool_text(self, row: Row) -> None:
        """Enter the n-grams of the row's text that were not entered before."""
        state: LookaheadState = row.state
        tail = self.options.shape[0] - 1
        for at in range(state.pooled, len(row.tokens) - tail):
            state.pool.add(row.tokens[at], tuple(row.tokens[at + 1 : at + 1 + tail]))
        state.pooled = max(state.pooled, len(row.tokens) - tail)


def trie(tails: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """Merge chains under the root: (tokens, parents) of their distinct prefixes, parents before children."""
    tokens: list[int] = []
    parents: list[int] = []
    nodes: dict[tuple[int, int], int] = {}
    for tail in tails:
        at = ROOT
        for token in tail:
            node = nodes.get((at, token))
            if node is None:
                node = nodes[at, token] = len(tokens)
                tokens.append(token)
                parents.append(at)
            at = node
    return tokens, parents
