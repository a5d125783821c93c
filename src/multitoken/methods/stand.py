"""STAND: stochastic adaptive n-gram drafting, a tree from the model's own earlier logits.

Source: Song et al., "Accelerated Test-Time Scaling with Model-Free Speculative Sampling", arXiv 2506.04708. For each
n-gram of the text the distribution that the model gave after it is kept (its few best tokens, averaged over repeats). A
draft looks up the longest n-gram that ends the text and each path of the tree, and takes the candidates from there: the
best ones at temperature 0, Gumbel top-K samples without replacement above.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from pydantic import Field, field_validator, model_validator

from multitoken.engine.draft import ROOT, Draft
from multitoken.engine.method import Step
from multitoken.engine.row import Row
from multitoken.methods.registry import MethodOptions, NamedMethod, register

Candidates = list[tuple[int, float]]  # (token, probability), best first


class StandOptions(MethodOptions):
    """Options of `Stand`."""

    block_size: int = Field(30, ge=2, description="slots of a forward: the root and block_size - 1 nodes")
    max_ngram: int = Field(4, ge=1, description="longest n-gram looked up; longer matches win")
    min_ngram: int = Field(1, ge=1, description="shortest n-gram looked up")
    kept: int = Field(10, ge=1, le=64, description="tokens kept of each distribution")
    width: int = Field(8, ge=1, description="most children of a node")
    depth: int = Field(20, ge=1, description="most levels of the tree")
    candidates: Literal["auto", "top", "gumbel"] = Field(
        "auto", description="top: the best tokens; gumbel: sampled without replacement; auto: by the temperature"
    )
    tree: Literal["probability", "ranks"] = Field(
        "probability",
        description="probability: best first by product of probabilities; ranks: one shape from rank_acceptance",
    )
    rank_acceptance: tuple[float, ...] = Field(
        (0.55, 0.12, 0.06, 0.03, 0.02, 0.01),
        min_length=1,
        description="tree ranks: how often the candidate of each rank is the model's token (the default is a rough "
        "guess, not measured: give shares seen on your own text)",
    )
    from_prompt: bool = Field(
        False, description="also count the tokens seen after the prompt's n-grams, where there are no logits"
    )

    @model_validator(mode="after")
    def _ordered(self) -> StandOptions:
        if self.min_ngram > self.max_ngram:
            raise ValueError(f"min_ngram {self.min_ngram} must not exceed max_ngram {self.max_ngram}")
        return self

    @field_validator("rank_acceptance")
    @classmethod
    def _shares(cls, shares: tuple[float, ...]) -> tuple[float, ...]:
        if min(shares) <= 0 or sum(shares) > 1:
            raise ValueError("give positive shares that sum to at most 1")
        return shares


@dataclass(slots=True)
class Average:
    """Running mean of the distributions after one n-gram, cut to its best tokens."""

    count: int
    candidates: Candidates


class NgramDistributions:
    """What the model expects after each n-gram of one sequence.

    Args:
        smallest, largest: n-gram sizes.
        kept: tokens kept of each distribution.
    """

    def __init__(self, smallest: int, largest: int, kept: int):
        self._sizes = range(largest, smallest - 1, -1)
        self._kept = kept
        self._after: dict[tuple[int, ...], Average] = {}

    def __len__(self) -> int:
        return len(self._after)

    def add(self, context: Sequence[int], candidates: Candidates) -> None:
        """Enter the distribution seen after ``context``, under each n-gram that ends it."""
        for size in self._sizes:
            if size > len(context):
                continue
            key = tuple(context[-size:])
            known = self._after.get(key)
            if known is None:
                self._after[key] = Average(1, candidates)
            else:
                known.candidates = self._averaged(known, candidates)
                known.count += 1

    def after(self, context: Sequence[int]) -> Candidates:
        """Mean distribution after the longest known n-gram that ends ``context``, best first; empty if none is."""
        for size in self._sizes:
            known = self._after.get(tuple(context[-size:])) if size <= len(context) else None
            if known is not None:
                return known.candidates
        return []

    def _averaged(self, known: Average, new: Candidates) -> Candidates:
        total = known.count + 1
        mean = {token: share * known.count / total for token, share in known.candidates}
        for token, share in new:
            mean[token] = mean.get(token, 0.0) + share / total
        return sorted(mean.items(), key=lambda item: -item[1])[: self._kept]


@dataclass(slots=True)
class StandState:
    """What one row keeps."""

    store: NgramDistributions
    random: random.Random


@register
class Stand(NamedMethod):
    """A tree of what the model expected after the same words before."""

    name = "stand"
    summary = "STAND: a tree from the model's logits after the same words before"
    Options = StandOptions
    options: StandOptions

    def start(self, row: Row) -> StandState:
        o = self.options
        store = NgramDistributions(o.min_ngram, o.max_ngram, o.kept)
        if o.from_prompt:
            for at in range(1, len(row.tokens)):
                store.add(row.tokens[max(0, at - o.max_ngram) : at], [(row.tokens[at], 1.0)])
        return StandState(store, random.Random(row.request.sampling.seed))

    def draft(self, rows: Sequence[Row]) -> Sequence[Draft]:
        return [self._draft(row) for row in rows]

    def observe(self, rows: Sequence[Row], step: Step) -> None:
        seen = [torch.tensor([0, *(node + 1 for node in path)]) for path in step.paths]
        logits = torch.cat([part[at.to(part.device)] for part, at in zip(step.node_logits, seen, strict=True)])
        best = logits.softmax(-1).topk(min(self.options.kept, logits.shape[-1]))
        # One transfer for all rows: probabilities and tokens side by side (float64 holds any token id).
        packed = torch.stack([best.values.double(), best.indices.double()]).tolist()
        found = zip(*packed, strict=True)
        for row, path in zip(rows, step.paths, strict=True):
            history = row.tokens[-(len(path) + 1 + self.options.max_ngram) :]
            for ahead in range(len(path) + 1, 0, -1):
                shares, tokens = next(found)
                candidates = [(int(token), share) for token, share in zip(tokens, shares, strict=True)]
                row.state.store.add(history[: len(history) - ahead], candidates)

    def _draft(self, row: Row) -> Draft:
        o = self.options
        state: StandState = row.state
        temperature = row.request.sampling.temperature
        sampled = o.candidates == "gumbel" or (o.candidates == "auto" and temperature > 0)
        grow = Growth(state.store, row.tokens[-o.max_ngram :], o, state.random if sampled else None, temperature)
        return grow.best_first() if o.tree == "probability" else grow.shaped()


class Growth:
    """Growth of one tree.

    Args:
        store: where candidates come from.
        context: newest tokens of the row, the root last.
        options: sizes and limits.
        noise: source of the Gumbel noise, or None for the best candidates.
        temperature: of the row; above 0 it flattens or sharpens the stored probabilities as it does the model's.
    """

    def __init__(
        self,
        store: NgramDistributions,
        context: list[int],
        options: StandOptions,
        noise: random.Random | None,
        temperature: float,
    ):
        self._store, self._context, self._options = store, context, options
        self._noise, self._temperature = noise, temperature
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._contexts: list[list[int]] = []

    def best_first(self) -> Draft:
        """The most probable paths, as many nodes as the budget allows."""
        o = self._options
        # (minus the path's probability, order of arrival, parent, depth, token)
        queue: list[tuple[float, int, int, int, int]] = []
        arrivals = 0
        node, depth, reached = ROOT, 0, 1.0
        while True:
            if depth < o.depth:
                for token, share in self._children(node)[: o.width]:
                    heapq.heappush(queue, (-reached * share, arrivals, node, depth + 1, token))
                    arrivals += 1
            if not queue or len(self.tokens) == o.block_size - 1:
                return Draft(self.tokens, self.parents)
            worth, _, parent, depth, token = heapq.heappop(queue)
            node, reached = self._add(parent, token), -worth

    def shaped(self) -> Draft:
        """The tree of fixed shape, as far as the store can fill it."""
        o = self._options
        children: dict[int, Candidates] = {}
        nodes = {ROOT: ROOT}  # place in the shape -> node
        for place, (above, rank) in enumerate(rank_tree(o.rank_acceptance[: o.width], o.block_size - 1, o.depth)):
            parent = nodes.get(above)
            if parent is None:
                continue
            if parent not in children:
                children[parent] = self._children(parent)
            if rank < len(children[parent]):
                nodes[place] = self._add(parent, children[parent][rank][0])
        return Draft(self.tokens, self.parents)

    def _add(self, parent: int, token: int) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self._contexts.append([*self._path(parent), token][-self._options.max_ngram :])
        return len(self.tokens) - 1

    def _path(self, node: int) -> list[int]:
        return self._context if node == ROOT else self._contexts[node]

    def _children(self, node: int) -> Candidates:
        """Candidates behind ``node`` in the order they are to be tried, with the probabilities they are worth."""
        stored = self._store.after(self._path(node))
        if self._temperature not in (0.0, 1.0) and stored:
            stored = tempered(stored, self._temperature)
        if self._noise is None:
            return stored
        # Gumbel top-K: ordering by log p + noise is sampling without replacement.
        draws = [
            (math.log(max(share, 1e-30)) - math.log(self._noise.expovariate(1.0)), token, share)
            for token, share in stored
        ]
        return [(token, share) for _, token, share in sorted(draws, reverse=True)]


def tempered(candidates: Candidates, temperature: float) -> Candidates:
    """Kept probabilities at another temperature, their sum unchanged (what was cut off is unknown)."""
    mass = sum(share for _, share in candidates)
    best = max(share for _, share in candidates)
    raised = [(token, (share / best) ** (1 / temperature)) for token, share in candidates]
    scale = mass / sum(share for _, share in raised)
    return [(token, share * scale) for token, share in raised]


@lru_cache(maxsize=64)
def rank_tree(shares: tuple[float, ...], nodes: int, depth: int) -> tuple[tuple[int, int], ...]:
    """The tree of ``nodes`` places that most raises the expected length, if candidate r is right with ``shares[r]``.

    Returns (parent place or ROOT, rank) of each place, parents before children.
    """
    tree: list[tuple[int, int]] = []
    queue = [(-share, 1, ROOT, rank) for rank, share in enumerate(shares)]
    heapq.heapify(queue)
    while queue and len(tree) < nodes:
        worth, level, parent, rank = heapq.heappop(queue)
        tree.append((parent, rank))
        if level < depth:
            for below, share in enumerate(shares):
                heapq.heappush(queue, (worth * share, level + 1, len(tree) - 1, below))
    return tuple(tree)
