"""Labels of the span predictor: how many of the trained heads, from the first on, say what the model said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from multitoken.training.heads.objective import HeadObjective, spread, windows
from multitoken.training.heads.states import States

GROUP = 16  # windows of one forward


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
def span_labels(
    objective: HeadObjective, states: States, window: int, positions: int, enough: Callable[[], bool] = lambda: False
) -> Labels:
    """Labels of about ``positions`` places of ``states``, evenly spread; fewer once ``enough`` says so."""
    items = spread(windows(states, window), max(1, positions // window))
    # In an order in which any beginning is spread over the whole text.
    order = torch.randperm(len(items), generator=torch.Generator().manual_seed(0)).tolist()
    hidden, spans = [], []
    for start in range(0, len(items), GROUP):
        if start and enough():
            break
        batch = objective.batch(states, [items[i] for i in order[start : start + GROUP]])
        hits = objective.hits(batch)
        hidden.append(batch.hidden[:, :window].flatten(0, 1)[hits.complete].half())
        spans.append(hits.prefix)
    return Labels(torch.cat(hidden), torch.cat(spans).long())
