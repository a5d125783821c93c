"""The block: everything that one forward processes, as flat tensors.

A block row holds, in order: *certain* tokens (committed, not yet in the cache; the last of them is the
root), candidate *nodes*, then *probes*. Rows shorter than the block are padded at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from multitoken.models.adapter import Adapter


@dataclass(slots=True)
class Block:
    """Input of one `Backbone.forward`, for the cache rows `first_row .. first_row + B - 1`.

    Attributes:
        tokens: ids, int64 [B, Q]; ignored where a vector replaces the embedding.
        positions: position of each slot in its sequence, int64 [B, Q].
        visible: who sees whom inside the block, bool [B, Q, Q]; ``visible[b, i, j]``: slot i sees slot j.
            Every slot also sees the whole committed prefix of its row.
        first_row: first cache row that the block covers.
        vectors: input vectors of synthetic slots, [M, d], or None.
        vector_index: where they go, as indices into the flattened [B * Q] slots, int64 [M].
        probe_mask: True at probe slots, bool [B, Q], or None when the block has none.
        causal: the block is a plain causal chain in every row.
        adapted: the slots that each adapter acts on, as indices into the flattened slots, int64 [n].
    """

    tokens: Tensor
    positions: Tensor
    visible: Tensor
    first_row: int = 0
    vectors: Tensor | None = None
    vector_index: Tensor | None = None
    probe_mask: Tensor | None = None
    causal: bool = False
    adapted: Mapping[Adapter, Tensor] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return self.tokens.shape[0]

    @property
    def size(self) -> int:
        """Block size: slots per row, padding included."""
        return self.tokens.shape[1]


def causal_block(tokens: Tensor, start: Tensor, first_row: int = 0) -> Block:
    """A block of committed tokens only. ``tokens`` int64 [B, Q]; ``start`` int64 [B], first position of each row."""
    size = tokens.shape[1]
    steps = torch.arange(size, device=tokens.device)
    visible = steps[:, None] >= steps[None, :]
    return Block(
        tokens=tokens,
        positions=start[:, None] + steps,
        visible=visible.expand(tokens.shape[0], size, size),
        first_row=first_row,
        causal=True,
    )
