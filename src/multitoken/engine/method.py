"""The seam between the engine and the methods: how a method drafts and what it is told afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from multitoken.engine.draft import ROOT, Draft
from multitoken.engine.row import Row
from multitoken.models.adapter import Adapter
from multitoken.models.backbone import Backbone


@dataclass(slots=True)
class Step:
    """What one forward brought, for the rows handed to `Method.observe` (all lists are parallel to them).

    Attributes:
        drafts: the drafts that were run.
        paths: accepted nodes of each row, root side first.
        tokens: tokens that verification committed: the accepted nodes' and the bonus.
        hidden: hidden state of each row's anchor, [B, d].
        node_logits: logits of the root and of every node, float32 [1 + N, V] per row.
        probe_slots: the probes that were projected (what `Method.wanted` asked for).
        probe_logits: their logits, float32 [n, V] per row.
    """

    drafts: Sequence[Draft]
    paths: Sequence[list[int]]
    tokens: Sequence[list[int]]
    hidden: Tensor
    node_logits: Sequence[Tensor]
    probe_slots: Sequence[list[int]]
    probe_logits: Sequence[Tensor]

    def anchor(self, index: int) -> int:
        """Deepest accepted node of row ``index``, or ROOT."""
        return self.paths[index][-1] if self.paths[index] else ROOT


@runtime_checkable
class Method(Protocol):
    """A way to draft. Subclass it (the defaults draft nothing) or give an object with the same members.

    Attributes:
        name: shown in results.
        lossless: False if `choose` or `extend` may commit tokens that the model did not choose.
        adapter: acts on the rows of this method (a gated one: on their probes), or None.

    One object may serve many rows at once; what belongs to one sequence is kept in ``row.state``.
    """

    name: str
    lossless: bool = True
    adapter: Adapter | None = None

    def bind(self, backbone: Backbone) -> None:
        """Prepare for a model. Called before a row of this method enters an engine; must be cheap when repeated."""

    def start(self, row: Row) -> Any:
        """State of a new row."""
        return None

    def draft(self, rows: Sequence[Row]) -> Sequence[Draft]:
        """One draft per row. On a row's first call its root is the last prompt token."""
        return [Draft()] * len(rows)

    def wanted(self, row: Row, draft: Draft, path: list[int]) -> list[int]:
        """Probe slots to project, now that ``path`` has been accepted. Default: those owned by the anchor."""
        return draft.owned(path[-1] if path else ROOT)

    def observe(self, rows: Sequence[Row], step: Step) -> None:
        """Learn from a step. Called after commit, for the rows that go on."""

    def stop(self, row: Row) -> None:
        """Let go of what is kept for a row outside of ``row.state``. Called when the row leaves the engine."""

    def choose(self, rows: Sequence[Row], hidden: Tensor, logits: Sequence[Tensor]) -> Sequence[Tensor]:
        """Lossy methods only: what tokens are chosen from, float32 [1 + N, V] per row, in place of the model's logits.

        ``hidden``: hidden state of each row's root, [B, d].
        """
        return logits

    def extend(self, rows: Sequence[Row], step: Step) -> Sequence[list[int]]:
        """Lossy methods only: tokens to commit after the bonus without verification, per row."""
        return [[]] * len(rows)
