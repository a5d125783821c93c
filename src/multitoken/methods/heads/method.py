"""Drafting, or committing outright, what trained heads predict.

Source: arXiv 2606.10935 (see `modules`). ``verified`` is this project's: the forward that reads the committed tokens
also gives the model's own choice at each of them, so checking costs no further forward. The other ways of acceptance
commit the heads' tokens unseen: ``predicted`` is the paper's, ``fixed``, ``confidence`` and ``gate`` are its baselines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from multitoken.engine.commit import room
from multitoken.engine.draft import Draft
from multitoken.engine.method import Step
from multitoken.engine.row import Row
from multitoken.errors import OptionError
from multitoken.methods.heads.checkpoint import TrainedHeads, load_heads
from multitoken.methods.heads.tree import chains, trees
from multitoken.methods.probe.tree import Candidates
from multitoken.methods.registry import MethodOptions, NamedMethod, register
from multitoken.models.backbone import Backbone

Acceptance = Literal["verified", "predicted", "fixed", "confidence", "gate"]
LIKELY, POSSIBLE = 0.5, 0.1  # thresholds for committing a token unseen, and for drafting one


class HeadsOptions(MethodOptions):
    """How heads are used."""

    checkpoint: Path | None = Field(
        None, description="folder made by multitoken train heads (default: shipped with the package for this model)"
    )
    acceptance: Acceptance = Field(
        "verified",
        description="verified: lossless. Lossy: predicted (the span predictor says how many), fixed (all), confidence "
        "(while a head's probability is above the threshold), gate (a large gate per head says)",
    )
    block_size: int = Field(16, ge=2, le=1024, description="slots of one decode forward: root and nodes (verified)")
    shape: Literal["chain", "tree"] = Field("tree", description="of what is drafted (verified)")
    span_from: Literal["predictor", "full"] = Field(
        "predictor", description="how deep to draft: as the span predictor says, or as many tokens as there are heads"
    )
    threshold: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="least probability: of a depth that is drafted (default 0.1), or, for confidence and gate, of a "
        "token that is accepted (default 0.5)",
    )
    least: float = Field(0.01, ge=0, lt=1, description="paths of a tree less probable than this get no slot (verified)")

    @model_validator(mode="after")
    def _consistent(self) -> HeadsOptions:
        if self.acceptance != "verified":
            for name in ("block_size", "shape", "span_from", "least"):
                if name in self.model_fields_set:
                    raise ValueError(f"{name} goes with acceptance=verified")
            if self.threshold is not None and self.acceptance in ("predicted", "fixed"):
                raise ValueError(f"threshold has no part in acceptance={self.acceptance}")
        elif self.threshold is not None and self.span_from == "full":
            raise ValueError("threshold goes with span_from=predictor")
        elif "least" in self.model_fields_set and self.shape == "chain":
            raise ValueError("least goes with shape=tree")
        return self


@dataclass(slots=True)
class HeadsState:
    """What a row keeps: the hidden state of the last token that the model has read, [d], and tokens to commit."""

    hidden: Tensor | None = None
    waiting: list[int] | None = None


@register
class HeadsMethod(NamedMethod):
    """Tokens that trained heads predict, verified or not."""

    name = "heads"
    summary = "trained heads propose; lossless when verified, lossy with predicted, fixed, confidence or gate"
    Options = HeadsOptions
    options: HeadsOptions

    def __init__(self, options: HeadsOptions | None = None):
        super().__init__(options)
        self.lossless = self.options.acceptance == "verified"
        self._backbone: Backbone | None = None
        self._trained: TrainedHeads | None = None

    def bind(self, backbone: Backbone) -> None:
        if self._backbone is not backbone:
            self.use(load_heads(self.options.checkpoint, backbone))
            self._backbone = backbone

    def use(self, trained: TrainedHeads) -> None:
        """Take these heads (for a model, see `ready`) instead of the checkpoint's."""
        if self.options.acceptance == "gate" and trained.gate is None:
            raise OptionError("acceptance", "gate", "the checkpoint has no gate; train heads with --gate")
        self._trained = trained

    @property
    def trained(self) -> TrainedHeads:
        assert self._trained is not None, "bind the method to a model first"
        return self._trained

    @property
    def _competing(self) -> bool:
        return self.trained.heads.shape.kind == "competing"

    def start(self, row: Row) -> HeadsState:
        return HeadsState()

    # -- verified -----------------------------------------------------------------------------------------------------

    def draft(self, rows: Sequence[Row]) -> Sequence[Draft]:
        drafts = [Draft()] * len(rows)
        ready = [index for index, row in enumerate(rows) if self.lossless and row.state.hidden is not None]
        if ready:
            found = self.candidates([rows[index] for index in ready], self.options.block_size - 1)
            for index, tree in zip(ready, found, strict=True):
                drafts[index] = Draft(tree.tokens, tree.parents)
        return drafts

    def candidates(self, rows: Sequence[Row], nodes: int) -> list[Candidates]:
        """Candidates behind each row's root with their log-probabilities. The rows have been observed."""
        hidden = torch.stack([row.state.hidden for row in rows])
        roots = [row.tokens[-1] for row in rows]
        limit = None if self._backbone is None else self._backbone.max_positions
        first = 1 - self.trained.heads.shape.offset
        depths = [
            max(0, min(depth - first, nodes, room(row, limit)))
            for row, depth in zip(rows, self._depths(hidden), strict=True)
        ]
        if self.options.shape == "tree":
            return trees(self.trained, hidden, roots, depths, nodes, self.options.least)
        lengths = [first + depth if depth else 0 for depth in depths]
        return [
            _as_tree(chain.tokens[first:], chain.probabilities[first:])
            for chain in chains(self.trained, hidden, roots, lengths)
        ]

    def observe(self, rows: Sequence[Row], step: Step) -> None:
        for index, row in enumerate(rows):
            row.state.hidden = step.hidden[index]

    def _depths(self, hidden: Tensor) -> list[int]:
        """Heads worth drafting from, per row."""
        heads = self.trained.heads.shape.heads
        if self.options.span_from == "full":
            return [heads] * len(hidden)
        threshold = POSSIBLE if self.options.threshold is None else self.options.threshold
        probabilities = self._spans(hidden).softmax(-1)
        beyond = 1 - probabilities.cumsum(-1)[:, :-1]  # of a span of at least 1, 2, ..., k
        return (beyond >= threshold).sum(-1).tolist()

    def _spans(self, hidden: Tensor) -> Tensor:
        """Scores of spans 0..k, float32 [B, k + 1]."""
        weight = self.trained.span.linear.weight
        return self.trained.span(hidden.to(weight.dtype)).float()

    # -- lossy --------------------------------------------------------------------------------------------------------

    def choose(self, rows: Sequence[Row], hidden: Tensor, logits: Sequence[Tensor]) -> Sequence[Tensor]:
        """Competing heads put the first head's logits in place of the model's where its token is accepted."""
        if not self._competing:
            return logits
        chosen = list(logits)
        reader, heads = self.trained.reader, self.trained.heads
        assert reader is not None
        first = hidden.to(reader.dtype)
        own = reader.logits(heads.advance(0, first, first, first))
        for index, (row, tokens) in enumerate(zip(rows, self._accepted(hidden, [0] * len(rows)), strict=True)):
            row.state.waiting = tokens[1:]
            if tokens:
                chosen[index] = torch.full_like(logits[index], -torch.inf)
                chosen[index][:, heads.vocabulary] = own[index]
        return chosen

    def extend(self, rows: Sequence[Row], step: Step) -> Sequence[list[int]]:
        if self._competing:
            found = [row.state.waiting or [] for row in rows]
        else:
            found = self._accepted(step.hidden, [row.tokens[-1] for row in rows])
        return [allowed(row, tokens) for row, tokens in zip(rows, found, strict=True)]

    def _accepted(self, hidden: Tensor, roots: Sequence[int]) -> list[list[int]]:
        """Tokens of the heads that are to be committed, per row."""
        acceptance, k = self.options.acceptance, self.trained.heads.shape.heads
        threshold = LIKELY if self.options.threshold is None else self.options.threshold
        if acceptance == "predicted":
            lengths = self._spans(hidden).argmax(-1).tolist()
        elif acceptance == "gate":
            assert self.trained.gate is not None
            dtype = next(self.trained.gate.parameters()).dtype
            believed = self.trained.gate(hidden.to(dtype)).float().sigmoid() > threshold
            lengths = believed.int().cumprod(-1).sum(-1).tolist()
        else:
            lengths = [k] * len(roots)
        found = chains(self.trained, hidden, roots, lengths)
        if acceptance != "confidence":
            return [chain.tokens for chain in found]
        sure = [next((i for i, p in enumerate(c.probabilities) if p <= threshold), k) for c in found]
        return [chain.tokens[:length] for chain, length in zip(found, sure, strict=True)]


def _as_tree(tokens: list[int], probabilities: list[float]) -> Candidates:
    scores = torch.tensor(probabilities, dtype=torch.float64).log().cumsum(0).tolist()
    return Candidates(tokens, list(range(-1, len(tokens) - 1)), scores)


def allowed(row: Row, tokens: list[int]) -> list[int]:
    """``tokens`` up to an end of text that may not come yet."""
    for index, token in enumerate(tokens):
        if token in row.request.ends and row.generated + index < row.request.min_tokens:
            return tokens[:index]
    return tokens
