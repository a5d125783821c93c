"""Figures."""

from __future__ import annotations

import sys

import pytest
import torch

from multitoken.bench.alignment import summarize
from multitoken.bench.plots import alignment_figure, check_plot, cost_figure
from multitoken.errors import OptionError
from multitoken.models.cost import CostPoint

POINTS = [CostPoint(size, 0.01 * size, 0.009, 16, 1, dtype, 3) for dtype in ("float32", "bfloat16") for size in (1, 2)]


def test_cost_figure_names_what_it_shows():
    pytest.importorskip("matplotlib")
    svg = cost_figure(POINTS, "a-model", "svg").decode()
    assert svg.count('<g id="line2d') > 2 and "</svg>" in svg
    assert cost_figure(POINTS, "a-model", "png").startswith(b"\x89PNG")


@pytest.mark.parametrize("hits", [[True, False], [True, True], [False, False]])
def test_alignment_figure_with_either_kind_missing(hits):
    pytest.importorskip("matplotlib")
    found = summarize(torch.rand(4, 2, dtype=torch.float64), torch.tensor(hits), 14)
    assert alignment_figure(found, "a-model", "vocab", "png").startswith(b"\x89PNG")


def test_a_figure_that_cannot_be_written_is_refused_before_measuring(tmp_path, monkeypatch):
    with pytest.raises(OptionError, match="ends in .svg"):
        check_plot(tmp_path / "figure.gif")
    with pytest.raises(OptionError, match="folder does not exist"):
        check_plot(tmp_path / "none" / "figure.svg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(OptionError, match=r"multitoken\[plot\]"):
        check_plot(tmp_path / "figure.svg")
