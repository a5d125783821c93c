"""Attention over a block: the masks, and a kernel that shares keys and values among grouped heads.

The mask of a block is the same for all layers of one kind, so it is made once per forward, already repeated for the
query heads that share one key head. `grouped_attention` then folds those heads into the query axis and never copies
keys or values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from multitoken.errors import ModelError
from multitoken.models.block import Block

NAME = "multitoken"
EXACT = "multitoken_exact"
OURS = (NAME, EXACT)
SCORE_CHANGES = ("softcap", "s_aux", "position_bias")  # what some families add to the scores by keyword


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention, query [B, Hq, Q, D], key and value [B, Hk, K, D] -> [B, Q, Hq, D].

    ``attention_mask`` is additive, [B, 1, (Hq / Hk) * Q, K], as `block_masks` makes it; any other mask is handed to
    Transformers' own implementation, so that stock ``generate`` keeps working on the same module.
    """
    refuse_changes(kwargs)
    batch, heads, size, width = query.shape
    groups = heads // key.shape[1]
    if attention_mask is None or attention_mask.shape[-2] != groups * size:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    output = nn.functional.scaled_dot_product_attention(
        query.reshape(batch, key.shape[1], groups * size, width),
        key,
        value,
        attn_mask=attention_mask,
        dropout_p=dropout,
        scale=scaling,
    )
    output = output.reshape(batch, heads, size, value.shape[-1])
    return output.transpose(1, 2).contiguous(), None


def exact_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """`grouped_attention` in float64, rounded once.

    The order in which keys are summed depends on where they lie in the cache and on the size of the block; in float64
    what it changes is lost in the rounding, so a slot has the same bits in any block.
    """
    refuse_changes(kwargs)
    batch, heads, size, width = query.shape
    groups = heads // key.shape[1]
    if attention_mask is None or attention_mask.shape[-2] != groups * size:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    folded = query.reshape(batch, key.shape[1], groups * size, width).double()
    scores = folded @ key.double().transpose(-1, -2)
    scores *= width**-0.5 if scaling is None else scaling
    scores += attention_mask
    output = (scores.softmax(-1) @ value.double()).to(query.dtype)
    return output.reshape(batch, heads, size, value.shape[-1]).transpose(1, 2).contiguous(), None


def capped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float,
    softcap: float,
) -> tuple[Tensor, None]:
    """Attention with soft-capped scores, as such families' eager code has it; the mask is [B, 1, Q, K]."""
    batch, heads, size, width = query.shape
    folded = query.reshape(batch, key.shape[1], -1, width)
    scores = (folded @ key.transpose(-1, -2)).reshape(batch, heads, size, -1) * scaling
    scores = torch.tanh(scores / softcap) * softcap + attention_mask
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    output = weights.reshape(batch, key.shape[1], -1, key.shape[2]) @ value
    return output.reshape(batch, heads, size, -1).transpose(1, 2).contiguous(), None


def refuse_changes(kwargs: dict[str, Any]) -> None:
    """Raise `ModelError` where a family asks for scores that `grouped_attention` cannot compute."""
    if unknown := [name for name in SCORE_CHANGES if kwargs.get(name) is not None]:
        raise ModelError(
            f"attn={NAME!r} cannot compute {' and '.join(unknown)}, which this model uses; use attn='eager'"
        )


def register() -> None:
    """Make both kernels known to Transformers, under the names ``multitoken`` and ``multitoken_exact``."""
    for name, function in ((NAME, grouped_attention), (EXACT, exact_attention)):
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, sdpa_mask)


def block_masks(
    block: Block, lengths: list[int], span: int, dtype: torch.dtype, groups: int, windows: set[int | None]
) -> dict[int | None, Tensor]:
    """Additive masks of a block, one per attention window (None: full attention).

    Args:
        block: the block; its rows have ``lengths`` committed entries in the cache.
        span: key length K of the forward.
        groups: query heads per key head to repeat the mask for (1: no repetition).
        windows: the windows that the model's layers use.

    Returns:
        window -> tensor [B, 1, groups * Q, K] with 0 where a slot is seen and the dtype's minimum elsewhere.
    """
    size, device = block.size, block.tokens.device
    allowed = torch.zeros(block.rows, size, span, dtype=torch.bool, device=device)
    if block.rows == 1:
        length = lengths[0]
        allowed[:, :, :length] = True
        allowed[:, :, length : length + size] = block.visible
        key_positions = torch.arange(span, device=device)[None].clone()
        key_positions[:, length : length + size] = block.positions
    else:
        start = torch.tensor(lengths, device=device)
        offset = torch.arange(span, device=device)[None] - start[:, None]
        inside = (offset >= 0) & (offset < size)
        clamped = offset.clamp(0, size - 1)
        seen = block.visible.gather(2, clamped[:, None, :].expand(-1, size, -1))
        allowed = torch.where(inside[:, None, :], seen, (offset < 0)[:, None, :])
        key_positions = torch.where(inside, block.positions.gather(1, clamped), start[:, None] + offset)
    return additive_masks(allowed, block.positions, key_positions, dtype, groups, windows)


def additive_masks(
    allowed: Tensor, positions: Tensor, key_positions: Tensor, dtype: torch.dtype, groups: int, windows: set[int | None]
) -> dict[int | None, Tensor]:
    """Masks as of `block_masks`: ``allowed`` [B, Q, K] says who sees whom, at positions [B, Q] and [B, K]."""
    masks: dict[int | None, Tensor] = {}
    for window in windows:
        kept = allowed
        if window is not None:
            kept = allowed & (positions[:, :, None] - key_positions[:, None, :] < window)
        mask = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
        mask.masked_fill_(~kept, torch.finfo(dtype).min)
        masks[window] = mask.repeat(1, groups, 1)[:, None]
    return masks
