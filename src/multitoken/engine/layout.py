"""From rows and drafts to the flat tensors of a block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from multitoken.engine.draft import Draft
from multitoken.engine.row import Row
from multitoken.models.adapter import Adapter
from multitoken.models.block import Block, causal_block


@dataclass(slots=True)
class Layout:
    """A block and where each row's parts are in it: ``certain[b]`` tokens, then the slots of ``drafts[b]``."""

    block: Block
    certain: list[int]
    drafts: Sequence[Draft]

    @property
    def sizes(self) -> list[int]:
        """Slots of each row, padding not counted."""
        return [certain + draft.slots for certain, draft in zip(self.certain, self.drafts, strict=True)]


def prefill_layout(row: Row, index: int, chunk: int, device: torch.device) -> Layout:
    """The next ``chunk`` pending tokens of one row, nothing drafted."""
    start = row.cached
    tokens = torch.tensor([row.tokens[start : start + chunk]], device=device)
    block = causal_block(tokens, torch.tensor([start], device=device), index)
    size = tokens.shape[1]
    block.adapted = adapted_slots([row], [size], [size], size, device)
    return Layout(block, [tokens.shape[1]], [Draft()])


def layout(rows: Sequence[Row], drafts: Sequence[Draft], first_row: int, device: torch.device) -> Layout:
    """Pack all pending tokens and the drafts of neighbouring cache rows into one block."""
    certain = [row.pending for row in rows]
    size = max(count + draft.slots for count, draft in zip(certain, drafts, strict=True))
    tokens = np.zeros((len(rows), size), dtype=np.int64)
    positions = np.zeros((len(rows), size), dtype=np.int64)
    visible = np.zeros((len(rows), size, size), dtype=bool)
    probes = np.zeros((len(rows), size), dtype=bool)
    vectors: list[Tensor] = []
    vector_index: list[np.ndarray] = []
    diagonal = np.arange(size)
    visible[:, diagonal, diagonal] = True  # padding sees itself: attention over nothing is not defined
    for b, (row, count, draft) in enumerate(zip(rows, certain, drafts, strict=True)):
        start, stop = row.cached, count + draft.slots
        tokens[b, :count] = row.tokens[start:]
        positions[b, :count] = np.arange(start, start + count)
        visible[b, :count, :count] = np.tri(count, dtype=bool)
        if not draft.slots:
            continue
        shape = draft.shape
        nodes = count + draft.nodes
        tokens[b, count:nodes] = draft.tokens
        positions[b, count:stop] = start + count - 1 + shape.depths
        visible[b, count:stop, :count] = True
        visible[b, count:stop, count:stop] = shape.ancestors
        if draft.probes:
            probes[b, nodes:stop] = True
            if draft.vectors is not None:
                vectors.append(draft.vectors)
                vector_index.append(b * size + np.arange(nodes, stop))
            else:
                tokens[b, nodes:stop] = draft.probe_tokens or ()
    block = Block(
        tokens=torch.from_numpy(tokens).to(device),
        positions=torch.from_numpy(positions).to(device),
        visible=torch.from_numpy(visible).to(device),
        first_row=first_row,
        vectors=torch.cat(vectors) if vectors else None,
        vector_index=torch.from_numpy(np.concatenate(vector_index)).to(device) if vectors else None,
        probe_mask=torch.from_numpy(probes).to(device) if probes.any() else None,
        causal=not any(draft.slots for draft in drafts),
        adapted=adapted_slots(
            rows,
            [count + draft.nodes for count, draft in zip(certain, drafts, strict=True)],
            [count + draft.slots for count, draft in zip(certain, drafts, strict=True)],
            size,
            device,
        ),
    )
    return Layout(block, certain, drafts)


def adapted_slots(
    rows: Sequence[Row], probes: Sequence[int], stops: Sequence[int], size: int, device: torch.device
) -> dict[Adapter, Tensor]:
    """Slots that the adapters of the rows' methods act on, as indices into the flattened block.

    Args:
        probes: first probe slot of each row: a gated adapter acts from there on, any other on the whole row.
        stops: end of each row.
        size: slots per row, padding included.
    """
    found: dict[Adapter, list[np.ndarray]] = {}
    for b, row in enumerate(rows):
        adapter = row.method.adapter
        if adapter is not None:
            first = probes[b] if adapter.gated else 0
            found.setdefault(adapter, []).append(b * size + np.arange(first, stops[b]))
    return {
        adapter: torch.from_numpy(np.concatenate(parts)).to(device)
        for adapter, parts in found.items()
        if sum(map(len, parts))
    }
