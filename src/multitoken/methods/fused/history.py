"""What the sequence itself says about its next token: n-gram contexts, and how far each length can be trusted.

Prompt lookup and its kin copy what followed the longest earlier match. Here every match length votes, with a weight
that is its measured hit rate, so that the votes are probabilities and can share a tree with other sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

LONGEST = 6
REPEATS = 3  # a context seen more often than this is trusted no further
# Hits and tries by (context length, times seen) before a row has seen any: a weak prior that its own text overrules.
PRIOR_RATE = {1: 0.18, 2: 0.35, 3: 0.45, 4: 0.52, 5: 0.56, 6: 0.6}
PRIOR_TRIES = 8.0
Context = tuple[int, ...]


@dataclass(slots=True)
class Followers:
    """Tokens seen after one context: how often each, and which was the last."""

    counts: dict[int, int] = field(default_factory=dict)
    total: int = 0
    last: int = -1

    def add(self, token: int) -> None:
        self.counts[token] = self.counts.get(token, 0) + 1
        self.total += 1
        self.last = token

    def share(self, token: int) -> float:
        """Probability of one follower, as in `shares`."""
        return (self.counts.get(token, 0) + (token == self.last)) / (self.total + 1)

    def shares(self) -> dict[int, float]:
        """Probability of each follower, the last one counted once more: texts repeat what is recent."""
        return {token: self.share(token) for token in self.counts}


class History:
    """N-gram contexts of one growing sequence. Each token costs `LONGEST` dictionary updates, whatever the length."""

    def __init__(self) -> None:
        self._contexts: dict[Context, Followers] = {}
        self._hits: dict[tuple[int, int], float] = {}
        self._tries: dict[tuple[int, int], float] = {}
        self._taken = 1

    def update(self, tokens: Sequence[int]) -> None:
        """Take in what was appended to ``tokens`` since the last call, scoring the contexts before learning them."""
        for position in range(self._taken, len(tokens)):
            token = tokens[position]
            for size in range(1, min(LONGEST, position) + 1):
                context = tuple(tokens[position - size : position])
                known = self._contexts.get(context)
                if known is None:
                    known = self._contexts[context] = Followers()
                else:
                    bucket = (size, min(known.total, REPEATS))
                    self._tries[bucket] = self._tries.get(bucket, 0.0) + 1
                    self._hits[bucket] = self._hits.get(bucket, 0.0) + known.share(token)
                known.add(token)
        self._taken = max(self._taken, len(tokens))

    def votes(self, tail: Sequence[int]) -> list[tuple[float, dict[int, float]]]:
        """Votes on the token after ``tail``, shortest context first: (trust, token -> share)."""
        found = []
        for size in range(1, min(LONGEST, len(tail)) + 1):
            known = self._contexts.get(tuple(tail[-size:]))
            if known is None:
                break  # a longer context cannot have been seen either
            found.append((self.trust(size, known.total), known.shares()))
        return found

    def trust(self, size: int, times: int) -> float:
        """Probability mass that a context of ``size`` tokens seen ``times`` times has earned for its followers."""
        bucket = (size, min(times, REPEATS))
        prior = PRIOR_RATE[size] * PRIOR_TRIES
        return (self._hits.get(bucket, 0.0) + prior) / (self._tries.get(bucket, 0.0) + PRIOR_TRIES)


def blend(base: dict[int, float], votes: Sequence[tuple[float, dict[int, float]]]) -> dict[int, float]:
    """Mix votes into ``base`` (token -> probability), the longest context having the last word."""
    mixed = dict(base)
    for trust, shares in votes:
        mixed = {token: (1 - trust) * probability for token, probability in mixed.items()}
        for token, share in shares.items():
            mixed[token] = mixed.get(token, 0.0) + trust * share
    return mixed
