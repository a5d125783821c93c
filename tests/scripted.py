"""Methods with known drafts, for tests of the engine: right guesses, wrong guesses and probes in random trees."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from multitoken.engine.draft import ROOT, Draft
from multitoken.engine.engine import Engine
from multitoken.engine.method import Method, Step
from multitoken.engine.row import Request, Row
from multitoken.methods.plain import Plain
from multitoken.models.backbone import Backbone


class Scripted(Method):
    """Drafts what ``make(row)`` says and records every call of the engine."""

    name = "scripted"
    lossless = True

    def __init__(self, make: Callable[[Row], Draft] = lambda row: Draft()):
        self.make = make
        self.backbone: Backbone | None = None
        self.drafted: list[Draft] = []
        self.steps: list[tuple[list[Row], Step]] = []
        self.stopped: list[Row] = []

    def bind(self, backbone: Backbone) -> None:
        self.backbone = backbone

    def draft(self, rows: Sequence[Row]) -> Sequence[Draft]:
        made = [self.make(row) for row in rows]
        self.drafted += made
        return made

    def observe(self, rows: Sequence[Row], step: Step) -> None:
        self.steps.append((list(rows), step))

    def stop(self, row: Row) -> None:
        self.stopped.append(row)


class Guesses(Scripted):
    """Random trees with probes. Where the continuation of a prompt is known, they hold part of it among distractors.

    Args:
        vocab, width: of the model.
        truth: prompt -> its continuation. Rows of other prompts get wrong guesses only.
        nodes: largest number of candidates.
    """

    name = "guesses"

    def __init__(
        self, vocab: int, width: int, truth: Mapping[tuple[int, ...], list[int]] | None = None, nodes: int = 7, seed=0
    ):
        super().__init__(self._tree)
        self._vocab, self._width, self._truth, self._nodes = vocab, width, truth or {}, nodes
        self._random = random.Random(seed)

    def _tree(self, row: Row) -> Draft:
        rng = self._random
        coming = self._truth.get(row.request.prompt, [])[row.generated :]
        tokens, parents, right = [], [], {ROOT: 0}  # right: nodes on the true path -> their depth
        for node in range(rng.randint(0, self._nodes)):
            deepest = max(right, key=lambda slot: right[slot])
            parent = deepest if rng.random() < 0.6 else rng.randint(ROOT, node - 1)
            token = rng.randrange(self._vocab)
            if parent == deepest and right[parent] < len(coming) and rng.random() < 0.7:
                token = coming[right[parent]]
                right[node] = right[parent] + 1
            tokens.append(token)
            parents.append(parent)
        probes = 0
        for owner in range(ROOT, len(tokens)):
            if rng.random() < 0.3:
                parents.append(owner)
                probes += 1
                for _ in range(rng.randint(0, 2)):
                    parents.append(len(parents) - 1)
                    probes += 1
        if probes and rng.random() < 0.5:
            return Draft(tokens, parents, probe_tokens=[rng.randrange(self._vocab) for _ in range(probes)])
        return Draft(tokens, parents, vectors=torch.randn(probes, self._width) if probes else None)


def run(engine: Engine) -> None:
    """Step until every row has left."""
    for _ in range(100_000):
        if not engine.rows:
            return
        engine.step()
    raise AssertionError("the engine does not come to an end")


def generate(
    backbone: Backbone,
    prompts: Sequence[Sequence[int]],
    method: Method | None = None,
    *,
    chunk: int = 512,
    **request: Any,
) -> list[Row]:
    """Finished rows of several prompts that share their settings."""
    engine = Engine(backbone, prefill_chunk=chunk)
    method = method or Plain()
    rows = [engine.add(Request(tuple(prompt), method, **request)) for prompt in prompts]
    run(engine)
    return rows
