"""Cost of a forward against its block size."""

from __future__ import annotations

import pytest

from multitoken.errors import OptionError
from multitoken.models.cost import measure_cost, measure_costs


def test_one_point_per_size_in_order(backbone):
    points = measure_cost(backbone, [4, 1, 16], context=20, rows=2, repeats=2)
    assert [p.size for p in points] == [4, 1, 16]
    assert all(0 < p.fastest <= p.seconds for p in points)
    assert {(p.context, p.rows, p.dtype, p.repeats) for p in points} == {(20, 2, "float32", 2)}


def test_every_size_is_timed_equally_often_and_by_turns(backbone, monkeypatch):
    seen = []
    forward = type(backbone).forward

    def spy(self, block, cache):
        seen.append((block.size, tuple(cache.lengths)))
        return forward(self, block, cache)

    monkeypatch.setattr(type(backbone), "forward", spy)
    measure_cost(backbone, [1, 8], context=5, repeats=3)
    assert seen[0] == (5, (0,)), "the context is read once"
    assert seen[1:] == [(1, (5,)), (8, (5,))] * 4, "three counted rounds behind an unchanged cache, and one before"


def test_several_backbones(backbone):
    points = measure_costs([backbone, backbone], [1, 2], context=0, repeats=1)
    assert [p.size for p in points] == [1, 2, 1, 2]


@pytest.mark.parametrize(
    ("sizes", "context", "repeats", "named"),
    [([], 5, 1, "sizes"), ([0], 5, 1, "sizes"), ([4], -1, 1, "context"), ([4], 5, 0, "repeats"), ([7], 250, 1, "256")],
)
def test_impossible_settings_are_named(backbone, sizes, context, repeats, named):
    with pytest.raises(OptionError, match=named):
        measure_cost(backbone, sizes, context, repeats=repeats)
