"""Speculative decoding with a smaller model of the same vocabulary.

Sources: Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318; the schedules are those of Transformers'
assisted generation. The draft model writes a chain token by token, all rows at once, in a cache of its own that is
rolled back to what the target accepted. At temperature above 0 it draws with the row's own random numbers, so that both
models choose the same token as often as their distributions allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from multitoken.engine.commit import room
from multitoken.engine.draft import ROOT, Draft
from multitoken.engine.method import Step
from multitoken.engine.row import Row
from multitoken.engine.sampling import Sampler
from multitoken.errors import OptionError
from multitoken.methods.registry import MethodOptions, NamedMethod, register
from multitoken.models.backbone import Backbone
from multitoken.models.block import causal_block
from multitoken.models.cache import KVCache
from multitoken.models.loading import load_model

PREFILL_CHUNK = 512


class DraftModelOptions(MethodOptions):
    """Options of `DraftModel`."""

    draft_model: str | None = Field(
        None, description="smaller model of the same vocabulary: bundled name, .gguf file, folder or hub id"
    )
    num_tokens: int = Field(5, ge=1, description="tokens drafted per step; where a schedule starts from")
    schedule: Literal["constant", "heuristic"] = Field(
        "constant", description="heuristic: two more after a step that accepted all, one fewer after any other"
    )
    max_tokens: int = Field(20, ge=1, description="most tokens per step that the heuristic schedule may reach")
    confidence: float = Field(
        0.0, ge=0, lt=1, description="stop a chain behind a token that the draft model gives a smaller probability"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="of the draft model (auto: the target's)"
    )


@dataclass(slots=True, eq=False)
class DraftState:
    """What one row keeps.

    Attributes:
        sampler: the row's own, without user processors: these may count their calls, and must see true tokens only.
        count: tokens to draft next.
        fed: tokens that the draft cache holds, the first ``settled`` of them committed ones.
        slot: cache row, or None before the first draft.
        max_positions: of the target.
    """

    sampler: Sampler
    count: int
    max_positions: int | None
    fed: list[int] = field(default_factory=list)
    settled: int = 0
    slot: int | None = None


@register
class DraftModel(NamedMethod):
    """A chain by a smaller model.

    Args:
        options: see `DraftModelOptions`.
        backbone: the draft model, where it is in memory already; else ``draft_model`` is loaded on first use.

    Raises:
        OptionError: neither is given, or (in `bind`) the draft model's vocabulary is not the target's.
    """

    name = "draft"
    summary = "speculative decoding with a smaller model of the same vocabulary"
    Options = DraftModelOptions
    options: DraftModelOptions

    def __init__(self, options: MethodOptions | None = None, backbone: Backbone | None = None):
        super().__init__(options)
        if backbone is None and self.options.draft_model is None:
            raise OptionError("draft_model", None, "name a smaller model with the same vocabulary")
        self._model = backbone
        self._cache: KVCache | None = None
        self._members: list[DraftState] = []  # by cache row
        self._max_positions: int | None = None

    # -- the method's life ------------------------------------------------------------------------------------------

    def bind(self, backbone: Backbone) -> None:
        if self._model is None:
            name = str(self.options.draft_model)
            dtype = self.options.dtype if self.options.dtype != "auto" else backbone.dtype_name
            self._model = load_model(name, dtype=dtype, device=str(backbone.device)).backbone
        if self._model.vocab_size != backbone.vocab_size:
            raise OptionError(
                "draft_model",
                self.options.draft_model or type(self._model.module).__name__,
                f"its vocabulary has {self._model.vocab_size} entries and the target's {backbone.vocab_size}; "
                "use a draft model that shares the target's tokenizer",
            )
        if self._cache is None:
            self._cache = self._model.new_cache()
        self._max_positions = backbone.max_positions

    def start(self, row: Row) -> DraftState:
        sampling = row.request.sampling
        sampler = Sampler(replace(sampling, processors=()), row.prompt_length)
        return DraftState(sampler, self.options.num_tokens, self._max_positions)

    def stop(self, row: Row) -> None:
        state: DraftState = row.state
        if state.slot is not None:
            self.cache.remove_row(state.slot)
            last = self._members.pop()
            if last is not state:
                self._members[state.slot], last.slot = last, state.slot
            state.slot = None

    # -- drafting ---------------------------------------------------------------------------------------------------

    def draft(self, rows: Sequence[Row]) -> Sequence[Draft]:
        drafting = [row for row in rows if self._limit(row) > 0]
        chains = self._chains(self._gathered(drafting)) if drafting else {}
        return [
            Draft(chain, range(ROOT, len(chain) - 1)) if (chain := chains.get(id(row))) else Draft() for row in rows
        ]

    def _chains(self, rows: list[Row]) -> dict[int, list[int]]:
        """Chains of rows that are in cache order, by id of the row."""
        chains: list[list[int]] = [[] for _ in rows]
        limits = [self._limit(row) for row in rows]
        logits = self._catch_up(rows)
        while open_rows := [b for b, chain in enumerate(chains) if len(chain) < limits[b]]:
            self._extend(rows, chains, limits, open_rows, logits)
            going = [len(chain) < limit for chain, limit in zip(chains, limits, strict=True)]
            if any(going):
                logits = self._forward([chain[-1:] if go else [] for chain, go in zip(chains, going, strict=True)])
        return {id(row): chain for row, chain in zip(rows, chains, strict=True)}

    def observe(self, rows: Sequence[Row], step: Step) -> None:
        if self.options.schedule == "constant":
            return
        for row, draft, path in zip(rows, step.drafts, step.paths, strict=True):
            state: DraftState = row.state
            if draft.nodes and len(path) == draft.nodes:
                state.count = min(state.count + 2, self.options.max_tokens)
            elif draft.nodes:
                state.count = max(state.count - 1, 1)

    def _limit(self, row: Row) -> int:
        """How many tokens are of use to the target and fit the draft model's positions."""
        state: DraftState = row.state
        limit = min(state.count, room(row, state.max_positions))
        if self.model.max_positions is not None:
            limit = min(limit, self.model.max_positions - len(row.tokens))
        return max(limit, 0)

    def _extend(
        self, rows: list[Row], chains: list[list[int]], limits: list[int], open_rows: list[int], logits: Tensor
    ) -> None:
        """Append one token to each open chain; a chain that is to end there gets its length as its limit."""
        best = logits.argmax(-1).tolist()
        for b in open_rows:
            row, chain = rows[b], chains[b]
            request, state = row.request, row.state
            banned = request.ends if row.generated + len(chain) < request.min_tokens else frozenset()
            if state.sampler.sampling.plain_argmax and best[b] not in banned:
                token = best[b]
            else:
                token = state.sampler.draw(logits[b], row.tokens + chain, banned)
            chain.append(token)
            doubtful = self.options.confidence > 0 and float(logits[b].softmax(-1)[token]) < self.options.confidence
            if doubtful or token in request.ends:
                limits[b] = len(chain)

    # -- the draft model's cache ------------------------------------------------------------------------------------

    @property
    def model(self) -> Backbone:
        assert self._model is not None, "bind comes first"
        return self._model

    @property
    def cache(self) -> KVCache:
        assert self._cache is not None, "bind comes first"
        return self._cache

    def _gathered(self, rows: Sequence[Row]) -> list[Row]:
        """Give new rows a cache row, bring these to the front of the cache, and return them in the cache's order."""
        for row in rows:
            if row.state.slot is None:
                row.state.slot = self.cache.add_row()
                self._members.append(row.state)
        outside = [row.state for row in rows if row.state.slot >= len(rows)]
        drafting = {id(row.state) for row in rows}
        free = [slot for slot in range(len(rows)) if id(self._members[slot]) not in drafting]
        for state, slot in zip(outside, free, strict=True):
            self._swap(slot, state.slot)
        return sorted(rows, key=lambda row: row.state.slot)

    def _swap(self, first: int, second: int) -> None:
        self.cache.swap_rows(first, second)
        members = self._members
        members[first], members[second] = members[second], members[first]
        members[first].slot, members[second].slot = first, second

    def _catch_up(self, rows: list[Row]) -> Tensor:
        """Roll back to what the target kept and feed what is missing. Returns the logits behind each root, [B, V]."""
        missing = []
        for slot, row in enumerate(rows):
            state: DraftState = row.state
            # The root is always fed anew, since its logits are needed.
            kept = min(common_length(state.fed, row.tokens, state.settled), len(row.tokens) - 1)
            self.cache.truncate(slot, kept)
            del state.fed[kept:]
            state.settled = len(row.tokens)
            missing.append(row.tokens[kept:])
        while max(map(len, missing)) > PREFILL_CHUNK:
            heads = [part[:PREFILL_CHUNK] if len(part) > PREFILL_CHUNK else [] for part in missing]
            missing = [part[len(head) :] for part, head in zip(missing, heads, strict=True)]
            self._forward(heads)
        return self._forward(missing)

    def _forward(self, parts: list[list[int]]) -> Tensor:
        """Feed the first cache rows a part each and keep it. Returns the logits behind each part's end, [B, V].

        Rows with an empty part run along, and their logits mean nothing.
        """
        size = max(map(len, parts))
        device = self.model.device
        tokens = torch.tensor([part + [0] * (size - len(part)) for part in parts], device=device)
        start = torch.tensor(self.cache.lengths[: len(parts)], device=device)
        block = causal_block(tokens, start)
        if self.model.max_positions is not None:  # padding may run past the last position
            block.positions = block.positions.clamp(max=self.model.max_positions - 1)
        hidden = self.model.forward(block, self.cache)
        for slot, part in enumerate(parts):
            self.cache.commit(slot, len(part), [])
            self._members[slot].fed.extend(part)
        last = torch.tensor([max(len(part) - 1, 0) for part in parts], device=device)
        return self.model.project(hidden[torch.arange(len(parts), device=device), last])


def common_length(first: Sequence[int], second: Sequence[int], known: int) -> int:
    """Length of the common prefix of two sequences whose first ``known`` entries are equal."""
    at = min(known, len(first), len(second))
    while at < min(len(first), len(second)) and first[at] == second[at]:
        at += 1
    return at
