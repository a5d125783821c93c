"""How far predicted acceptance can be believed: what came true of earlier predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

BOUNDS = np.array([0.05, 0.15, 0.4])  # of a path's predicted probability; each range has its own record
PRIOR = 8.0  # accepted nodes that the predictions of a range are taken to have brought before any was tried
FADE = 0.002  # weight of the newest step


def _zeros() -> np.ndarray:
    return np.zeros(len(BOUNDS) + 1)


@dataclass(slots=True)
class Reliability:
    """Accepted and predicted nodes by predicted probability, over everything that one method object has served.

    Sources are over-confident in their own ways: a long match in the text is rarely as certain as it looks, a
    candidate that few votes name is likelier than they say.
    """

    accepted: np.ndarray = field(default_factory=_zeros)
    predicted: np.ndarray = field(default_factory=_zeros)

    def corrected(self, scores: Sequence[float]) -> np.ndarray:
        """Probabilities of paths with log-probabilities ``scores``, as experience has them."""
        raw = np.exp(np.asarray(scores, dtype=float))
        factor = (self.accepted + PRIOR) / (self.predicted + PRIOR)
        return np.minimum(raw * factor[np.searchsorted(BOUNDS, raw)], 1.0)

    def learn(self, scores: Sequence[float], path: Sequence[int]) -> None:
        """Take in a draft whose nodes have ``scores`` and of which the nodes ``path`` were accepted."""
        raw = np.exp(np.asarray(scores, dtype=float))
        ranges = np.searchsorted(BOUNDS, raw)
        size = len(self.accepted)
        self.accepted += np.bincount(ranges[list(path)], minlength=size) - FADE * self.accepted
        self.predicted += np.bincount(ranges, weights=raw, minlength=size) - FADE * self.predicted
