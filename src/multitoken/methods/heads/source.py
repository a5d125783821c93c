"""Heads as one source of candidates among others: probabilities of the next token after any path behind the root."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from multitoken.methods.heads.checkpoint import TrainedHeads

Path = tuple[int, ...]
Distribution = dict[int, float]


@dataclass(slots=True)
class HeadView:
    """What the heads see of one row: the hidden state of the last token read, [1, d], and states by path so far."""

    anchor: Tensor
    states: dict[Path, Tensor] = field(default_factory=dict)


class HeadSource:
    """Distributions of trained heads. Paths start at the root, which is their first token.

    Args:
        trained: heads for a model.
        width: most probable tokens of a distribution that are given.
    """

    def __init__(self, trained: TrainedHeads, width: int):
        assert trained.reader is not None
        self._heads, self._reader, self._width = trained.heads, trained.reader, width
        self._first = 1 - trained.heads.shape.offset

    @property
    def depth(self) -> int:
        """Deepest candidates: the tokens behind the root that heads are responsible for."""
        return self._heads.shape.heads - self._first

    def look(self, hidden: Tensor) -> HeadView:
        """Begin with the state of a row's anchor, [d]."""
        return HeadView(hidden[None].to(self._reader.dtype))

    def distributions(self, view: HeadView, paths: Sequence[Path]) -> list[Distribution]:
        """Probabilities of the token after each path; all paths have one length, from 1 to `depth`.

        A path's beginnings must have been asked for before it.
        """
        level = self._first + len(paths[0]) - 1
        if self._heads.sequential:
            parents = [view.states[path[:-1]] if len(path) > 1 else view.anchor for path in paths]
            last = torch.tensor([path[-1] for path in paths], device=view.anchor.device)
            anchor = view.anchor.expand(len(paths), -1)
            states = self._heads.advance(level, anchor, torch.cat(parents), self._reader.embed(last))
            view.states.update(zip(paths, states.split(1), strict=True))
            return self._best(states)
        return self._best(self._heads.advance(level, view.anchor, view.anchor, view.anchor)) * len(paths)

    def _best(self, states: Tensor) -> list[Distribution]:
        best = self._reader.logits(states).softmax(-1).topk(min(self._width, len(self._heads.vocabulary)))
        tokens = self._heads.vocabulary[best.indices].tolist()
        return [dict(zip(*pair, strict=True)) for pair in zip(tokens, best.values.tolist(), strict=True)]
