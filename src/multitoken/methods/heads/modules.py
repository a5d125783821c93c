"""Heads that predict several tokens ahead from one hidden state of a frozen model.

Source: Xie, Zhou, "CLP: Collocation-Length Prediction for Zero-Loss Adaptive Multi-Token Inference", arXiv 2606.10935.
The model's own LM head gives the next token, n + 1; head i (from 1) is responsible for n + 1 + i. A head changes the
hidden state, and the model's frozen LM head reads the result.

- ``parallel``, the paper's: h + SiLU(W_i h + b_i), W_i zero at first.
- ``sequential``: since n + 1 is known when the heads run, head i also looks at the embedding of the token before its
  own: s_i = s_(i-1) + U SiLU(V [s_(i-1); e_(n+i)] + b_i), s_0 = h (compare Hydra, EAGLE, and DeepSeek-V3's MTP module).
- ``competing``: as parallel, but head 1 predicts n + 1 beside the LM head. A baseline that shows what goes wrong.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from multitoken.models.backbone import Backbone

Kind = Literal["parallel", "sequential", "competing"]
GATE_PARAMETERS = 1_000_000
EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class HeadShape:
    """What a checkpoint must say for its heads to be built.

    Attributes:
        kind: see the module.
        heads: their number k.
        width: of hidden states, d.
        rank: inner width of sequential blocks.
        shared: sequential heads share one block and differ in the bias b_i alone.
    """

    kind: Kind
    heads: int
    width: int
    rank: int = 768
    shared: bool = True

    @property
    def offset(self) -> int:
        """Tokens between the hidden state's own next token and the first head's: 0 for competing heads."""
        return 0 if self.kind == "competing" else 1

    @property
    def facts(self) -> dict[str, Any]:
        return asdict(self)


def normed(x: Tensor) -> Tensor:
    """Each vector scaled to a root mean square of 1."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON)


class ParallelBlock(nn.Module):
    """h + SiLU(W h + b)."""

    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + nn.functional.silu(self.linear(hidden))


class SequentialBlock(nn.Module):
    """s + U SiLU(V [s; e] + b_i), for ``levels`` heads i that share U and V; both inputs normed."""

    def __init__(self, width: int, rank: int, levels: int):
        super().__init__()
        self.inner = nn.Linear(2 * width, rank, bias=False)
        self.bias = nn.Parameter(torch.zeros(levels, rank))
        self.outer = nn.Linear(rank, width, bias=False)
        nn.init.zeros_(self.outer.weight)

    def forward(self, state: Tensor, embeds: Tensor, level: int) -> Tensor:
        x = torch.cat([normed(state), normed(embeds)], -1)
        return state + self.outer(nn.functional.silu(self.inner(x) + self.bias[level]))


class Heads(nn.Module):
    """The k heads of a model.

    Args:
        shape: their kind and size.
        vocabulary: ids that the heads may propose, int64 [S], ascending.
    """

    vocabulary: Tensor

    def __init__(self, shape: HeadShape, vocabulary: Tensor):
        super().__init__()
        self.shape = shape
        self.register_buffer("vocabulary", vocabulary, persistent=False)
        self.blocks = nn.ModuleList(_blocks(shape))

    @property
    def sequential(self) -> bool:
        return self.shape.kind == "sequential"

    def advance(self, level: int, anchor: Tensor, state: Tensor, embeds: Tensor) -> Tensor:
        """States that head ``level`` (from 0) reads its logits from, [N, d].

        Args:
            anchor: hidden states of the last tokens that the model has read, [N, d].
            state: what the head before gave; for the first head ``anchor`` itself.
            embeds: the model's embeddings of the token before the one that this head predicts, [N, d].
        """
        if not self.sequential:
            return self.blocks[level](anchor)
        if self.shape.shared:
            return self.blocks[0](state, embeds, level)
        return self.blocks[level](state, embeds, 0)


def _blocks(shape: HeadShape) -> list[nn.Module]:
    if shape.kind != "sequential":
        return [ParallelBlock(shape.width) for _ in range(shape.heads)]
    if shape.shared:
        return [SequentialBlock(shape.width, shape.rank, shape.heads)]
    return [SequentialBlock(shape.width, shape.rank, 1) for _ in range(shape.heads)]


class Reader:
    """The frozen model's side of heads: embeddings, and its LM head for the tokens that heads may propose.

    Args:
        backbone: the model.
        vocabulary: int64 [S].
        dtype: heads compute in it.
    """

    def __init__(self, backbone: Backbone, vocabulary: Tensor, dtype: torch.dtype):
        self._backbone, self.dtype = backbone, dtype
        weight, bias = backbone.head_rows(vocabulary.to(backbone.device))
        # Made in inference mode; a copy outside of it may take part in training.
        self._weight, self._bias = weight.to(dtype, copy=True), bias.to(dtype, copy=True)

    def logits(self, state: Tensor) -> Tensor:
        """Logits over the vocabulary of the heads: [..., d] -> float32 [..., S]."""
        return self._backbone.finish(nn.functional.linear(state, self._weight, self._bias))

    def embed(self, tokens: Tensor) -> Tensor:
        """The model's embeddings, [..., d]."""
        with torch.no_grad():
            return self._backbone.embed(tokens).to(self.dtype)


class SpanPredictor(nn.Module):
    """How many of the k heads to believe: one linear layer on the hidden state, with a score for each of 0..k."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.linear = nn.Linear(width, heads + 1)

    def forward(self, hidden: Tensor) -> Tensor:
        """[N, d] -> [N, k + 1]."""
        return self.linear(normed(hidden))


class Gate(nn.Module):
    """The baseline of about a million parameters: for each head, whether to believe it and all before it."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        inner = GATE_PARAMETERS // (width + heads + 1)
        self.layers = nn.Sequential(nn.Linear(width, inner), nn.SiLU(), nn.Linear(inner, heads))

    def forward(self, hidden: Tensor) -> Tensor:
        """[N, d] -> [N, k] logits."""
        return self.layers(normed(hidden))
