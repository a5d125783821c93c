"""A draft: what a method asks the next forward to look at, for one row.

All slots of a draft form one tree under the root. A slot sees the committed prefix, its ancestors and itself, and sits
one position after its parent. The first slots are candidate *nodes*, which verification may accept; the others are
*probes*, whose logits propose later tokens and which verification never looks at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
from torch import Tensor

ROOT = -1


@dataclass
class Draft:
    """Slots of one row behind its root.

    Attributes:
        tokens: candidate token of each node.
        parents: parent of each slot, nodes first and probes after them: a slot index, or `ROOT`. A parent precedes
            its children, and a node's parent is a node or the root.
        vectors: input vectors of the probes, [P, d]; or
        probe_tokens: their input tokens, for probes that are ordinary tokens.
        sources: optional label of each node (which source proposed it), for statistics.
    """

    tokens: Sequence[int] = ()
    parents: Sequence[int] = ()
    vectors: Tensor | None = None
    probe_tokens: Sequence[int] | None = None
    sources: Sequence[str] | None = field(default=None)

    def __post_init__(self) -> None:
        given = (0 if self.vectors is None else len(self.vectors)) + len(self.probe_tokens or ())
        if self.probes != given or (self.vectors is not None and self.probe_tokens):
            raise ValueError(f"{self.probes} probe slots need as many vectors or probe tokens, not {given}")
        if self.sources is not None and len(self.sources) != self.nodes:
            raise ValueError(f"{self.nodes} nodes need as many sources, not {len(self.sources)}")

    @property
    def nodes(self) -> int:
        return len(self.tokens)

    @property
    def probes(self) -> int:
        return len(self.parents) - len(self.tokens)

    @property
    def slots(self) -> int:
        return len(self.parents)

    @cached_property
    def children(self) -> dict[tuple[int, int], int]:
        """(parent node or ROOT, token) -> node."""
        return {
            (parent, token): node for node, (parent, token) in enumerate(zip(self.parents, self.tokens, strict=False))
        }

    @property
    def shape(self) -> TreeShape:
        return tree_shape(tuple(self.parents))

    def owned(self, anchor: int) -> list[int]:
        """Probe slots that hang from ``anchor`` (a node or ROOT) by a path of probes only, in slot order."""
        found, members = [], {anchor}
        for slot in range(self.nodes, self.slots):
            if self.parents[slot] in members:
                members.add(slot)
                found.append(slot)
        return found

    def trimmed(self, depth: int) -> Draft:
        """This draft without the slots deeper than ``depth`` below the root."""
        depths = self.shape.depths
        if self.slots == 0 or int(depths.max()) <= depth:
            return self
        kept = [slot for slot in range(self.slots) if depths[slot] <= depth]
        renamed = {old: new for new, old in enumerate(kept)} | {ROOT: ROOT}
        nodes = [slot for slot in kept if slot < self.nodes]
        probes = [slot - self.nodes for slot in kept if slot >= self.nodes]
        return Draft(
            tokens=[self.tokens[slot] for slot in nodes],
            parents=[renamed[self.parents[slot]] for slot in kept],
            vectors=None if self.vectors is None else self.vectors[probes],
            probe_tokens=None if self.probe_tokens is None else [self.probe_tokens[i] for i in probes],
            sources=None if self.sources is None else [self.sources[slot] for slot in nodes],
        )


@dataclass(frozen=True)
class TreeShape:
    """What depends on the parents alone, and so is kept between steps.

    Attributes:
        depths: depth of each slot (children of the root: 1), int64 [S].
        ancestors: ``ancestors[i, j]``: slot j is slot i or one of its ancestors, bool [S, S].
    """

    depths: np.ndarray
    ancestors: np.ndarray


@lru_cache(maxsize=1024)
def tree_shape(parents: tuple[int, ...]) -> TreeShape:
    """Shape of a tree given the parent of each slot; raises ValueError if a parent does not precede its child."""
    size = len(parents)
    ancestors = np.eye(size, dtype=bool)
    depths = np.ones(size, dtype=np.int64)
    for slot, parent in enumerate(parents):
        if not ROOT <= parent < slot:
            raise ValueError(f"parent {parent} of slot {slot} does not precede it")
        if parent != ROOT:
            ancestors[slot] |= ancestors[parent]
            depths[slot] = depths[parent] + 1
    return TreeShape(depths, ancestors)
