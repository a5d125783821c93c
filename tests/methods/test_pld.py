"""Prompt lookup: what it drafts from hand-made histories, and that its output is plain decoding's."""

from __future__ import annotations

import pytest
from lossless import CYCLE, assert_lossless, cycle_row, tau

from multitoken.engine.draft import ROOT
from multitoken.engine.row import Request, Row
from multitoken.errors import OptionError
from multitoken.methods import create


def drafted(history: list[int], **options) -> list[int]:
    method = create("pld", **options)
    row = Row.of(Request(tuple(history), method))
    row.state = method.start(row)
    draft = method.draft([row])[0]
    assert list(draft.parents) == list(range(ROOT, len(draft.tokens) - 1))
    return list(draft.tokens)


@pytest.mark.parametrize(
    ("history", "options", "expected"),
    [
        ([1, 2, 3, 4, 5], {}, []),
        ([1, 2, 9, 8, 7, 6, 1, 2], {"num_tokens": 3}, [9, 8, 7]),
        ([1, 2, 9, 1, 2, 5, 4, 1, 2], {"num_tokens": 2}, [5, 4]),  # the latest match
        ([3, 1, 2, 9, 8, 4, 1, 2, 5, 3, 1, 2], {"num_tokens": 2}, [9, 8]),  # the longest match goes first
        ([3, 1, 2, 9, 8, 4, 1, 2, 5, 3, 1, 2], {"num_tokens": 2, "max_ngram": 2}, [5, 3]),
        ([1, 5, 2, 1], {"min_ngram": 2}, []),
        ([1, 2, 1, 2], {"num_tokens": 5}, [1, 2, 1, 2, 1]),
        ([1, 2, 1, 2], {"num_tokens": 5, "overlap": False}, [1, 2]),
        ([6, 6], {"num_tokens": 3}, [6, 6, 6]),
    ],
)
def test_drafts(history, options, expected):
    assert drafted(history, **options) == expected


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3_text", "gpt2"])
def test_equals_plain(family):
    assert_lossless(create("pld"), family)


def test_equals_plain_alone():
    assert_lossless(create("pld", num_tokens=4, max_ngram=2), "llama", together=False)


def test_whole_chains_are_accepted_in_repetitive_text():
    assert tau(cycle_row(create("pld"), CYCLE * 2, tokens=66)) == 11  # ten drafted tokens and the bonus


def test_rows_share_nothing():
    method = create("pld")
    cycle_row(method, CYCLE * 2)
    assert method.draft([started(method, CYCLE)])[0].nodes == 0


def started(method, prompt: list[int]) -> Row:
    row = Row.of(Request(tuple(prompt), method))
    row.state = method.start(row)
    return row


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_tokens": 0}, "num_tokens"),
        ({"min_ngram": 4}, "min_ngram 4 must not exceed max_ngram 3"),
        ({"ngram": 2}, "unknown option"),
    ],
)
def test_bad_options(options, named):
    with pytest.raises(OptionError, match=named):
        create("pld", **options)
