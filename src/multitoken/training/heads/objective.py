"""What heads learn: the model's own continuation, at each head's distance.

Cross-entropy at every offset through the frozen LM head, deeper heads weighing less (0.8 per level) and coming in one
after the other. Part of the target may be the model's whole distribution at the place predicted, which is at hand:
the state from which the model wrote that very token is in the same window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from multitoken.methods.heads.modules import Heads, Reader
from multitoken.training.heads.states import States

EVALUATED = 64  # held-out windows


@dataclass(frozen=True, slots=True)
class HeadLoss:
    """How heads are judged while they learn.

    Attributes:
        window: places of an answer that one item holds.
        decay: weight of a head relative to the one before it.
        rise: steps over which the second head's weight grows to its full size, the third's over twice as many, ...
        distill: share of the loss that compares with the model's distribution, the rest with the token it chose.
    """

    window: int = 16
    decay: float = 0.8
    rise: int = 100
    distill: float = 0.5

    def weight(self, level: int, step: int | None) -> float:
        """Of head ``level`` (from 0); ``step`` None: its final value."""
        risen = 1.0 if step is None or level == 0 or not self.rise else min(1.0, (step + 1) / (self.rise * level))
        return self.decay**level * risen


@dataclass(frozen=True, slots=True)
class Batch:
    """Windows with the k places behind each, padded at the end of an answer.

    Attributes:
        hidden: [N, W + k, d]; tokens: int64 [N, W + k]; there: whether the answer has the place, bool [N, W + k].
    """

    hidden: Tensor
    tokens: Tensor
    there: Tensor


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one head says at the places of a batch that have a target.

    Attributes:
        places: their indices in the flattened [N * W] places.
        logits: float32 [P, S].
        targets: ids in the full vocabulary, int64 [P].
        ahead: the same targets' indices in the flattened [N * (W + k)] places.
    """

    places: Tensor
    logits: Tensor
    targets: Tensor
    ahead: Tensor


