"""Index of the n-grams of a growing sequence: where the newest n-gram last occurred, in constant time per token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Match(NamedTuple):
    """An earlier occurrence of the last ``size`` tokens; ``next`` is the position of the token that followed it."""

    size: int
    next: int


class NgramIndex:
    """Latest earlier occurrence of every n-gram of one sequence that only grows.

    The sequence stays with its owner, who hands it in; the index keeps positions. An n-gram is entered when its next
    token arrives, so that the end of the sequence never matches itself.

    Args:
        smallest, largest: sizes n of the n-grams, 1 <= smallest <= largest.
    """

    def __init__(self, smallest: int, largest: int):
        if not 1 <= smallest <= largest:
            raise ValueError(f"n-gram sizes {smallest}..{largest} are not an ascending range from 1")
        self._sizes = range(largest, smallest - 1, -1)
        self._next: dict[tuple[int, ...], int] = {}
        self._seen = 1
        self.entered = 0  # dictionary writes so far: the cost of the index

    def update(self, tokens: Sequence[int]) -> None:
        """Take in what was appended to ``tokens`` since the last call: one entry per n-gram size and token."""
        for position in range(self._seen, len(tokens)):
            for size in self._sizes:
                if size <= position:
                    self._next[tuple(tokens[position - size : position])] = position
                    self.entered += 1
        self._seen = max(self._seen, len(tokens))

    def match(self, tokens: Sequence[int]) -> Match | None:
        """Latest earlier occurrence of the longest n-gram at the end of ``tokens`` that has one."""
        for size in self._sizes:
            if size <= len(tokens):
                position = self._next.get(tuple(tokens[-size:]))
                if position is not None:
                    return Match(size, position)
        return None
