"""Explaining where two outputs part."""

from __future__ import annotations

import pytest
import torch

from multitoken.bench.divergence import explain, first_difference, last_logits
from support import reference, tiny_model

PROMPT = [7, 8, 9, 40, 41]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [([1, 2], [1, 2], None), ([1, 2, 3], [1, 9, 3], 1), ([1, 2], [1, 2, 3], 2), ([], [5], 0), ([], [], None)],
)
def test_first_difference(a, b, expected):
    assert first_difference(a, b) == expected


def test_logits_are_those_of_an_ordinary_forward(backbone):
    ordinary = tiny_model().forward(torch.tensor([PROMPT])).logits[0, -1]
    torch.testing.assert_close(last_logits(backbone, PROMPT), ordinary, atol=1e-4, rtol=1e-4)


def test_equal_outputs_have_no_divergence(backbone):
    assert explain(backbone, PROMPT, [5, 6], [5, 6]) is None


def test_a_wrong_token_is_told_from_a_near_tie(backbone):
    right = reference(tiny_model(), PROMPT, 4)
    logits = last_logits(backbone, PROMPT + right[:2])
    worst = int(logits.argmin())
    found = explain(backbone, PROMPT, right, [*right[:2], worst, 9])
    assert found is not None
    assert (found.index, found.reference, found.other) == (2, right[2], worst)
    assert found.gap == pytest.approx(float(logits.max() - logits.min()), abs=1e-4)
    assert found.near_tie is False


def test_a_near_tie(backbone, monkeypatch):
    monkeypatch.setattr("multitoken.bench.divergence.last_logits", lambda *_: torch.tensor([0.0, 20.0, 20.001]))
    found = explain(backbone, PROMPT, [2], [1])
    assert found is not None
    assert found.near_tie is True


@pytest.mark.parametrize(("a", "b", "tokens"), [([4, 5], [4], (5, None)), ([4], [4, 5], (None, 5))])
def test_an_output_that_ended_early(backbone, a, b, tokens):
    found = explain(backbone, PROMPT, a, b)
    assert found is not None
    assert (found.index, found.reference, found.other) == (1, *tokens)
    assert found.near_tie is None and found.gap is None
