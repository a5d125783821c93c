"""The cache against lists of tensors."""

from __future__ import annotations

import random

import pytest
import torch

from multitoken.models.cache import CHUNK, KVCache, LayerShape

SHAPES = [LayerShape(2, 4, 4), LayerShape(1, 3, 5), LayerShape(2, 4, 6)]


class ListCache:
    """What the cache must be: per row and layer, keys [H, n, D] and values [H, n, E] that are cut and joined."""

    def __init__(self):
        self.rows: list[list[tuple[torch.Tensor, torch.Tensor]]] = []

    def add_row(self):
        self.rows.append(
            [(torch.zeros(s.heads, 0, s.key_width), torch.zeros(s.heads, 0, s.value_width)) for s in SHAPES]
        )

    def remove_row(self, row):
        self.rows[row] = self.rows[-1]
        self.rows.pop()

    def swap_rows(self, a, b):
        self.rows[a], self.rows[b] = self.rows[b], self.rows[a]

    def length(self, row):
        return self.rows[row][0][0].shape[1]

    def commit(self, row, block, kept):
        self.rows[row] = [
            (torch.cat([k, bk[:, kept]], 1), torch.cat([v, bv[:, kept]], 1))
            for (k, v), (bk, bv) in zip(self.rows[row], block, strict=True)
        ]

    def truncate(self, row, length):
        self.rows[row] = [(k[:, :length], v[:, :length]) for k, v in self.rows[row]]


def check_forward(cache: KVCache, model: ListCache, first: int, rows: int, size: int) -> list:
    """Run one block of random entries through both; every row's prefix and block must be where attention looks."""
    span = cache.begin(first, rows, size)
    lengths = [model.length(first + b) for b in range(rows)]
    assert span == max(lengths) + size
    assert cache.get_seq_length() == max(lengths)
    assert cache.get_mask_sizes(size, 0) == (span, 0)
    blocks: list = [[] for _ in range(rows)]
    for layer, shape in enumerate(SHAPES):
        keys = torch.randn(rows, shape.heads, size, shape.key_width)
        values = torch.randn(rows, shape.heads, size, shape.value_width)
        seen_keys, seen_values = cache.update(keys, values, layer)
        assert seen_keys.shape[2] == seen_values.shape[2] == span
        for b in range(rows):
            k, v = model.rows[first + b][layer]
            end = lengths[b] + size
            assert torch.equal(seen_keys[b, :, :end], torch.cat([k, keys[b]], 1))
            assert torch.equal(seen_values[b, :, :end], torch.cat([v, values[b]], 1))
            blocks[b].append((keys[b], values[b]))
        assert torch.isfinite(seen_keys).all() and torch.isfinite(seen_values).all()
    return blocks


@pytest.mark.parametrize("seed", range(6))
def test_random_histories(seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    cache, model = KVCache(SHAPES, torch.float32, torch.device("cpu")), ListCache()
    longest = 0
    for _ in range(120):
        move = rng.random()
        count = len(model.rows)
        if count == 0 or (move < 0.1 and count < 9):
            assert cache.add_row() == count
            model.add_row()
        elif move < 0.15:
            row = rng.randrange(count)
            cache.remove_row(row)
            model.remove_row(row)
        elif move < 0.22:
            a, b = rng.randrange(count), rng.randrange(count)
            cache.swap_rows(a, b)
            model.swap_rows(a, b)
        elif move < 0.27:
            row = rng.randrange(count)
            length = rng.randint(0, model.length(row) + 2)
            cache.truncate(row, length)
            model.truncate(row, length)
        else:
            first = rng.randrange(count)
            rows = rng.randint(1, count - first)
            size = rng.choice([1, 2, 7, 30, CHUNK - 1, CHUNK + 3] if rng.random() < 0.2 else [1, 2, 7, 30])
            blocks = check_forward(cache, model, first, rows, size)
            for b in range(rows):
                certain = rng.randint(1, size)
                path = sorted(rng.sample(range(certain, size), rng.randint(0, size - certain)))
                cache.commit(first + b, certain, path)
                model.commit(first + b, blocks[b], [*range(certain), *path])
        assert cache.lengths == [model.length(row) for row in range(len(model.rows))]
        longest = max([longest, *cache.lengths])
    assert longest > CHUNK, "growth over chunk borders was exercised"


def test_growth_is_gradual():
    """Memory follows the longest row in chunks; short requests one after the other need no more than one."""
    cache = KVCache(SHAPES, torch.float32, torch.device("cpu"))
    at_first = cache.nbytes
    for _ in range(50):
        row = cache.add_row()
        cache.begin(row, 1, 20)
        cache.commit(row, 20, [])
        cache.remove_row(row)
    assert cache.nbytes == at_first
    row = cache.add_row()
    for _ in range(3):
        cache.begin(row, 1, CHUNK)
        cache.commit(row, CHUNK, [])
    assert at_first < cache.nbytes <= 4 * at_first
    assert len(cache) == len(SHAPES) and f"lengths=[{3 * CHUNK}]" in repr(cache)
