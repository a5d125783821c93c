"""Probing: multi-token prediction without training, by synthetic vectors in embedding space.

Source: Goel, Gagrani, Lee, Lott, "Efficient Training-Free Multi-Token Prediction via Embedding-Space Probing",
arXiv 2603.17942. Probe i of an owner sits i positions after it and proposes the token i + 1 positions after it. The
tree of a step comes from the probes of the last step's anchor, whose next token (the root) is known by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from multitoken.engine.draft import ROOT, Draft
from multitoken.engine.method import Step
from multitoken.engine.row import Row
from multitoken.errors import OptionError
from multitoken.methods.probe.calibration import calibrated_vector
from multitoken.methods.probe.candidates import Level, continuations
from multitoken.methods.probe.learned import GAIN, Learned, load_learned
from multitoken.methods.probe.options import ProbeOptions
from multitoken.methods.probe.table import NextTokenTable, next_token_table
from multitoken.methods.probe.tree import (
    PROBE_GAIN,
    Candidates,
    best_tree,
    dynamic_tree,
    likeliest_anchors,
    share,
    static_tree,
)
from multitoken.methods.probe.vectors import OFFSET_SCALE, EmbeddingStatistics, follow, initial_vectors
from multitoken.methods.registry import NamedMethod, register
from multitoken.models.backbone import Backbone


@dataclass(slots=True)
class ProbeState:
    """What a row keeps: its probe vectors [k, d] and the levels proposed by the last anchor's probes."""

    vectors: Tensor
    levels: list[Level] = field(default_factory=list)


@register
class Probe(NamedMethod):
    """Probing, lossless.

    Args:
        options: see `ProbeOptions`.
        room: where shipped checkpoints are looked for, with init=learned.
    """

    name = "probe"
    summary = "training-free, or learned vectors: probes propose, the model verifies"
    Options = ProbeOptions
    options: ProbeOptions

    def __init__(self, options: ProbeOptions | None = None, room: str = "probes"):
        super().__init__(options)
        self._backbone: Backbone | None = None
        self._room = room
        self._vectors: Tensor | None = None  # [k, d] where they are the same for every row
        self.table: NextTokenTable | None = None
        self.gain = PROBE_GAIN

    def bind(self, backbone: Backbone) -> None:
        if self._backbone is backbone:
            return
        self._statistics = EmbeddingStatistics.of(backbone)
        if self.options.init == "calibrated":
            self._vectors = calibrated_vector(backbone, self._statistics).repeat(self.options.probes, 1)
        elif self.options.init == "learned":
            self._take(load_learned(self.options.checkpoint, backbone, self._room))
        self.table = next_token_table(backbone, self.options.table_seconds) if self.options.rescore else None
        self._backbone = backbone

    def start(self, row: Row) -> ProbeState:
        assert self._backbone is not None
        options = self.options
        if self._vectors is not None:
            return ProbeState(self._vectors)
        vectors = initial_vectors(
            options.init,
            options.probes,
            row.request.prompt,
            self._backbone,
            self._statistics,
            offset_scale=OFFSET_SCALE if options.offset_scale is None else options.offset_scale,
            seed=row.request.sampling.seed,
        )
        return ProbeState(vectors)

    def _take(self, learned: Learned) -> None:
        """Use what training left."""
        if self.options.probes > len(learned.vectors):
            raise OptionError("probes", self.options.probes, f"the checkpoint has {len(learned.vectors)}; lower it")
        self._vectors = learned.vectors[: self.options.probes]
        self.adapter, self.lossless = learned.adapter, learned.lossless
        self.gain = GAIN[learned.kind]

    def draft(self, rows: Sequence[Row]) -> Sequence[Draft]:
        return [self._with_probes(row.state, self.tree(row)) for row in rows]

    def observe(self, rows: Sequence[Row], step: Step) -> None:
        for index, row in enumerate(rows):
            self.learn(row.state, step.probe_logits[index], step.tokens[index])

    def learn(self, state: ProbeState, logits: Tensor, tokens: list[int]) -> None:
        """Take in the anchor's probe logits [k, V] (k = 0: it had none) and the tokens just committed."""
        state.levels = [Level.of(values) for values in logits]
        if self.options.mixing_weight:
            assert self._backbone is not None
            embeds = self._backbone.embed(torch.tensor(tokens, device=state.vectors.device))
            state.vectors = follow(state.vectors, embeds, self.options.mixing_weight)

    def tree(self, row: Row) -> Candidates:
        """Candidates below the row's root from the last anchor's probes, at most `node_budget`."""
        options, root = self.options, row.tokens[-1]
        levels = row.state.levels
        depth = options.max_depth if self.table is not None else min(options.max_depth, len(levels))
        if depth == 0 or not row.prefilled:
            return Candidates([], [], [])

        def propose(level: int, parents: Sequence[int], width: int) -> tuple[Tensor, Tensor]:
            probe = levels[level - 1] if level <= len(levels) else None
            return continuations(probe, parents, self.table, options.rescore, width, options.prune)

        if options.tree == "static":
            assert options.widths is not None
            return static_tree(root, options.widths[:depth], propose)
        if options.tree == "dynamic":
            return dynamic_tree(root, depth, self.node_budget, propose)
        return best_tree(root, depth, self.node_budget, propose)

    @property
    def node_budget(self) -> int:
        """Nodes that fit a block beside the root and the probes; with shared slots, the most that could."""
        size, probes, owners = self.options.block_size, self.options.probes, self.options.owners
        everyone = size // (probes + 1) - 1
        if self.options.all_own:
            return everyone
        if isinstance(owners, int):
            return max(size - 1 - owners * probes, everyone)
        return size - 1

    def _with_probes(self, state: ProbeState, tree: Candidates) -> Draft:
        """Lay a tree out with the probes of its owners."""
        options = self.options
        owners: Sequence[int] = range(ROOT, len(tree))
        if isinstance(options.owners, int):
            owners = likeliest_anchors(tree, options.owners)
        elif not options.all_own:
            nodes, owners = share(tree, options.block_size - 1, options.probes, self.gain)
            tree = tree.first(nodes)
        return lay_out(tree, owners, state.vectors)


def lay_out(tree: Candidates, owners: Sequence[int], vectors: Tensor) -> Draft:
    """A draft of a tree's nodes, with one chain of probes ``vectors`` [k, d] under each owner (a node or ROOT)."""
    parents = list(tree.parents)
    for owner in owners:
        first = len(parents)
        parents += [owner, *range(first, first + len(vectors) - 1)]
    return Draft(tree.tokens, parents, vectors=vectors.repeat(len(owners), 1) if owners else None)
