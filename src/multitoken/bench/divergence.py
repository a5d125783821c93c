"""Where two outputs part, and whether rounding explains it.

In float32 every lossless method must repeat plain decoding. In lower precision the kernels' rounding depends on the
block size, so two tokens whose logits nearly tie may change places; any other divergence is a bug.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from multitoken.models.backbone import Backbone
from multitoken.models.block import causal_block

# Largest gap, relative to the larger logit, that rounding through a whole model is taken to explain.
NEAR_TIE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
PREFILL = 512


@dataclass(frozen=True, slots=True)
class Divergence:
    """First difference between an output and the reference.

    Attributes:
        index: place of the first differing token in the output.
        reference, other: the two tokens there; None where an output had ended already.
        reference_logit, other_logit: their logits after the common prefix, from one plain forward in the model's own
            precision; None where a token is missing.
        near_tie: their gap is within rounding; None where it cannot be told.
    """

    index: int
    reference: int | None
    other: int | None
    reference_logit: float | None = None
    other_logit: float | None = None
    near_tie: bool | None = None

    @property
    def gap(self) -> float | None:
        """Logit of the reference's token less that of the other's."""
        if self.reference_logit is None or self.other_logit is None:
            return None
        return self.reference_logit - self.other_logit

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "gap": self.gap}


def first_difference(reference: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first differing token, the shorter length if one is a beginning of the other, None if equal."""
    for index, (a, b) in enumerate(zip(reference, other, strict=False)):
        if a != b:
            return index
    return None if len(reference) == len(other) else min(len(reference), len(other))


@torch.inference_mode()
def explain(
    backbone: Backbone,
    prompt: Sequence[int],
    reference: Sequence[int],
    other: Sequence[int],
    *,
    sampled: bool = False,
) -> Divergence | None:
    """The divergence of ``other`` from ``reference``, two outputs after ``prompt``; None if they are equal.

    ``sampled``: the outputs are not greedy, so that the gap of their logits does not tell a near-tie from a bug.
    """
    index = first_difference(reference, other)
    if index is None:
        return None
    if index >= min(len(reference), len(other)):
        ended = len(reference) == index
        return Divergence(index, None if ended else reference[index], other[index] if ended else None)
    logits = last_logits(backbone, [*prompt, *reference[:index]])
    a, b = float(logits[reference[index]]), float(logits[other[index]])
    tolerance = NEAR_TIE.get(backbone.dtype, NEAR_TIE[torch.float32]) * max(abs(a), abs(b), 1.0)
    near_tie = None if sampled else abs(a - b) <= tolerance
    return Divergence(index, reference[index], other[index], a, b, near_tie)


def last_logits(backbone: Backbone, tokens: Sequence[int]) -> torch.Tensor:
    """Logits after ``tokens`` by plain causal forwards, float32 [V]."""
    cache = backbone.new_cache()
    row = cache.add_row()
    ids = torch.tensor([list(tokens)], device=backbone.device)
    hidden = None
    for start in range(0, ids.shape[1], PREFILL):
        part = ids[:, start : start + PREFILL]
        hidden = backbone.forward(causal_block(part, torch.tensor([start], device=ids.device)), cache)
        cache.commit(row, part.shape[1], [])
    if hidden is None:
        raise ValueError("tokens must not be empty")
    return backbone.project(hidden[0, -1])
