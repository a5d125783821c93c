"""Verification: walk each tree with the target's own tokens.

At each node of the walk the row's sampler draws the model's token; if a child holds it, the walk goes on from that
child, else it stops. The token drawn at the deepest accepted node (the anchor) is the bonus. Since every committed
token is the model's own draw, the output equals plain decoding's, whatever was drafted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from multitoken.engine.draft import ROOT, Draft
from multitoken.engine.row import Row, TokenLogprob


@dataclass(slots=True)
class Walk:
    """Accepted nodes and drawn tokens of one row: ``tokens`` has one more entry (the bonus) than ``path``."""

    path: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)


def verify(rows: Sequence[Row], drafts: Sequence[Draft], logits: Sequence[Tensor]) -> list[Walk]:
    """Walk the trees. ``logits``: per row, float32 [1 + N, V] of the root and of each node."""
    greedy = [row.request.sampling.plain_argmax for row in rows]
    chosen: list[list[int]] = [[] for _ in rows]
    if any(greedy):
        # One device sync for all greedy rows, whatever their trees.
        best = torch.cat([part.argmax(-1) for part, take in zip(logits, greedy, strict=True) if take]).tolist()
        for b, part in enumerate(logits):
            if greedy[b]:
                chosen[b], best = best[: part.shape[0]], best[part.shape[0] :]
    return [_walk(*parts) for parts in zip(rows, drafts, logits, chosen, strict=True)]


def _walk(row: Row, draft: Draft, logits: Tensor, chosen: list[int]) -> Walk:
    walk = Walk()
    request = row.request
    node: int | None = ROOT
    while node is not None:
        banned = request.ends if row.generated + len(walk.tokens) < request.min_tokens else frozenset()
        if chosen and chosen[node + 1] not in banned:
            token = chosen[node + 1]
        else:
            token = row.sampler.draw(logits[node + 1], row.tokens + walk.tokens, banned)
        walk.tokens.append(token)
        if request.logprobs is not None:
            walk.logprobs.append(token_logprob(logits[node + 1], token, request.logprobs))
        node = None if token in request.ends else draft.children.get((node, token))
        if node is not None:
            walk.path.append(node)
    return walk


def token_logprob(logits: Tensor, token: int, alternatives: int) -> TokenLogprob:
    """Log-probability of ``token`` and of the ``alternatives`` most probable tokens, from raw logits [V]."""
    values = logits.double().log_softmax(-1)
    top = values.topk(alternatives) if alternatives else None
    pairs = [] if top is None else list(zip(top.indices.tolist(), top.values.tolist(), strict=True))
    return TokenLogprob(token, float(values[token]), pairs)
