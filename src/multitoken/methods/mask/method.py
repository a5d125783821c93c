"""Self-distilled multi-token prediction: one forward predicts k tokens, at the newest token and at k - 1 masks.

Source: Kirchenbauer, Hans, Bartoldson, Goldblum, Panda, Goldstein, "Multi-Token Prediction via Self-Distillation",
arXiv 2602.06019, with its static and ConfAdapt decoding, which commit predictions unseen. Verified acceptance is this
project's: the masks are probes with a trained adapter, and the next forward checks what they propose, so with a gated
adapter the output is the base model's own.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from multitoken.engine.draft import ROOT, Draft
from multitoken.engine.method import Step
from multitoken.engine.row import Row
from multitoken.errors import OptionError
from multitoken.methods.mask.options import STATIC_K, THRESHOLD, VERIFIED_K, MaskOptions
from multitoken.methods.probe.learned import load_learned
from multitoken.methods.probe.method import Probe, ProbeState, lay_out
from multitoken.methods.probe.tree import Candidates
from multitoken.methods.registry import NamedMethod, register
from multitoken.models.backbone import Backbone


@register
class Mask(NamedMethod):
    """A model with trained masks."""

    name = "mask"
    summary = "trained: masks predict several tokens, verified (lossless) or committed by confidence (lossy)"
    Options = MaskOptions
    options: MaskOptions

    def __init__(self, options: MaskOptions | None = None):
        super().__init__(options)
        self._probe: Probe | None = None  # with verified acceptance
        self._backbone: Backbone | None = None
        self.lossless = self.options.acceptance == "verified"

    def bind(self, backbone: Backbone) -> None:
        if self._backbone is backbone:
            return
        learned = load_learned(self.options.checkpoint, backbone, "mask")
        most = len(learned.vectors) + 1
        if (self.options.k or 1) > most:
            raise OptionError("k", self.options.k, f"the checkpoint predicts up to {most} tokens; lower it")
        if self.options.acceptance == "verified":
            self._probe = Probe(self.options.probing(self.options.k or min(VERIFIED_K, most)), room="mask")
            self._probe.bind(backbone)
        k = self.options.k or (STATIC_K if self.options.acceptance == "static" else most)
        self._vectors = learned.vectors[: k - 1]
        self.adapter = learned.adapter
        self.lossless = self.options.acceptance == "verified" and learned.lossless
        self._backbone = backbone

    def start(self, row: Row) -> ProbeState | None:
        return self._probe.start(row) if self._probe is not None else None

    def draft(self, rows: Sequence[Row]) -> Sequence[Draft]:
        if self._probe is not None:
            return self._probe.draft(rows)
        if not len(self._vectors):
            return [Draft()] * len(rows)
        return [lay_out(Candidates([], [], []), [ROOT], self._vectors)] * len(rows)

    def observe(self, rows: Sequence[Row], step: Step) -> None:
        if self._probe is not None:
            self._probe.observe(rows, step)

    def extend(self, rows: Sequence[Row], step: Step) -> Sequence[list[int]]:
        if self._probe is not None:
            return [[]] * len(rows)
        return [
            self._predicted(row, tokens[-1], own[0], masks)
            for row, tokens, own, masks in zip(rows, step.tokens, step.node_logits, step.probe_logits, strict=True)
        ]

    def _predicted(self, row: Row, first: int, own: Tensor, masks: Tensor) -> list[int]:
        """Predictions to commit behind ``first``, the model's own token of this forward.

        Args:
            own: the logits that it was drawn from, [V].
            masks: logits of the masks, [n, V].
        """
        tokens: list[int] = []
        if not self._sure(own, first):
            return tokens
        ends, needed = row.request.ends, row.request.min_tokens
        for logits in masks:
            banned = ends if row.generated + len(tokens) < needed else frozenset()
            token = row.sampler.draw(logits, row.tokens + tokens, banned)
            if not self._sure(logits, token):
                break
            tokens.append(token)
            if token in ends:
                break
        return tokens

    def _sure(self, logits: Tensor, token: int) -> bool:
        if self.options.acceptance == "static":
            return True
        threshold = THRESHOLD if self.options.threshold is None else self.options.threshold
        return float(logits.softmax(-1)[token]) > threshold
