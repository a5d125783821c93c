"""One forward over a block, against ordinary forwards of the same model."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig

from multitoken.models.backbone import layer_windows, logit_scale
from multitoken.models.block import Block, causal_block
from multitoken.models.cache import LayerShape
from support import FAMILIES, tiny_backbone, tiny_model


@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_logits(family):
    """Two causal chunks give the logits of one forward, past the sliding window."""
    backbone, ids = tiny_backbone(family), torch.randint(3, 260, (1, 20))
    cache = backbone.new_cache()
    cache.add_row()
    hidden = []
    for start, stop in ((0, 13), (13, 20)):
        hidden.append(backbone.forward(causal_block(ids[:, start:stop], torch.tensor([start])), cache))
        cache.commit(0, stop - start, [])
    logits = backbone.project(torch.cat(hidden, 1))
    assert logits.dtype == torch.float32
    expected = tiny_model(family).forward(ids).logits
    torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-3)


def test_vectors_take_the_place_of_embeddings():
    backbone, ids = tiny_backbone(), torch.tensor([[5, 9, 30, 31]])
    swapped = torch.tensor([[5, 0, 30, 0]])
    visible = torch.tril(torch.ones(1, 4, 4, dtype=torch.bool))
    blocks = [
        Block(ids, torch.arange(4)[None], visible),
        Block(
            swapped,
            torch.arange(4)[None],
            visible,
            vectors=backbone.embed(torch.tensor([9, 31])),
            vector_index=torch.tensor([1, 3]),
        ),
    ]
    outputs = []
    for block in blocks:
        cache = backbone.new_cache()
        cache.add_row()
        outputs.append(backbone.forward(block, cache))
    assert torch.equal(*outputs)
    assert backbone.block is None


def test_facts():
    backbone = tiny_backbone("qwen3")
    assert (backbone.width, backbone.vocab_size, backbone.max_positions, backbone.bos) == (64, 262, 256, 1)
    assert backbone.dtype == torch.float32 and backbone.device.type == "cpu"
    assert backbone._shapes == [LayerShape(2, 16, 16)] * 3


def test_fingerprint_knows_weights_and_config():
    same, other = tiny_backbone("llama", 0).fingerprint, tiny_backbone("llama", 1).fingerprint
    assert same == tiny_backbone("llama", 0).fingerprint and same.startswith("llama-")
    assert len({same, other, tiny_backbone("mistral").fingerprint}) == 3


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (dict(sliding_window=None), {"single": None}),
        (dict(sliding_window=8), {"single": 8}),
        (dict(sliding_window=8, use_sliding_window=False), {"single": None}),
        (dict(sliding_window=8, layer_types=["sliding_attention"] * 2), {"single": 8}),
        (dict(sliding_window=8, layer_types=["full_attention"] * 2), {"single": None}),
        (
            dict(sliding_window=8, layer_types=["full_attention", "sliding_attention"]),
            {"full_attention": None, "sliding_attention": 8},
        ),
    ],
)
def test_layer_windows(settings, expected):
    config = LlamaConfig()
    for key, value in settings.items():
        setattr(config, key, value)
    assert layer_windows(config) == expected


def test_logit_scale():
    assert logit_scale(SimpleNamespace()) == 1.0
    assert logit_scale(SimpleNamespace(logits_scaling=4.0)) == 0.25
    assert logit_scale(SimpleNamespace(logit_scale=0.5)) == 0.5
