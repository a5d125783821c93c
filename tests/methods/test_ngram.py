"""The n-gram index agrees with a scan of the whole sequence, at constant cost per token."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multitoken.methods.ngram import Match, NgramIndex

LETTERS = st.lists(st.integers(0, 3), max_size=40)


def scanned(tokens: list[int], smallest: int, largest: int) -> Match | None:
    """Longest n-gram at the end that occurs earlier, and its latest earlier occurrence, by brute force."""
    for size in range(min(largest, len(tokens)), smallest - 1, -1):
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == tokens[-size:]:
                return Match(size, start + size)
    return None


@settings(deadline=None, max_examples=150)
@given(LETTERS, st.lists(st.integers(1, 5), max_size=10), st.integers(1, 3), st.integers(0, 3))
def test_equals_a_scan(tokens, pieces, smallest, more):
    """However the sequence arrives: whole, or in pieces."""
    index = NgramIndex(smallest, smallest + more)
    end = 0
    for piece in [*pieces, len(tokens)]:
        end = min(end + piece, len(tokens))
        index.update(tokens[:end])
        assert index.match(tokens[:end]) == scanned(tokens[:end], smallest, smallest + more)


def test_the_end_does_not_match_itself():
    index = NgramIndex(1, 3)
    index.update([1, 2, 3])
    assert index.match([1, 2, 3]) is None
    index.update([1, 2, 3, 3])
    assert index.match([1, 2, 3, 3]) == Match(1, 3)


def test_work_is_constant_per_token():
    tokens, index = [7] * 6000, NgramIndex(1, 3)
    index.update(tokens)
    read = index.entered
    assert read <= 3 * len(tokens)
    for _ in range(50):
        tokens.append(7)
        index.update(tokens)
        index.match(tokens)
    assert index.entered - read == 3 * 50


@pytest.mark.parametrize("sizes", [(0, 2), (3, 2)])
def test_sizes_are_checked(sizes):
    with pytest.raises(ValueError, match="ascending"):
        NgramIndex(*sizes)
