"""Masks and the grouped kernel against their definitions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from multitoken.errors import ModelError
from multitoken.models.attention import block_masks, grouped_attention
from multitoken.models.block import Block, causal_block


@st.composite
def blocks(draw):
    """A block of random trees behind prefixes of different length, padded at the end."""
    rows, size = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    lengths = [draw(st.integers(0, 9)) for _ in range(rows)]
    visible = torch.zeros(rows, size, size, dtype=torch.bool)
    positions = torch.zeros(rows, size, dtype=torch.int64)
    for b in range(rows):
        used = draw(st.integers(1, size))
        for i in range(size):
            visible[b, i, i] = True
            if i < used:
                parent = draw(st.integers(-1, i - 1))
                positions[b, i] = lengths[b] if parent < 0 else positions[b, parent] + 1
                if parent >= 0:
                    visible[b, i] |= visible[b, parent]
    return Block(torch.zeros(rows, size, dtype=torch.int64), positions, visible), lengths


@given(blocks(), st.integers(1, 3), st.sampled_from([{None}, {4}, {None, 3}]))
def test_block_masks(drawn, groups, windows):
    """A slot sees the committed prefix of its row, then what ``visible`` says, each within the layer's window."""
    block, lengths = drawn
    span = max(lengths) + block.size
    masks = block_masks(block, lengths, span, torch.float32, groups, windows)
    assert set(masks) == windows
    for window, mask in masks.items():
        assert mask.shape == (block.rows, 1, groups * block.size, span)
        for b in range(block.rows):
            for i in range(block.size):
                for k in range(span):
                    if k < lengths[b]:
                        seen, position = True, k
                    elif k < lengths[b] + block.size:
                        seen = bool(block.visible[b, i, k - lengths[b]])
                        position = int(block.positions[b, k - lengths[b]])
                    else:
                        seen, position = False, 0
                    if window is not None:
                        seen = seen and int(block.positions[b, i]) - position < window
                    expected = 0.0 if seen else torch.finfo(torch.float32).min
                    for group in range(groups):
                        assert float(mask[b, 0, group * block.size + i, k]) == expected


def test_causal_block():
    block = causal_block(torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([0, 7]), first_row=2)
    assert block.positions.tolist() == [[0, 1, 2], [7, 8, 9]]
    assert torch.equal(block.visible, torch.tril(torch.ones(3, 3, dtype=torch.bool)).expand(2, 3, 3))
    assert (block.first_row, block.rows, block.size, block.causal) == (2, 2, 3, True)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_grouped_attention(groups):
    """Equals attention with keys and values repeated for every query head."""
    torch.manual_seed(groups)
    heads, size, span, width = 2, 5, 11, 8
    query = torch.randn(3, heads * groups, size, width)
    key, value = torch.randn(3, heads, span, width), torch.randn(3, heads, span, width + 2)
    allowed = torch.rand(3, 1, size, span) < 0.6
    allowed[..., 0] = True
    mask = torch.zeros(3, 1, size, span).masked_fill(~allowed, torch.finfo(torch.float32).min)
    output, weights = grouped_attention(nn.Module(), query, key, value, mask.repeat(1, 1, groups, 1), scaling=0.3)
    scores = query @ key.repeat_interleave(groups, 1).transpose(2, 3) * 0.3
    expected = scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ value.repeat_interleave(groups, 1)
    assert weights is None
    torch.testing.assert_close(output, expected.transpose(1, 2), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("extra", ["softcap", "s_aux"])
def test_scores_it_cannot_compute_are_refused(extra: Any):
    """Some families hand over more than queries, keys and values; leaving that out would change the logits."""
    query = key = value = torch.randn(1, 2, 3, 4)
    with pytest.raises(ModelError, match="eager"):
        grouped_attention(nn.Module(), query, key, value, torch.zeros(1, 1, 3, 3), **{extra: torch.ones(2)})  # type: ignore[arg-type]
