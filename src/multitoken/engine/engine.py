"""The engine: rows of token ids, one forward per step for all of them.

A step is draft -> block -> forward -> verify -> commit -> observe. Rows may differ in length, method and sampling; they
enter and leave between steps. The engine knows ids only: no text, no files, and no particular method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter

import torch
from torch import Tensor

from multitoken.engine.commit import commit, room
from multitoken.engine.draft import Draft
from multitoken.engine.layout import Layout, layout, prefill_layout
from multitoken.engine.method import Method, Step
from multitoken.engine.row import Request, Row
from multitoken.engine.verify import Walk, verify
from multitoken.errors import OptionError
from multitoken.models.backbone import Backbone

PREFILL_CHUNK = 512


@dataclass(slots=True)
class Clock:
    """Seconds spent in the parts of decode steps, and their number. On a GPU, launches only."""

    steps: int = 0
    draft: float = 0.0
    layout: float = 0.0
    forward: float = 0.0
    project: float = 0.0
    verify: float = 0.0
    observe: float = 0.0

    @property
    def model(self) -> float:
        """Inside the model: the decoder and the vocabulary projection."""
        return self.forward + self.project

    @property
    def total(self) -> float:
        return self.model + self.draft + self.layout + self.verify + self.observe


@dataclass(slots=True)
class Emission:
    """Tokens that one step committed to one row."""

    row: Row
    tokens: list[int]


class Engine:
    """Generates for any number of rows at once.

    Args:
        backbone: the model.
        prefill_chunk: prompt tokens per prefill forward.
    """

    def __init__(self, backbone: Backbone, prefill_chunk: int = PREFILL_CHUNK):
        if prefill_chunk < 1:
            raise OptionError("prefill_chunk", prefill_chunk, "use 1 or more")
        self.backbone = backbone
        self.rows: list[Row] = []
        self.clock = Clock()
        self._cache = backbone.new_cache()
        self._chunk = prefill_chunk
        self._prefill_turn = True
        self._reading: list[Row] = []  # rows that still read their prompt, in order of arrival

    # -- rows -------------------------------------------------------------------------------------------------------

    def add(self, request: Request) -> Row:
        """Let a sequence in. Raises `OptionError` for a prompt that leaves no room, or ids outside the vocabulary."""
        check_request(request, self.backbone)
        request.method.bind(self.backbone)
        row = Row.of(request)
        row.state = request.method.start(row)
        self._cache.add_row()
        self.rows.append(row)
        self._reading.append(row)
        return row

    def remove(self, row: Row) -> None:
        """Take a row out, finished or not; the others do not notice. Does nothing if it has left already."""
        if row not in self.rows:
            return
        index = self.rows.index(row)
        self._cache.remove_row(index)
        self.rows[index] = self.rows[-1]
        self.rows.pop()
        if row in self._reading:
            self._reading.remove(row)
        row.method.stop(row)

    def finish(self, row: Row, reason: str) -> None:
        """End a row from outside (stop string, cancellation)."""
        row.finish_reason = reason
        self.remove(row)

    # -- steps ------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> list[Emission]:
        """One forward. Returns what it committed; finished rows have left. Empty while a long prompt is read."""
        if not self.rows:
            return []
        started = perf_counter()
        rows = self._turn()
        reading = not rows[0].prefilled
        if reading and rows[0].pending > self._chunk:
            self._read_chunk(rows[0])
            rows[0].prefill_seconds += perf_counter() - started
            return []
        if reading:
            self._reading.remove(rows[0])
        emissions = self._decode(rows, timed=not reading)
        elapsed = perf_counter() - started
        for row in rows:
            if reading:
                row.prefill_seconds += elapsed
            else:
                row.decode_seconds += elapsed
        return emissions

    def _turn(self) -> list[Row]:
        """Rows of the next forward: one row that still reads its prompt, or all the others, by turns."""
        # Rows that decode come first in the cache, so that a block covers neighbouring rows.
        ready = self._gather_ready()
        if self._reading and (self._prefill_turn or not ready):
            self._prefill_turn = False
            return self._reading[:1]
        self._prefill_turn = True
        return ready

    def _gather_ready(self) -> list[Row]:
        ready = 0
        for index, row in enumerate(self.rows):
            if row.prefilled:
                if index != ready:
                    self._cache.swap_rows(index, ready)
                    self.rows[index], self.rows[ready] = self.rows[ready], self.rows[index]
                ready += 1
        return self.rows[:ready]

    def _read_chunk(self, row: Row) -> None:
        index = self.rows.index(row)
        plan = prefill_layout(row, index, self._chunk, self.backbone.device)
        self.backbone.forward(plan.block, self._cache)
        self._cache.commit(index, self._chunk, [])
        row.pending -= self._chunk

    def _decode(self, rows: list[Row], timed: bool) -> list[Emission]:
        marks = [perf_counter()]
        first = self.rows.index(rows[0])
        drafts = self._drafts(rows)
        marks.append(perf_counter())
        plan = layout(rows, drafts, first, self.backbone.device)
        marks.append(perf_counter())
        hidden = self.backbone.forward(plan.block, self._cache)
        marks.append(perf_counter())
        logits = self._chosen_from(rows, plan, hidden, self._node_logits(plan, hidden))
        marks.append(perf_counter())
        walks = verify(rows, drafts, logits)
        emissions = self._commit(rows, plan, walks, first)
        marks.append(perf_counter())
        projected = self._observe(rows, plan, walks, hidden, logits, emissions)
        marks.append(perf_counter())
        if timed:
            self._count(marks, projected)
        self._leave(rows)
        return emissions

    def _drafts(self, rows: list[Row]) -> list[Draft]:
        drafts: list[Draft] = [Draft()] * len(rows)
        for method, members in by_method(rows):
            made = method.draft([rows[i] for i in members])
            for i, draft in zip(members, made, strict=True):
                drafts[i] = draft.trimmed(room(rows[i], self.backbone.max_positions))
        return drafts

    def _node_logits(self, plan: Layout, hidden: Tensor) -> list[Tensor]:
        """Logits of root and nodes of every row, in one projection."""
        counts = [1 + draft.nodes for draft in plan.drafts]
        parts = [hidden[b, plan.certain[b] - 1 :][:count] for b, count in enumerate(counts)]
        return list(self.backbone.project(torch.cat(parts) if len(parts) > 1 else parts[0]).split(counts))

    def _chosen_from(self, rows: list[Row], plan: Layout, hidden: Tensor, logits: list[Tensor]) -> list[Tensor]:
        """The logits that tokens are chosen from: the model's, unless a lossy method gives others."""
        if all(row.method.lossless for row in rows):
            return logits
        for method, members in by_method(rows):
            if not method.lossless:
                roots = hidden[members, [plan.certain[b] - 1 for b in members]]
                chosen = method.choose([rows[b] for b in members], roots, [logits[b] for b in members])
                for b, values in zip(members, chosen, strict=True):
                    logits[b] = values
        return logits

    def _commit(self, rows: list[Row], plan: Layout, walks: list[Walk], first: int) -> list[Emission]:
        emissions = []
        for b, (row, draft, walk) in enumerate(zip(rows, plan.drafts, walks, strict=True)):
            certain = plan.certain[b]
            self._cache.commit(first + b, certain, [certain + node for node in walk.path])
            row.pending -= certain
            if row.prefilled:
                row.blocks.append(certain + draft.slots)
                count_depths(row, draft, walk.path)
            emissions.append(Emission(row, commit(row, walk.tokens, walk.logprobs, self.backbone.max_positions)))
            row.pending += len(emissions[-1].tokens) - len(walk.path)
            row.spans.append(len(emissions[-1].tokens))
        return emissions

    def _observe(
        self,
        rows: list[Row],
        plan: Layout,
        walks: list[Walk],
        hidden: Tensor,
        logits: list[Tensor],
        emissions: list[Emission],
    ) -> float:
        """Tell the methods what happened. Returns the seconds of it spent projecting probes."""
        going = [b for b, row in enumerate(rows) if row.finish_reason is None]
        wanted = [rows[b].method.wanted(rows[b], plan.drafts[b], walks[b].path) for b in going]
        started = perf_counter()
        probe_logits = self._probe_logits(plan, hidden, going, wanted)
        projecting = perf_counter() - started
        for method, members in by_method([rows[b] for b in going]):
            index = [going[i] for i in members]
            group = [rows[b] for b in index]
            anchors = [plan.certain[b] - 1 + (walks[b].path[-1] + 1 if walks[b].path else 0) for b in index]
            step = Step(
                drafts=[plan.drafts[b] for b in index],
                paths=[walks[b].path for b in index],
                tokens=[walks[b].tokens for b in index],
                hidden=hidden[index, anchors],
                node_logits=[logits[b] for b in index],
                probe_slots=[wanted[i] for i in members],
                probe_logits=[probe_logits[i] for i in members],
            )
            method.observe(group, step)
            if not method.lossless:
                self._extend(method, group, step, [emissions[b] for b in index])
        return projecting

    def _extend(self, method: Method, rows: list[Row], step: Step, emissions: list[Emission]) -> None:
        for row, extra, emission in zip(rows, method.extend(rows, step), emissions, strict=True):
            kept = commit(row, extra, [], self.backbone.max_positions)
            row.pending += len(kept)
            row.spans[-1] += len(kept)
            emission.tokens.extend(kept)

    def _probe_logits(
        self, plan: Layout, hidden: Tensor, going: Sequence[int], wanted: Sequence[list[int]]
    ) -> list[Tensor]:
        counts = [len(slots) for slots in wanted]
        rows = [b for b, slots in zip(going, wanted, strict=True) for _ in slots]
        columns = [plan.certain[b] + slot for b, slots in zip(going, wanted, strict=True) for slot in slots]
        if not rows:
            return [hidden.new_zeros(0, self.backbone.vocab_size, dtype=torch.float32)] * len(going)
        return list(self.backbone.project(hidden[rows, columns]).split(counts))

    def _leave(self, rows: list[Row]) -> None:
        for row in rows:
            if row.finish_reason is not None:
                self.remove(row)

    def _count(self, marks: list[float], projecting: float) -> None:
        draft, arranged, forward, project, verified, observed = (b - a for a, b in pairwise(marks))
        clock = self.clock
        clock.steps += 1
        clock.draft += draft
        clock.layout += arranged
        clock.forward += forward
        clock.project += project + projecting
        clock.verify += verified
        clock.observe += observed - projecting


