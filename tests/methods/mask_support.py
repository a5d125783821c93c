"""Checkpoints of random masks, and the paper's decoding written out with one forward per step."""

from __future__ import annotations

from pathlib import Path

import torch

from multitoken.methods.probe.learned import Kind, save_learned
from multitoken.models.adapter import Adapter
from multitoken.models.backbone import Backbone
from multitoken.models.block import causal_block

VECTORS = 5


def checkpoint(folder: Path, backbone: Backbone, kind: Kind = "gated-lora", seed: int = 0) -> Path:
    """A folder with random vectors and, by ``kind``, a random adapter."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(VECTORS, backbone.width, generator=generator)
    adapter = None
    if kind.endswith("lora"):
        adapter = Adapter.of(backbone, rank=3, alpha=6, gated=kind == "gated-lora", seed=seed)
        for parameter in adapter.up.values():
            parameter.data.normal_(0, 0.2, generator=generator)
    save_learned(folder, kind, vectors, backbone.fingerprint, {"model": "tiny"}, adapter)
    return folder


def predictions(backbone: Backbone, tokens: list[int], vectors: torch.Tensor, adapter: Adapter | None) -> torch.Tensor:
    """Logits of the last token and of the masks behind it, [1 + n, V], by a forward over everything."""
    count, masks = len(tokens), len(vectors)
    block = causal_block(torch.tensor([[*tokens, *[0] * masks]]), torch.tensor([0]))
    block.vectors, block.vector_index = vectors, torch.arange(count, count + masks)
    if adapter is not None:
        block.adapted = {adapter: torch.arange(count if adapter.gated else 0, count + masks)}
    with torch.no_grad():
        return backbone.logits(backbone.trace(block))[0, count - 1 :]


def confadapt(backbone, prompt, vectors, adapter, threshold: float, tokens: int) -> list[int]:
    """The longest prefix of a block's predictions whose probabilities all exceed the threshold, at least one."""
    text = list(prompt)
    while len(text) < len(prompt) + tokens:
        best = predictions(backbone, text, vectors, adapter).softmax(-1).max(-1)
        sure = int((best.values > threshold).long().cumprod(0).sum())
        text += best.indices[: max(sure, 1)].tolist()
    return text[len(prompt) : len(prompt) + tokens]
