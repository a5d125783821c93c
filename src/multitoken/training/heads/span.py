"""Training of what says how many heads to believe: the paper's linear predictor, and the gate it is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from multitoken.methods.heads.modules import Gate, SpanPredictor
from multitoken.training.heads.labels import Labels


class SpanObjective:
    """Trains a `SpanPredictor` (cross-entropy over spans) or a `Gate` (one binary decision per head)."""

    def __init__(self, module: SpanPredictor | Gate, train: Labels, held_out: Labels, key: Mapping[str, Any]):
        self._module, self._train, self._held_out = module, train, held_out
        self.key = {**key, "predictor": type(module).__name__}

    @property
    def module(self) -> nn.Module:
        return self._module

    @property
    def size(self) -> int:
        return len(self._train.spans)

    def loss(self, items: Sequence[int], step: int) -> Tensor:
        index = torch.tensor(list(items), device=self._train.spans.device)
        return self._loss(self._module(self._train.hidden[index].float()), self._train.spans[index])

    def evaluate(self) -> dict[str, float]:
        """Loss, share of spans that are predicted exactly, and the mean of predicted less true spans."""
        scores = self._module(self._held_out.hidden.float())
        spans = self._held_out.spans
        said = predicted_spans(self._module, scores)
        return {
            "loss": float(self._loss(scores, spans)),
            "accuracy": float((said == spans).float().mean()),
            "excess": float((said - spans).float().mean()),
        }

    @torch.no_grad()
    def confusion(self) -> list[list[int]]:
        """Held-out places by true span (row) and predicted span (column)."""
        said = predicted_spans(self._module, self._module(self._held_out.hidden.float()))
        size = self._module.linear.out_features if isinstance(self._module, SpanPredictor) else self._gates + 1
        return torch.bincount(self._held_out.spans * size + said, minlength=size * size).view(size, size).tolist()

    @property
    def _gates(self) -> int:
        last = self._module.layers[-1]  # type: ignore[union-attr, index]
        return int(last.out_features)  # type: ignore[arg-type]

    def _loss(self, scores: Tensor, spans: Tensor) -> Tensor:
        if isinstance(self._module, SpanPredictor):
            return nn.functional.cross_entropy(scores.float(), spans)
        levels = torch.arange(scores.shape[-1], device=spans.device)
        return nn.functional.binary_cross_entropy_with_logits(scores.float(), (spans[:, None] > levels).float())


def predicted_spans(module: nn.Module, scores: Tensor) -> Tensor:
    """Spans from the scores of a predictor or gate, int64 [N]."""
    if isinstance(module, SpanPredictor):
        return scores.argmax(-1)
    return (scores > 0).int().cumprod(-1).sum(-1).long()