def by_method(rows: Sequence[Row]) -> list[tuple[Method, list[int]]]:
    """Indices of the rows that share a method object, in order of first appearance."""
    groups: dict[int, tuple[Method, list[int]]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(id(row.method), (row.method, []))[1].append(index)
    return list(groups.values())


def count_depths(row: Row, draft: Draft, path: list[int]) -> None:
    """Add a draft's nodes and its accepted path to the row's counters by depth."""
    if not draft.nodes:
        return
    depths = draft.shape.depths[: draft.nodes].tolist()
    deepest = max(depths)
    for counter in (row.drafted, row.accepted):
        counter.extend([0] * (deepest - len(counter)))
    for depth in depths:
        row.drafted[depth - 1] += 1
    for depth in range(len(path)):
        row.accepted[depth] += 1


def check_request(request: Request, backbone: Backbone) -> None:
    """Raise `OptionError` for a request that the model cannot serve."""
    if not request.prompt:
        raise OptionError("prompt", "", "give at least one token of text")
    if request.max_new_tokens < 1:
        raise OptionError("max_new_tokens", request.max_new_tokens, "use 1 or more")
    if not 0 <= request.min_tokens <= request.max_new_tokens:
        raise OptionError("min_tokens", request.min_tokens, "use a number from 0 to max_new_tokens")
    if not 0 <= min(request.prompt) <= max(request.prompt) < backbone.vocab_size:
        raise OptionError("prompt", "token ids", f"use ids from 0 to {backbone.vocab_size - 1}")
    limit = backbone.max_positions
    if limit is not None and len(request.prompt) >= limit:
        raise OptionError(
            "prompt", f"{len(request.prompt)} tokens", f"shorten it below the model's context of {limit} tokens"
        )
    for option, tokens in (("logit_bias", request.sampling.logit_bias), ("stop_token_ids", request.stop_tokens)):
        if unknown := [token for token in tokens if not 0 <= token < backbone.vocab_size]:
            raise OptionError(option, unknown[0], f"use token ids from 0 to {backbone.vocab_size - 1}")
    if request.logprobs is not None:
        if not 0 <= request.logprobs <= backbone.vocab_size:
            raise OptionError("logprobs", request.logprobs, f"use a number from 0 to {backbone.vocab_size}")
        if not request.method.lossless:
            raise OptionError(
                "logprobs",
                request.logprobs,
                f"method {request.method.name} commits tokens before the model has seen them; use a lossless method",
            )
