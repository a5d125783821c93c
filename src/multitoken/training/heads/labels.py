"""Labels of the span predictor: how many of the trained heads, from the first on, say what the model said."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from multitoken.training.heads.objective import HeadObjective, spread, windows
from multitoken.training.heads.states import States


@dataclass(frozen=True, slots=True)
class Labels:
    """Places with all their targets in the answer.

    Attributes:
        hidden: states, float16 [M, d].
        spans: right heads before the first wrong one, int64 [M].
    """

    hidden: Tensor
    spans: Tensor


@torch.no_grad()
def span_labels(objective: HeadObjective, states: States, window: int, positions: int) -> Labels:
    """Labels of about ``positions`` places of ``states``, evenly spread."""
    items = spread(windows(states, window), max(1, positions // window))
    hidden, spans = [], []
    for start in range(0, len(items), 16):
        batch = objective.batch(states, items[start : start + 16])
        hits = objective.hits(batch)
        hidden.append(batch.hidden[:, :window].flatten(0, 1)[hits.complete].half())
        spans.append(hits.prefix)
    return Labels(torch.cat(hidden), torch.cat(spans).long())
