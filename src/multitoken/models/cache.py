"""Key-value cache with rows of different length, in-place blocks and roll-back by length.

Each layer's keys and values live in pools allocated in chunks. A forward writes its block behind the committed
prefix of each row; `commit` then moves the accepted path into place, and everything else is forgotten by not
counting it. Sliding-window layers keep all their entries: the window is a matter of the mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Cache

CHUNK = 256


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Heads and widths of one layer's cache entries."""

    heads: int
    key_width: int
    value_width: int


class KVCache(Cache):
    """Cache of all layers for a changing set of rows.

    Args:
        shapes: one `LayerShape` per layer.
        dtype, device: of the entries.
        rows: rows to allocate at first; more are added as needed.
    """

    def __init__(self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device, rows: int = 1):
        # The base class keeps one object per layer; here one object keeps all layers, so its constructor is not run.
        self.layers = []
        self.lengths: list[int] = []
        self._shapes = list(shapes)
        self._dtype, self._device = dtype, device
        self._row_capacity, self._capacity = rows, 0
        self._pools: list[Tensor] = []
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._first, self._count, self._block = 0, 0, 0
        self._span = 0
        self._scatter: tuple[Tensor, Tensor] | None = None
        self._allocate(rows, CHUNK)

    # -- rows -------------------------------------------------------------------------------------------------------

    def add_row(self) -> int:
        """Append an empty row and return its index."""
        if len(self.lengths) == self._row_capacity:
            self._allocate(max(2 * self._row_capacity, 4), self._capacity)
        self.lengths.append(0)
        return len(self.lengths) - 1

    @torch.inference_mode()  # the pools may have grown inside a step, and are then inference tensors
    def remove_row(self, row: int) -> None:
        """Drop ``row``; the last row takes its index."""
        last = len(self.lengths) - 1
        length = self.lengths[last]
        if row != last:
            for pool in self._pools:
                pool[:, row, :, :length] = pool[:, last, :, :length]
            self.lengths[row] = length
        self.lengths.pop()

    @torch.inference_mode()  # the pools may have grown inside a step, and are then inference tensors
    def swap_rows(self, first: int, second: int) -> None:
        """Exchange two rows."""
        used = max(self.lengths[first], self.lengths[second])
        for pool in self._pools:
            held = pool[:, first, :, :used].clone()
            pool[:, first, :, :used] = pool[:, second, :, :used]
            pool[:, second, :, :used] = held
        self.lengths[first], self.lengths[second] = self.lengths[second], self.lengths[first]

    # -- one forward ------------------------------------------------------------------------------------------------

    def begin(self, first_row: int, rows: int, block: int) -> int:
        """Prepare for a forward of ``block`` slots over ``rows`` rows. Returns the key length that attention sees."""
        lengths = self.lengths[first_row : first_row + rows]
        self._first, self._count, self._block = first_row, rows, block
        self._span = max(lengths) + block
        if self._span > self._capacity:
            self._allocate(self._row_capacity, self._grown(self._span))
        if all(length == lengths[0] for length in lengths):
            self._scatter = None
        else:
            start = torch.tensor(lengths, device=self._device)
            slots = start[:, None] + torch.arange(block, device=self._device)
            index = torch.arange(first_row, first_row + rows, device=self._device)
            self._scatter = (index[:, None], slots)
        return self._span

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write the block of one layer ([B, H, Q, D]) and return the keys and values to attend to ([B, H, K, D])."""
        rows = slice(self._first, self._first + self._count)
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        if self._scatter is None:
            start = self.lengths[self._first]
            keys[rows, :, start : start + self._block] = key_states
            values[rows, :, start : start + self._block] = value_states
        else:
            index, slots = self._scatter
            keys[index, :, slots] = key_states.transpose(1, 2)
            values[index, :, slots] = value_states.transpose(1, 2)
        return keys[rows, :, : self._span], values[rows, :, : self._span]

    def commit(self, row: int, certain: int, path: Sequence[int]) -> None:
        """Keep ``certain`` first slots of the block just run, and the slots ``path`` (block indices, ascending)."""
        start = self.lengths[row]
        kept = certain + len(path)
        if any(slot != certain + i for i, slot in enumerate(path)):
            source = torch.tensor([start + slot for slot in path], device=self._device)
            for pool in self._pools:
                view = pool[:, row]
                view[:, :, start + certain : start + kept] = view.index_select(2, source)
        self.lengths[row] = start + kept

    def truncate(self, row: int, length: int) -> None:
        """Roll ``row`` back to its first ``length`` entries."""
        self.lengths[row] = min(self.lengths[row], length)

    # -- what Transformers asks of a cache --------------------------------------------------------------------------

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return max(self.lengths[self._first : self._first + self._count], default=0)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._span, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def __len__(self) -> int:
        return len(self._shapes)

    def __repr__(self) -> str:
        return f"KVCache(layers={len(self._shapes)}, lengths={self.lengths}, capacity={self._capacity})"

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def nbytes(self) -> int:
        """Bytes held by the pools."""
        return sum(pool.numel() * pool.element_size() for pool in self._pools)

    # -- storage ----------------------------------------------------------------------------------------------------

    def _grown(self, needed: int) -> int:
        # A quarter more than is held now keeps the number of copies logarithmic in the length.
        target = max(needed, self._capacity + self._capacity // 4)
        return -(-target // CHUNK) * CHUNK

    def _allocate(self, rows: int, capacity: int) -> None:
        """(Re)allocate all pools, keeping what the rows hold.

        Tensors of one shape share a pool, so that `commit` moves a path in all layers with one copy per pool.
        """
        members: dict[tuple[int, int], list[tuple[list[Tensor], int]]] = {}
        keys: list[Tensor] = [torch.empty(0)] * len(self._shapes)
        values: list[Tensor] = [torch.empty(0)] * len(self._shapes)
        for layer, shape in enumerate(self._shapes):
            members.setdefault((shape.heads, shape.key_width), []).append((keys, layer))
            members.setdefault((shape.heads, shape.value_width), []).append((values, layer))
        pools = []
        used = max(self.lengths, default=0)
        for number, ((heads, width), owners) in enumerate(members.items()):
            # Zeros, not empty: attention multiplies masked values by zero, and zero times an old NaN is NaN.
            pool = torch.zeros(len(owners), rows, heads, capacity, width, dtype=self._dtype, device=self._device)
            if self._pools and used:
                held = len(self.lengths)
                pool[:, :held, :, :used] = self._pools[number][:, :held, :, :used]
            for view, (target, layer) in zip(pool, owners, strict=True):
                target[layer] = view
            pools.append(pool)
        self._pools, self._keys, self._values = pools, keys, values
        self._row_capacity, self._capacity = rows, capacity
