"""Heads for tests: random ones, and ones that know the cycle of the cycling model."""

from __future__ import annotations

from pathlib import Path

import torch
from lossless import CYCLE

from multitoken.methods.heads.checkpoint import TrainedHeads, save_heads
from multitoken.methods.heads.modules import Gate, Heads, HeadShape, Kind, SequentialBlock, SpanPredictor
from multitoken.models.backbone import Backbone
from support import VOCAB

KINDS: tuple[Kind, ...] = ("parallel", "sequential", "competing")


def random_heads(kind: Kind = "sequential", heads: int = 3, shared: bool = True, width: int = 64) -> TrainedHeads:
    """Heads that say something, with a vocabulary that lacks every fifth token."""
    torch.manual_seed(heads)
    shape = HeadShape(kind, heads, width, rank=32, shared=shared)
    vocabulary = torch.tensor([token for token in range(VOCAB) if token % 5])
    trained = TrainedHeads(Heads(shape, vocabulary), SpanPredictor(width, heads), Gate(width, heads))
    for module in (trained.heads, trained.span, trained.gate):
        assert module is not None
        for parameter in module.parameters():
            parameter.data.normal_(0, 0.3)
    return trained


def write(folder: Path, trained: TrainedHeads, backbone: Backbone) -> Path:
    save_heads(folder, trained, {"model": "tiny", "fingerprint": backbone.fingerprint}, torch.float32)
    return folder


def always(trained: TrainedHeads, span: int) -> TrainedHeads:
    """The same heads with a predictor that says ``span`` whatever it sees."""
    linear = trained.span.linear
    linear.weight.data.zero_()
    linear.bias.data.fill_(-20.0)
    linear.bias.data[span] = 20.0
    return trained


def knowing(backbone: Backbone, heads: int = 3) -> TrainedHeads:
    """Sequential heads that map the embedding of a token of the cycle to its successor, and never doubt."""
    shape = HeadShape("sequential", heads, backbone.width, rank=len(CYCLE), shared=False)
    trained = TrainedHeads(Heads(shape, torch.arange(backbone.vocab_size)), SpanPredictor(backbone.width, heads))
    embeds = torch.nn.functional.normalize(backbone.embed(torch.tensor(CYCLE)).float(), dim=-1)
    head = backbone.head_rows(torch.tensor(CYCLE))[0]
    for level, block in enumerate(trained.heads.blocks):
        assert isinstance(block, SequentialBlock)
        with torch.no_grad():
            # Unit i answers to token i; what it adds drowns the state before it.
            block.inner.weight.zero_()
            block.inner.weight[:, backbone.width :] = 8 * embeds
            block.bias.fill_(-45.0)
            block.outer.weight.copy_(10.0 ** (level + 1) * head.roll(-1, 0).T)
    return always(trained, heads)
