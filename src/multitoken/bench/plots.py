"""Figures of measurements, as SVG or PNG files. Needs the extra ``plot``."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from multitoken.bench.alignment import Alignment
from multitoken.errors import OptionError
from multitoken.models.cost import CostPoint

FORMATS = (".svg", ".png", ".pdf")
HIT, MISS, SIZE = "#1b7837", "#b2182b", (6.4, 4.0)


def check_plot(path: Path) -> None:
    """Raise `OptionError` now for a figure that could not be written after the measurement."""
    if path.suffix.lower() not in FORMATS:
        raise OptionError("plot", str(path), f"name a file that ends in {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise OptionError("plot", str(path), "its folder does not exist; make it first")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise OptionError("plot", str(path), "figures need matplotlib: pip install 'multitoken[plot]'") from None


def cost_figure(points: Sequence[CostPoint], model: str, format: str) -> bytes:
    """Milliseconds per forward against block size, one line per dtype and runtime. ``format``: svg, png or pdf."""
    figure, axes = _axes(f"Cost of a forward of {model}, {points[0].context} tokens cached", "block size", "ms")
    for label in dict.fromkeys(point.label for point in points):
        line = [point for point in points if point.label == label]
        axes.plot([p.size for p in line], [1e3 * p.seconds for p in line], marker="o", label=label)
    sizes = sorted({point.size for point in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return _bytes(figure, format)


def alignment_figure(found: Alignment, model: str, init: str, format: str) -> bytes:
    """Mean cosine per layer for probes that hit and that missed."""
    title = f"{model}: probe ({init}) against the true hidden state"
    figure, axes = _axes(title, "layer (0: input)", "mean cosine")
    for curve, colour, label in (
        (found.hits, HIT, f"true token in the top {found.top_k} ({found.hit_count})"),
        (found.misses, MISS, f"not in the top {found.top_k} ({found.miss_count})"),
    ):
        if curve is not None:
            axes.plot(range(len(curve)), curve, color=colour, label=label)
    axes.legend(frameon=False)
    return _bytes(figure, format)


def _axes(title: str, x: str, y: str) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # without pyplot: no window system, no global state

    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _bytes(figure: Any, format: str) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=format, dpi=150)
    return buffer.getvalue()
