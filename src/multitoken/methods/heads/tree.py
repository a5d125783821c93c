"""What heads propose, for several rows at once: chains, and trees under a node budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from multitoken.engine.draft import ROOT
from multitoken.methods.heads.checkpoint import TrainedHeads
from multitoken.methods.probe.tree import Candidates, top

EXPANDED = 6  # nodes of a depth that may have children


@dataclass(slots=True)
class Chain:
    """Most probable continuation of one row by its heads: tokens, and the probability of each given those before."""

    tokens: list[int] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)


def chains(trained: TrainedHeads, hidden: Tensor, roots: Sequence[int], lengths: Sequence[int]) -> list[Chain]:
    """One chain per row.

    Args:
        hidden: hidden states of the last tokens that the model has read, [B, d].
        roots: the next token of each row, which the model chose from that state.
        lengths: heads to run for each row; the first ``1 - offset`` of them (competing) repeat the root.
    """
    heads, reader = trained.heads, trained.reader
    assert reader is not None
    found = [Chain() for _ in roots]
    anchor = state = hidden.to(_dtype(trained))
    tokens = torch.tensor(list(roots), device=hidden.device)
    active = list(range(len(roots)))
    for level in range(max(lengths, default=0)):
        kept = [place for place, row in enumerate(active) if lengths[row] > level]
        if len(kept) < len(active):
            anchor, state, tokens = anchor[kept], state[kept], tokens[kept]
            active = [active[place] for place in kept]
        state = heads.advance(level, anchor, state, reader.embed(tokens))
        best = reader.logits(state).softmax(-1).max(-1)
        tokens = heads.vocabulary[best.indices]
        for row, token, probability in zip(active, tokens.tolist(), best.values.tolist(), strict=True):
            found[row].tokens.append(token)
            found[row].probabilities.append(probability)
    return found


def trees(
    trained: TrainedHeads,
    hidden: Tensor,
    roots: Sequence[int],
    depths: Sequence[int],
    nodes: int,
    least: float = 0.0,
) -> list[Candidates]:
    """The ``nodes`` likeliest paths behind each row's root, in order of score, so that every prefix is a tree.

    Args:
        depths: deepest candidates of each row; depth i is the token i positions after the root.
        least: paths less probable than this are left out.
    """
    grower = _Grower(trained, hidden, roots, nodes, math.log(least) if least > 0 else -math.inf)
    for depth in range(1, max(depths, default=0) + 1):
        if not grower.grow(depth, [row for row, limit in enumerate(depths) if limit >= depth]):
            break
    return [top(pool, nodes) for pool in grower.pools]


@dataclass(slots=True)
class _Tip:
    """A node that may have children: its row, its place in the row's pool, its token and score, its state's place."""

    row: int
    node: int
    token: int
    score: float
    state: int


class _Grower:
    """Trees of all rows, grown depth by depth with one product for all tips."""

    def __init__(self, trained: TrainedHeads, hidden: Tensor, roots: Sequence[int], nodes: int, least: float):
        assert trained.reader is not None
        self._heads, self._reader = trained.heads, trained.reader
        self._nodes, self._least = nodes, least
        self._first = 1 - trained.heads.shape.offset  # a competing head that repeats the root is passed over
        self._anchor = hidden.to(_dtype(trained))
        self._states = self._anchor
        self._tips = [_Tip(row, ROOT, root, 0.0, row) for row, root in enumerate(roots)]
        self.pools = [Candidates([], [], []) for _ in roots]

    def grow(self, depth: int, rows: Sequence[int]) -> bool:
        """Add candidates of one depth; False when no tip is left."""
        wanted = set(rows)
        tips = [tip for tip in self._tips if tip.row in wanted]
        if not tips:
            return False
        tokens, scores = self._propose(self._first + depth - 1, tips)
        self._tips = []
        for row in rows:
            self._add(row, [place for place, tip in enumerate(tips) if tip.row == row], tips, tokens, scores)
        return True

    def _propose(self, level: int, tips: Sequence[_Tip]) -> tuple[list[list[int]], list[list[float]]]:
        """Tokens and log-probabilities under each tip, best first."""
        if self._heads.sequential:
            rows = [tip.row for tip in tips]
            before = torch.tensor([tip.token for tip in tips], device=self._anchor.device)
            states = self._states[[tip.state for tip in tips]]
            self._states = self._heads.advance(level, self._anchor[rows], states, self._reader.embed(before))
            places = range(len(tips))
        else:  # the same for every tip of a row
            rows = sorted({tip.row for tip in tips})
            anchor = self._anchor[rows]
            self._states = self._heads.advance(level, anchor, anchor, anchor)
            places = [rows.index(tip.row) for tip in tips]
        logprobs = self._reader.logits(self._states).log_softmax(-1)
        best = logprobs.topk(min(self._nodes, logprobs.shape[-1]))
        tokens, scores = self._heads.vocabulary[best.indices].tolist(), best.values.tolist()
        return [tokens[place] for place in places], [scores[place] for place in places]

    def _add(
        self,
        row: int,
        places: Sequence[int],
        tips: Sequence[_Tip],
        tokens: Sequence[Sequence[int]],
        scores: Sequence[Sequence[float]],
    ) -> None:
        pool = self.pools[row]
        grown = [
            (tips[place].score + score, place, token)
            for place in places
            for token, score in zip(tokens[place], scores[place], strict=True)
        ]
        grown = [entry for entry in sorted(grown, key=lambda entry: -entry[0]) if entry[0] >= self._least]
        first = len(pool)
        for number, (score, place, token) in enumerate(grown[: self._nodes]):
            pool.tokens.append(token)
            pool.parents.append(tips[place].node)
            pool.scores.append(score)
            if number < EXPANDED:
                self._tips.append(_Tip(row, first + number, token, score, place))


def _dtype(trained: TrainedHeads) -> torch.dtype:
    return next(trained.heads.parameters()).dtype
