"""One tree from several sources."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from multitoken.engine.draft import ROOT
from multitoken.methods.fused.history import LONGEST, History, blend
from multitoken.methods.probe.tree import Candidates, top

EXPANDED = 12  # nodes of a depth that may have children
LEAST = math.log(1e-4)  # paths less likely than this are not worth a slot
# (depth, paths in front) -> one distribution (token -> probability) per path, or None below the sources. A path is the
# last tokens of the text and of the tree, at most `LONGEST`.
Base = Callable[[int, Sequence[tuple[int, ...]]], list[dict[int, float]] | None]


def mixed_tree(tokens: Sequence[int], history: History, base: Base, depth: int, nodes: int) -> Candidates:
    """The ``nodes`` likeliest paths after ``tokens``, by base distributions blended with the votes of the history.

    The result is in order of score, so that every prefix of it is a tree.
    """
    pool = Candidates([], [], [])
    tail = tuple(tokens[-LONGEST:])
    front: list[tuple[int, tuple[int, ...], float]] = [(ROOT, tail, 0.0)]
    bar = LEAST
    for level in range(1, depth + 1):
        bases = base(level, [path for _, path, _ in front])
        grown: list[tuple[float, int, tuple[int, ...], int]] = []
        for index, (node, path, score) in enumerate(front):
            mixed = blend(bases[index] if bases else {}, history.votes(path))
            least = math.exp(bar - score)
            for token, probability in mixed.items():
                if probability > least:
                    grown.append((score + math.log(probability), node, path, token))
        grown.sort(key=lambda entry: -entry[0])
        first = len(pool)
        for total, node, _, token in grown[:nodes]:
            pool.tokens.append(token)
            pool.parents.append(node)
            pool.scores.append(total)
        # A child is never likelier than its parent: what is below the nodes-th best path so far cannot enter the tree.
        if len(pool) >= nodes:
            bar = sorted(pool.scores, reverse=True)[nodes - 1]
        front = [
            (first + i, (*path, token)[-LONGEST:], total)
            for i, (total, _, path, token) in enumerate(grown[: min(nodes, EXPANDED)])
            if total > bar
        ]
        if not front:
            break
    return top(pool, nodes)
