"""Candidates for the tokens ahead: probe distributions, rescored by what is known when the tree is built.

A probe's logits were computed before the token in front of its candidate was known. When the tree is built it is known:
the root for the first probe, a candidate for later ones. Adding ``rescore`` times the log-probability that the model's
next-token table gives to the candidate after that token makes the two agree. Below the probes the table proposes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from multitoken.methods.probe.table import NextTokenTable

POOL = 256  # candidates of a probe that are looked at; the table's entries outside them are too unlikely to matter
SHARPNESS = 0.6  # the product of two opinions on the same token is too sure of itself; below 1 it is flattened
UNLISTED = 1.0  # a token outside a table entry counts as this much (in nats) less likely than the entry's last


@dataclass(slots=True)
class Level:
    """Candidates for one depth, given by a probe: tokens int64 [K] and log-probabilities float32 [K], best first."""

    tokens: Tensor
    logprobs: Tensor

    @classmethod
    def of(cls, logits: Tensor, pool: int = POOL) -> Level:
        """The best ``pool`` candidates of a probe's logits [V]."""
        best = logits.topk(min(pool, logits.shape[0]))
        return cls(best.indices, best.values - logits.logsumexp(0))


def continuations(
    level: Level | None, parents: Sequence[int], table: NextTokenTable | None, rescore: float, width: int, prune: bool
) -> tuple[Tensor, Tensor]:
    """The best ``width`` candidates after each parent token.

    Args:
        level: the probe for this depth, or None where only the table proposes.
        parents: tokens in front of the candidates.

    Returns:
        tokens int64 [P, W] and normalised log-probabilities float32 [P, W], best first.
    """
    if level is None:
        assert table is not None
        tokens, scores = table.entries(parents)
    else:
        tokens = level.tokens.expand(len(parents), -1)
        scores = level.logprobs.expand(len(parents), -1)
        if table is not None and rescore:
            scores = (SHARPNESS * (scores + rescore * _table_scores(level, parents, table))).log_softmax(-1)
    if prune:
        same = tokens == torch.tensor(parents, device=tokens.device)[:, None]
        scores = scores.masked_fill(same, -torch.inf)
    best = scores.topk(min(width, scores.shape[1]))
    return tokens.gather(1, best.indices), best.values


def _table_scores(level: Level, parents: Sequence[int], table: NextTokenTable) -> Tensor:
    """Log-probability that the table gives each candidate of ``level`` after each parent, float32 [P, K]."""
    count = level.tokens.shape[0]
    tokens, listed = table.entries(parents)
    place = torch.full((table.vocab_size,), count, dtype=torch.int64, device=level.tokens.device)
    place[level.tokens] = torch.arange(count, device=level.tokens.device)
    scores = (listed[:, -1:] - UNLISTED).repeat(1, count + 1)
    # Entries that are no candidates all land in the extra last column, which is cut off.
    scores.scatter_(1, place[tokens], listed)
    # A parent that the table does not cover says nothing: all its candidates count the same.
    return scores[:, :count].nan_to_num(neginf=0.0)
