"""Probe vectors: where they start and how they follow the text.

Source: Goel, Gagrani, Lee, Lott, arXiv 2603.17942 (`mean`, `last`, `sample`, `offset`, and the running update); the
other inits are this project's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from multitoken.models.backbone import Backbone

OFFSET_SCALE = 5.0  # standard deviations of the paper's stress test


@dataclass(frozen=True, slots=True)
class EmbeddingStatistics:
    """Mean and standard deviation per dimension over the embedding table as the model sees it, float32 [d]."""

    mean: Tensor
    deviation: Tensor

    @classmethod
    @torch.inference_mode()
    def of(cls, backbone: Backbone, chunk: int = 8192) -> EmbeddingStatistics:
        total = torch.zeros(backbone.width, dtype=torch.float64, device=backbone.device)
        squares = torch.zeros_like(total)
        for low in range(0, backbone.vocab_size, chunk):
            ids = torch.arange(low, min(low + chunk, backbone.vocab_size), device=backbone.device)
            values = backbone.embed(ids).double()
            total += values.sum(0)
            squares += values.square().sum(0)
        mean = total / backbone.vocab_size
        variance = (squares / backbone.vocab_size - mean.square()).clamp(min=0)
        return cls(mean.float(), variance.sqrt().float())


def initial_vectors(
    init: str,
    probes: int,
    prompt: Sequence[int],
    backbone: Backbone,
    statistics: EmbeddingStatistics,
    *,
    offset_scale: float = OFFSET_SCALE,
    seed: int = 0,
) -> Tensor:
    """First probe vectors of a row, float32 [k, d], for the inits that need no calibration."""
    if init == "vocab":
        return statistics.mean.repeat(probes, 1)
    if init == "offset":
        return (statistics.mean + offset_scale * statistics.deviation).repeat(probes, 1)
    if init == "sample":
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(probes, backbone.width, generator=generator).to(backbone.device)
        return statistics.mean + noise * statistics.deviation
    embeds = backbone.embed(torch.tensor(list(prompt), device=backbone.device)).float()
    if init == "mean":
        return embeds.mean(0).repeat(probes, 1)
    if init == "last":
        # The first prompt token stands in where the prompt is shorter than the number of probes.
        return embeds[[max(len(prompt) - probes + i, 0) for i in range(probes)]].clone()
    raise ValueError(f"unknown init {init!r}")


def follow(vectors: Tensor, embeds: Tensor, mixing: float) -> Tensor:
    """Vectors after the committed tokens with ``embeds`` [n, d]: m <- m + mixing * (e - m), one token at a time."""
    for embed in embeds.float():
        vectors = torch.lerp(vectors, embed.expand_as(vectors), mixing)
    return vectors
