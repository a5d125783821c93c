"""Trees of candidates under a node budget.

`best_tree` keeps the paths with the largest product of probabilities; `dynamic_tree` and `static_tree` are the paper's
(arXiv 2603.17942, Algorithm 1 and its fixed widths), in which only the best candidate of a depth has children.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from multitoken.engine.draft import ROOT

EXPANDED = 12  # nodes of a depth that may have children
PROBE_GAIN = 0.25  # tokens that an anchor's probes add to the next step, when a block's slots are shared out
# (depth, tokens in front, candidates per token) -> tokens [P, W], log-probabilities [P, W]
Proposer = Callable[[int, Sequence[int], int], tuple[Tensor, Tensor]]


@dataclass(slots=True)
class Candidates:
    """A tree: token, parent (index or ROOT) and log-probability of the path, per node; parents come first."""

    tokens: list[int]
    parents: list[int]
    scores: list[float]

    def __len__(self) -> int:
        return len(self.tokens)

    def first(self, nodes: int) -> Candidates:
        """The first ``nodes`` of a tree that is in order of score."""
        return Candidates(self.tokens[:nodes], self.parents[:nodes], self.scores[:nodes])


def best_tree(root: int, depth: int, nodes: int, propose: Proposer) -> Candidates:
    """The ``nodes`` likeliest paths down to ``depth`` below the token ``root``."""
    pool = Candidates([], [], [])
    front, front_tokens, front_scores = [ROOT], [root], np.zeros(1)
    for level in range(1, depth + 1):
        width = nodes if level == 1 else max(nodes // 2, 1)
        tokens, logprobs = propose(level, front_tokens, width)
        scores = (logprobs.cpu().double().numpy() + front_scores[:, None]).ravel()
        flat = tokens.cpu().numpy().ravel()
        best = np.argsort(-scores, kind="stable")[:nodes]
        best = best[np.isfinite(scores[best])]
        first = len(pool)
        width = tokens.shape[1]
        pool.tokens += flat[best].tolist()
        pool.parents += [front[i // width] for i in best.tolist()]
        pool.scores += scores[best].tolist()
        grown = range(first, min(len(pool), first + EXPANDED))
        front = list(grown)
        if not front:
            break
        front_tokens = [pool.tokens[i] for i in front]
        front_scores = np.array([pool.scores[i] for i in front])
    return top(pool, nodes)


def dynamic_tree(root: int, depth: int, nodes: int, propose: Proposer) -> Candidates:
    """Candidates of each depth under the best of the depth above, the ``nodes`` likeliest paths kept."""
    return top(_chain(root, [nodes] * depth, propose), nodes)


def static_tree(root: int, widths: Sequence[int], propose: Proposer) -> Candidates:
    """``widths[i]`` candidates at depth i + 1 under the best of the depth above."""
    return _chain(root, widths, propose)


def _chain(root: int, widths: Sequence[int], propose: Proposer) -> Candidates:
    tree = Candidates([], [], [])
    parent, token, score = ROOT, root, 0.0
    for level, width in enumerate(widths, start=1):
        tokens, logprobs = propose(level, [token], width)
        kept = torch.isfinite(logprobs[0])
        first = len(tree)
        tree.tokens += tokens[0][kept].tolist()
        tree.scores += (logprobs[0][kept].double() + score).tolist()
        tree.parents += [parent] * (len(tree.tokens) - first)
        if len(tree) == first:
            break
        parent, token, score = first, tree.tokens[first], tree.scores[first]
    return tree


def top(pool: Candidates, nodes: int) -> Candidates:
    """The best ``nodes`` of a pool, best first. A child never scores above its parent, and the order is stable, so
    parents come before their children and every prefix of the result is a tree."""
    kept = np.argsort(-np.array(pool.scores), kind="stable")[:nodes].tolist()
    renamed = {old: new for new, old in enumerate(kept)} | {ROOT: ROOT}
    return Candidates(
        [pool.tokens[i] for i in kept], [renamed[pool.parents[i]] for i in kept], [pool.scores[i] for i in kept]
    )


def endings(tree: Candidates) -> np.ndarray:
    """Probability that verification ends at the root (entry 0) and at each node, [1 + N].

    It ends at a node if the node's path is accepted and none of its children is.
    """
    reach = np.exp(np.array([0.0, *tree.scores]))
    ending = reach.copy()
    for node, parent in enumerate(tree.parents):
        ending[parent + 1] -= reach[node + 1]
    return ending


def likeliest_anchors(tree: Candidates, owners: int) -> list[int]:
    """The ``owners`` slots (ROOT or nodes) where verification most probably ends, in slot order."""
    order = np.argsort(-endings(tree), kind="stable")[:owners]
    return sorted(int(slot) - 1 for slot in order)


def share(tree: Candidates, slots: int, probes: int, gain: float) -> tuple[int, list[int]]:
    """Split ``slots`` between the tree's first nodes and probes for the likeliest anchors.

    A node is worth the probability that its path is accepted; the probes of an owner are worth ``gain`` tokens in the
    next step if verification ends there. Returns the number of nodes and the owners (ROOT or nodes), maximising the
    sum. ``tree`` is in order of score.
    """
    reach = np.exp(np.array([0.0, *tree.scores]))
    ending = np.zeros(len(reach))
    best_value, best = -1.0, (0, [ROOT])
    for nodes in range(min(len(tree), slots) + 1):
        ending[nodes] = reach[nodes]
        if nodes:
            ending[tree.parents[nodes - 1] + 1] -= reach[nodes]
        owners = (slots - nodes) // probes if probes else 0
        order = np.argsort(-ending[: nodes + 1], kind="stable")[:owners]
        value = reach[1 : nodes + 1].sum() + gain * ending[order].sum()
        if value > best_value:
            best_value, best = value, (nodes, sorted(int(i) - 1 for i in order))
    return best