class HeadObjective:
    """Trains ``heads`` on the states of a corpus.

    Args:
        heads: float32, on the model's device.
        reader: the model's side.
        train, held_out: states to learn from and to judge by.
        loss: see `HeadLoss`.
        key: see `multitoken.training.loop.Objective`.
        vocab_size: of the model.
    """

    def __init__(
        self,
        heads: Heads,
        reader: Reader,
        train: States,
        held_out: States,
        loss: HeadLoss,
        key: Mapping[str, Any],
        vocab_size: int,
    ):
        self.heads, self._reader, self._loss = heads, reader, loss
        self.key = {**key, "shape": heads.shape.facts, "vocabulary": len(heads.vocabulary)}
        self.key |= {name: getattr(loss, name) for name in HeadLoss.__slots__}
        self._train, self._held_out = train, held_out
        self._items = windows(train, loss.window)
        self._judged = spread(windows(held_out, loss.window), EVALUATED)
        self._device = heads.vocabulary.device
        self._places = torch.full((vocab_size,), -1, device=self._device)
        self._places[heads.vocabulary] = torch.arange(len(heads.vocabulary), device=self._device)

    @property
    def module(self) -> nn.Module:
        return self.heads

    @property
    def size(self) -> int:
        return len(self._items)

    def loss(self, items: Sequence[int], step: int) -> Tensor:
        return self._weighed(self.batch(self._train, [self._items[i] for i in items]), step)

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Loss, expected tokens per step of an always-verified chain (tau), and each head's accuracy."""
        losses, right, counts, prefix = [], [0.0] * self._k, [0] * self._k, []
        for start in range(0, len(self._judged), 16):
            batch = self.batch(self._held_out, self._judged[start : start + 16])
            losses.append(float(self._weighed(batch, None)))
            hits = self.hits(batch)
            prefix.append(hits.prefix)
            for level in range(self._k):
                right[level] += float(hits.right[level].sum())
                counts[level] += int(hits.known[level].sum())
        spans = torch.cat(prefix).float()
        tau = (1 if self.heads.shape.offset else 0) + float(spans.mean()) if len(spans) else 0.0
        accuracy = {f"head {i + 1}": right[i] / max(counts[i], 1) for i in range(self._k)}
        return {"loss": sum(losses) / len(losses), "tau": tau, **accuracy}

    # -- what labels are made of --------------------------------------------------------------------------------------

    @property
    def _k(self) -> int:
        return self.heads.shape.heads

    def batch(self, states: States, items: Sequence[tuple[int, int]]) -> Batch:
        """Windows of ``states`` by (answer, first place)."""
        length = self._loss.window + self._k
        found = [states.window(answer, start, length) for answer, start in items]
        width = found[0].hidden.shape[-1]
        hidden = torch.zeros(len(items), length, width)
        tokens = torch.zeros(len(items), length, dtype=torch.int64)
        there = torch.zeros(len(items), length, dtype=torch.bool)
        for row, window in enumerate(found):
            size = len(window.tokens)
            hidden[row, :size], tokens[row, :size], there[row, :size] = window.hidden, window.tokens, True
        dtype = self._reader.dtype
        return Batch(hidden.to(self._device, dtype), tokens.to(self._device), there.to(self._device))

    def predictions(self, batch: Batch) -> list[Prediction]:
        """One per head, each given the true tokens before its own."""
        window, length = self._loss.window, batch.tokens.shape[1]
        anchor = state = batch.hidden[:, :window].flatten(0, 1)
        whole = torch.arange(batch.tokens.numel(), device=self._device).view_as(batch.tokens)
        found = []
        for level in range(self._k):
            before = batch.tokens[:, level : level + window].flatten()
            state = self.heads.advance(level, anchor, state, self._reader.embed(before))
            shift = level + self.heads.shape.offset
            target = slice(shift, min(shift + window, length))
            places = batch.there[:, target].flatten().nonzero()[:, 0]
            ahead = whole[:, target].flatten()[places]
            targets = batch.tokens.flatten()[ahead]
            found.append(Prediction(places, self._reader.logits(state[places]), targets, ahead))
        return found

    def hits(self, batch: Batch) -> Hits:
        """Where the heads are right."""
        places = batch.tokens.shape[0] * self._loss.window
        right = torch.zeros(self._k, places, dtype=torch.bool, device=self._device)
        known = torch.zeros_like(right)
        for level, prediction in enumerate(self.predictions(batch)):
            said = self.heads.vocabulary[prediction.logits.argmax(-1)]
            known[level, prediction.places] = True
            right[level, prediction.places] = said == prediction.targets
        complete = known.all(0)
        return Hits(right, known, complete, right[:, complete].int().cumprod(0).sum(0))

    def _weighed(self, batch: Batch, step: int | None) -> Tensor:
        teacher = None
        if self._loss.distill:
            with torch.no_grad():
                teacher = self._reader.logits(batch.hidden.flatten(0, 1)).softmax(-1)
        total = batch.hidden.new_zeros((), dtype=torch.float32)
        weights = 0.0
        for level, prediction in enumerate(self.predictions(batch)):
            weight = self._loss.weight(level, step)
            weights += weight
            if len(prediction.places):
                total = total + weight * self._one(prediction, teacher)
        return total / weights

    def _one(self, prediction: Prediction, teacher: Tensor | None) -> Tensor:
        """Loss of one head."""
        share = self._loss.distill
        logprobs = prediction.logits.log_softmax(-1)
        places = self._places[prediction.targets]
        inside = (places >= 0).float()  # a token outside of the heads' vocabulary teaches nothing
        chosen = logprobs.gather(1, places.clamp_min(0)[:, None])[:, 0]
        loss = (1 - share) * -(chosen * inside).sum() / inside.sum().clamp_min(1.0)
        if teacher is not None:
            loss = loss - share * (teacher[prediction.ahead] * logprobs).sum(-1).mean()
        return loss


@dataclass(frozen=True, slots=True)
class Hits:
    """Right predictions at the places of a batch.

    Attributes:
        right, known: bool [k, N * W]: head i is right; its target is in the answer.
        complete: all k targets are, bool [N * W].
        prefix: there, how many of the first heads are right, int64 [complete].
    """

    right: Tensor
    known: Tensor
    complete: Tensor
    prefix: Tensor


def windows(states: States, size: int) -> list[tuple[int, int]]:
    """All places of all answers in windows of ``size``, as (answer, first place)."""
    return [(answer, start) for answer, length in enumerate(states.lengths) for start in range(0, length, size)]


def spread(items: list[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """At most ``count`` of them, evenly."""
    if len(items) <= count:
        return items
    return [items[i * len(items) // count] for i in range(count)]
