"""Many regions in one sequence, against one forward for each of them."""

from __future__ import annotations

import random

import pytest
import torch

from multitoken.models.adapter import Adapter
from multitoken.models.backbone import Backbone
from multitoken.models.block import Block, causal_block
from multitoken.training.corpus import Sample
from multitoken.training.regions import IGNORED, Text, lay_out, spread_owners, true_targets
from support import FAMILIES, tiny_backbone, tiny_model

RNG = random.Random(5)
TEXTS = [Text([RNG.randrange(3, 260) for _ in range(length)], first) for length, first in ((24, 6), (17, 3))]
OWNERS = [[6, 11, 12, 20], [3, 14]]  # regions overlap, and reach past the end
LENGTH = 3


def alone(backbone: Backbone, tokens: list[int], vectors: torch.Tensor | None) -> torch.Tensor:
    """Hidden states of a plain causal forward over ``tokens``, masks behind them."""
    masks = 0 if vectors is None else len(vectors)
    ids = torch.tensor([[*tokens, *[0] * masks]])
    block: Block = causal_block(ids, torch.tensor([0]))
    if vectors is not None:
        block.vectors, block.vector_index = vectors, torch.arange(len(tokens), len(tokens) + masks)
    cache = backbone.new_cache()
    cache.add_row()
    return backbone.forward(block, cache)[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_region_is_a_forward_of_its_own(family):
    """Student: prefix and masks. Teacher: prefix and the student's tokens. In one block, or behind texts read first."""
    backbone = tiny_backbone(family)
    vectors = torch.randn(LENGTH, backbone.width, generator=torch.Generator().manual_seed(0))
    regions = lay_out(TEXTS, OWNERS, LENGTH, backbone)
    written = torch.randint(3, 260, (len(regions.targets), LENGTH), generator=torch.Generator().manual_seed(1))
    expected, owners = [], []
    for text, places in zip(TEXTS, OWNERS, strict=True):
        for place in places:
            prefix = list(text.tokens[: place + 1])
            student = alone(backbone, prefix, vectors)
            teacher = alone(backbone, [*prefix, *written[len(expected)].tolist()], None)
            expected.append((student[-LENGTH:], teacher[-LENGTH:]))
            owners.append(student[place])
    for side, fill in enumerate((vectors, written)):
        wanted = backbone.project(torch.stack([pair[side] for pair in expected]))
        whole = backbone.trace(regions.whole_block(fill))
        text_hidden, text = backbone.read(regions.text_block())
        apart = backbone.trace(regions.region_block(fill), text)
        for hidden in (whole, apart):
            torch.testing.assert_close(backbone.logits(regions.states(hidden)), wanted, atol=2e-4, rtol=1e-3)
        for hidden in (whole, text_hidden):
            torch.testing.assert_close(regions.owner_states(hidden), torch.stack(owners), atol=2e-4, rtol=1e-3)


def test_bidirectional_masks_see_their_whole_region():
    backbone = tiny_backbone()
    vectors = torch.randn(LENGTH, backbone.width)
    changed = torch.cat([vectors[:-1], vectors[-1:] + 1])
    for bidirectional in (False, True):
        regions = lay_out(TEXTS, OWNERS, LENGTH, backbone, bidirectional=bidirectional)
        before, after = (regions.states(backbone.trace(regions.whole_block(fill))) for fill in (vectors, changed))
        assert torch.equal(before[:, 0], after[:, 0]) != bidirectional
        assert not torch.equal(before[:, -1], after[:, -1])


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2", "qwen2_moe", "phi3"])
def test_gated_adapter_leaves_other_slots_bit_identical(family):
    backbone = Backbone(tiny_model(family, seed=4))
    adapter = Adapter.of(backbone, rank=4, alpha=8, gated=True)
    with torch.no_grad():
        for parameter in adapter.up.values():
            parameter.normal_(0, 0.3)
    regions = lay_out(TEXTS, OWNERS, LENGTH, backbone)
    vectors = torch.randn(LENGTH, backbone.width)
    base = backbone.trace(regions.whole_block(vectors))
    adapter.attach(backbone)
    try:
        assert torch.equal(backbone.trace(regions.whole_block(vectors)), base)  # no slots named
        block = regions.whole_block(vectors)
        block.adapted = {adapter: regions.slots(block)}
        adapted = backbone.trace(block)
    finally:
        adapter.detach()
    others = ~block.probe_mask  # type: ignore[operator]
    assert torch.equal(backbone.logits(adapted)[others], backbone.logits(base)[others])
    assert (regions.states(adapted) - regions.states(base)).abs().amax(-1).min() > 1e-3
    assert torch.equal(backbone.trace(regions.whole_block(vectors)), base)


def test_gradients_reach_vectors_and_adapter_only():
    backbone = Backbone(tiny_model("llama", seed=4))
    adapter = Adapter.of(backbone, rank=2, alpha=2, gated=True)
    adapter.attach(backbone)
    regions = lay_out(TEXTS, OWNERS, LENGTH, backbone)
    vectors = torch.randn(LENGTH, backbone.width, requires_grad=True)
    _, text = backbone.read(regions.text_block())
    block = regions.region_block(vectors)
    block.adapted = {adapter: regions.slots(block)}
    backbone.logits(regions.states(backbone.trace(block, text))).logsumexp(-1).sum().backward()
    adapter.detach()
    assert vectors.grad is not None and (vectors.grad.abs().amax(-1) > 0).all()
    assert all(parameter.grad is not None and parameter.grad.abs().max() > 0 for parameter in adapter.up.values())
    assert all(parameter.grad is None for parameter in backbone.module.parameters())


def test_owners_are_spread_from_a_random_offset():
    text = TEXTS[0]
    rng = random.Random(0)
    drawn = [spread_owners(text, 4, rng) for _ in range(200)]
    assert {place for owners in drawn for place in owners} == set(range(6, 23))
    assert all(len(owners) == 4 and owners == sorted(owners) for owners in drawn)
    assert spread_owners(text, 99, rng) == list(range(6, 23))


def test_targets_and_the_end_of_text():
    sample = Sample([7, 8, 9], [10, 11, 12, 2], "self", "stop")
    text = Text.of(sample, 100)
    assert text is not None and text.first == 2 and text.end
    assert true_targets(text, [2, 5], 2) == [[10, 11, 12], [2, 2, 2]]
    cut = Text.of(sample, 6)
    assert cut is not None and not cut.end and true_targets(cut, [4], 2) == [[12, IGNORED, IGNORED]]
    assert Text.of(sample, 4) is None
