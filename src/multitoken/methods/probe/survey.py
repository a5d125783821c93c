"""What probes propose along a given text, for many probe vectors in one forward.

The text is laid out once, as a causal chain; chains of probes hang from chosen positions. No probe sees another chain,
so each reads the text exactly as a probe of the decode loop does.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from multitoken.models.backbone import Backbone
from multitoken.models.block import Block


def probe_block(tokens: Sequence[int], owners: Sequence[int], vectors: Tensor) -> Block:
    """A block of a whole text with probe chains.

    Args:
        tokens: the text, T ids.
        owners: position that owns each chain, C of them (a position may own several).
        vectors: probe vectors of the chains, [C, k, d].

    Returns:
        A block of T + C * k slots: the text, then the chains one after another.
    """
    chains, probes, _ = vectors.shape
    length = len(tokens)
    size = length + chains * probes
    device = vectors.device
    owner = torch.tensor(owners, device=device)
    visible = torch.zeros(size, size, dtype=torch.bool, device=device)
    steps = torch.arange(length, device=device)
    visible[:length, :length] = steps[:, None] >= steps
    prefix = owner[:, None] >= steps
    visible[length:, :length] = prefix.repeat_interleave(probes, 0)
    own = torch.ones(probes, probes, dtype=torch.bool, device=device).tril()
    visible[length:, length:] = torch.block_diag(*[own] * chains)
    positions = torch.cat([steps, (owner[:, None] + 1 + torch.arange(probes, device=device)).flatten()])
    ids = torch.zeros(size, dtype=torch.int64, device=device)
    ids[:length] = torch.tensor(list(tokens), device=device)
    index = torch.arange(size, device=device)
    return Block(
        tokens=ids[None],
        positions=positions[None],
        visible=visible[None],
        vectors=vectors.flatten(0, 1),
        vector_index=index[length:],
        probe_mask=(index >= length)[None],
    )


@torch.inference_mode()
def probe_hidden(backbone: Backbone, tokens: Sequence[int], owners: Sequence[int], vectors: Tensor) -> Tensor:
    """Hidden states of the probes of `probe_block`, [C, k, d]."""
    cache = backbone.new_cache()
    cache.add_row()
    hidden = backbone.forward(probe_block(tokens, owners, vectors), cache)[0, len(tokens) :]
    return hidden.view(*vectors.shape[:2], -1)
