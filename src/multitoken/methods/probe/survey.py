"""Texts with chains of probes hanging from many of their positions, in one forward.

A text is laid out once, as a causal chain; the chains come behind it. No text slot sees a chain and no chain sees
another, so each chain reads the text exactly as a probe of the decode loop does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from multitoken.models.backbone import Backbone
from multitoken.models.block import Block


@dataclass(frozen=True, slots=True)
class Chains:
    """A block of texts with chains, one text a row: ``width`` text slots, then the chains one after another.

    Attributes:
        block: its chain slots hold token 0 until vectors or tokens are put there.
        width: text slots of each row.
        text_mask: which of them are text and not padding, bool [B, width].
        row: row of each chain, int64 [C].
        owners: column of each chain's owner, int64 [C].
        slots: columns of each chain, int64 [C, k].
    """

    block: Block
    width: int
    text_mask: Tensor
    row: Tensor
    owners: Tensor
    slots: Tensor


def chain_block(
    texts: Sequence[Sequence[int]],
    owners: Sequence[Sequence[int]],
    length: int,
    device: torch.device | str = "cpu",
    bidirectional: bool = False,
) -> Chains:
    """Lay out ``texts`` with one chain of ``length`` slots under each of ``owners`` (positions, per text).

    Args:
        bidirectional: a chain's slots see all of their chain, not only what is before them.
    """
    width = max(map(len, texts))
    size = width + length * max(map(len, owners))
    tokens = np.zeros((len(texts), size), dtype=np.int64)
    positions = np.zeros((len(texts), size), dtype=np.int64)
    visible = np.zeros((len(texts), size, size), dtype=bool)
    diagonal, steps = np.arange(size), np.arange(width)
    visible[:, diagonal, diagonal] = True  # padding sees itself: attention over nothing is not defined
    own = np.ones((length, length), dtype=bool) if bidirectional else np.tri(length, dtype=bool)
    rows, owned, chains = [], [], []
    for b, (text, places) in enumerate(zip(texts, owners, strict=True)):
        count, place = len(text), np.asarray(places, dtype=np.int64)
        stop = width + len(place) * length
        tokens[b, :count] = text
        positions[b, :count] = steps[:count]
        visible[b, :count, :count] = np.tri(count, dtype=bool)
        positions[b, width:stop] = (place[:, None] + 1 + np.arange(length)).ravel()
        visible[b, width:stop, :width] = np.repeat(place[:, None] >= steps, length, axis=0)
        visible[b, width:stop, width:stop] = np.kron(np.eye(len(place), dtype=bool), own)
        rows.append(np.full(len(place), b))
        owned.append(place)
        chains.append(np.arange(width, stop).reshape(-1, length))
    row, owner, slots = (torch.from_numpy(np.concatenate(parts)).to(device) for parts in (rows, owned, chains))
    probes = torch.zeros(len(texts), size, dtype=torch.bool, device=device)
    probes[row[:, None], slots] = True
    block = Block(
        tokens=torch.from_numpy(tokens).to(device),
        positions=torch.from_numpy(positions).to(device),
        visible=torch.from_numpy(visible).to(device),
        probe_mask=probes,
    )
    lengths = torch.tensor([len(text) for text in texts], device=device)
    text_mask = torch.arange(width, device=device) < lengths[:, None]
    return Chains(block, width, text_mask, row, owner, slots)


def probe_block(tokens: Sequence[int], owners: Sequence[int], vectors: Tensor) -> Block:
    """A block of a whole text with probe chains.

    Args:
        tokens: the text, T ids.
        owners: position that owns each chain, C of them (a position may own several).
        vectors: probe vectors of the chains, [C, k, d].

    Returns:
        A block of T + C * k slots: the text, then the chains one after another.
    """
    chains = chain_block([tokens], [owners], vectors.shape[1], vectors.device)
    chains.block.vectors, chains.block.vector_index = vectors.flatten(0, 1), chains.slots.flatten()  # of the one row
    return chains.block


@torch.inference_mode()
def probe_hidden(backbone: Backbone, tokens: Sequence[int], owners: Sequence[int], vectors: Tensor) -> Tensor:
    """Hidden states of the probes of `probe_block`, [C, k, d]."""
    cache = backbone.new_cache()
    cache.add_row()
    hidden = backbone.forward(probe_block(tokens, owners, vectors), cache)[0, len(tokens) :]
    return hidden.view(*vectors.shape[:2], -1)
