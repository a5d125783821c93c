"""Proof that a model gives each slot the same bits in any block."""

from __future__ import annotations

import torch
from torch import Tensor

from multitoken.errors import OptionError
from multitoken.models.backbone import Backbone
from multitoken.models.block import Block, causal_block
from multitoken.models.runtime.compiled import packed_layers
from multitoken.models.runtime.linear import PackedLinear

PREFIX, SLOTS = 24, 16


def pair_rows(backbone: Backbone) -> None:
    """Let packed products of one row be computed as two.

    Some processors have a kernel for a single row that sums long inputs in another order than those for more rows.
    """
    for layer in packed_layers(backbone.module):
        if isinstance(layer, PackedLinear):
            layer.least_rows = 2


def check_exact(backbone: Backbone, name: str) -> None:
    """Raise `OptionError` unless tokens one by one, all at once, and among strangers give identical logits."""
    if backbone.runtime == "eager":
        raise OptionError("exact", True, f"{name} has no packed runtime on {backbone.device} here; leave it out")
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, backbone.vocab_size, (1, PREFIX + SLOTS), generator=generator)
    alone = _one_by_one(backbone, ids)
    if not (torch.equal(_at_once(backbone, ids), alone) and torch.equal(_among_strangers(backbone, ids), alone)):
        remedy = "leave it out" if backbone.compiled is None else "use runtime packed, or leave it out"
        raise OptionError(
            "exact",
            True,
            f"{backbone.config.model_type} has layers whose sums depend on the size of the block; {remedy}",
        )


def _cache(backbone: Backbone, ids: Tensor):
    cache = backbone.new_cache(1)
    cache.add_row()
    backbone.forward(causal_block(ids[:, :PREFIX], torch.zeros(1, dtype=torch.int64)), cache)
    cache.commit(0, PREFIX, [])
    return cache


def _one_by_one(backbone: Backbone, ids: Tensor) -> Tensor:
    cache, logits = _cache(backbone, ids), []
    for position in range(PREFIX, PREFIX + SLOTS):
        block = causal_block(ids[:, position : position + 1], torch.tensor([position]))
        logits.append(backbone.project(backbone.forward(block, cache))[0])
        cache.commit(0, 1, [])
    return torch.cat(logits)


def _at_once(backbone: Backbone, ids: Tensor) -> Tensor:
    block = causal_block(ids[:, PREFIX:], torch.tensor([PREFIX]))
    return backbone.project(backbone.forward(block, _cache(backbone, ids)))[0]


def _among_strangers(backbone: Backbone, ids: Tensor) -> Tensor:
    """Every second slot is a rejected candidate that nobody sees."""
    tokens = ids[:, PREFIX:].repeat_interleave(2, 1)
    tokens[:, 1::2] = tokens[:, 1::2].flip(1)
    positions = torch.arange(PREFIX, PREFIX + SLOTS).repeat_interleave(2)[None]
    visible = torch.tril(torch.ones(2 * SLOTS, 2 * SLOTS, dtype=torch.bool))
    visible[:, 1::2] = False
    visible |= torch.eye(2 * SLOTS, dtype=torch.bool)
    block = Block(tokens=tokens, positions=positions, visible=visible[None])
    return backbone.project(backbone.forward(block, _cache(backbone, ids))[:, ::2])[0]
