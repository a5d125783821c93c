"""The report's plots as inline SVG that follows the page's colours, light or dark. Needs the extra ``plot``."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from multitoken.bench.schema import CostEntry, MethodResult, Results, Summary
from multitoken.errors import MultitokenError

COLOURS = ("#8a8f98", "#3d8bfd", "#f28e2b", "#21a179", "#d64f6a", "#9a6fe0", "#b59b00", "#16a3b8", "#c2699f", "#7c9a3d")
MARKERS = "osD^vPX<>h"
INK, GRID = "#010203", "#040506"  # stand for the page's own colour
OVERALL = "overall"


def check_matplotlib() -> None:
    """Raise now, not after hours of measuring, if the plots could not be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MultitokenError("the report needs matplotlib: pip install 'multitoken[plot]'") from None


def category_figure(results: Results, value: str, label: str) -> str:
    """One row per category and one for all, one mark per method. ``value``: a field of `Summary`."""
    rows = [*results.categories, OVERALL] if len(results.categories) > 1 else [OVERALL]
    methods = [m for m in results.methods if getattr(m.overall, value) is not None]
    with axes(6.6, 1.2 + 0.3 * len(rows) + 0.1 * len(methods), label, "") as (figure, plot):
        for lane, (method, colour, marker) in enumerate(styled(methods, results)):
            shift = 0.6 * ((lane + 0.5) / len(methods) - 0.5)  # so that equal values do not hide each other
            values = [getattr(part(method, row), value) for row in rows]
            points = [(x, place + shift) for place, x in enumerate(values) if x is not None]
            plot.plot(*zip(*points, strict=True), marker, color=colour, markersize=5, alpha=0.9, label=method.label)
        plot.set_yticks(range(len(rows)), rows)
        plot.set_ylim(len(rows) - 0.5, -0.5)
        plot.axvline(1.0, color=INK, linewidth=0.8, alpha=0.5)
        legend(plot)
        return svg(figure)


def block_figure(results: Results) -> str:
    """tau against the mean block size; settings of one method are joined."""
    with axes(6.6, 3.6, "mean block size", "tau") as (figure, plot):
        known = [m for m in results.methods if m.overall.block_size is not None and m.overall.tau is not None]
        for name in dict.fromkeys(method.name for method in known):
            line = sorted((m.overall.block_size, m.overall.tau) for m in known if m.name == name)
            plot.plot(*zip(*line, strict=True), color=INK, linewidth=0.8, alpha=0.35)
        for method, colour, marker in styled(known, results):
            plot.plot(method.overall.block_size, method.overall.tau, marker, color=colour, label=method.label)
        legend(plot)
        return svg(figure)


def cost_figure(cost: Sequence[CostEntry]) -> str:
    """Milliseconds per forward against block size."""
    with axes(6.6, 3.6, f"block size ({cost[0].context} tokens cached)", "ms per forward") as (figure, plot):
        sizes = [entry.size for entry in cost]
        plot.plot(
            sizes, [1e3 * entry.seconds for entry in cost], "o-", color=COLOURS[1], label=f"{cost[0].dtype}, median"
        )
        plot.plot(sizes, [1e3 * entry.fastest for entry in cost], ":", color=COLOURS[1], label="fastest")
        plot.set_xscale("log", base=2)
        plot.set_xticks(sizes, [str(size) for size in sizes])
        plot.set_ylim(bottom=0)
        legend(plot)
        return svg(figure)


def span_figure(results: Results) -> str:
    """Share of the decode forwards that committed 1, 2, ... tokens."""
    with axes(6.6, 3.6, "tokens committed by a forward", "share of forwards") as (figure, plot):
        longest = 1
        for method, colour, marker in styled(results.methods, results):
            spans = method.overall.spans
            if not spans:
                continue
            longest = max(longest, *spans)
            places = range(1, max(spans) + 1)
            shares = [spans.get(place, 0) / sum(spans.values()) for place in places]
            plot.plot(places, shares, f"{marker}-", color=colour, linewidth=1.2, markersize=5, label=method.label)
        plot.set_xticks(range(1, longest + 1, max(1, longest // 16)))
        plot.set_ylim(bottom=0)
        legend(plot)
        return svg(figure)


def pareto_figure(results: Results) -> str:
    """Quality against acceleration: accuracy where the task has answers, else agreement with plain decoding."""
    field, label = quality(results)
    with axes(6.6, 3.6, "decode speed-up over plain decoding", label) as (figure, plot):
        points = []
        for method, colour, marker in styled(results.methods, results):
            x, y = method.overall.speedup, getattr(method.overall, field)
            if x is None or y is None:
                continue
            points.append((x, y))
            error = method.overall.accuracy_error if field == "accuracy" else None
            kind = "" if method.lossless else " (lossy)"
            plot.errorbar(x, y, yerr=error, fmt=marker, color=colour, capsize=3, label=method.label + kind)
        front = pareto_front(points)
        plot.plot(*zip(*front, strict=True), color=INK, linewidth=0.9, alpha=0.5, linestyle="--")
        legend(plot)
        return svg(figure)


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points that no other beats in both coordinates, by ascending first coordinate."""
    front: list[tuple[float, float]] = []
    for point in sorted(points, reverse=True):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    return front[::-1]


def quality(results: Results) -> tuple[str, str]:
    """Field of `Summary` and axis label by which lossy methods are judged."""
    if any(method.overall.accuracy is not None for method in results.methods):
        return "accuracy", "accuracy (standard error)"
    return "agreement", "agreement with plain decoding"


# -- drawing ------------------------------------------------------------------------------------------------------


def styled(methods: Sequence[MethodResult], results: Results) -> Iterator[tuple[MethodResult, str, str]]:
    """Methods with colour and marker, the same for a method in every plot."""
    places = {method.label: place for place, method in enumerate(results.methods)}
    for method in methods:
        place = places[method.label]
        yield method, COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]


def part(method: MethodResult, row: str) -> Summary:
    return method.overall if row == OVERALL else method.categories[row]


@contextmanager
def axes(width: float, height: float, x: str, y: str) -> Iterator[tuple[Any, Any]]:
    """A figure with one plot, in inches."""
    import matplotlib
    from matplotlib.figure import Figure  # without pyplot: no window system, no global state

    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    fixed = {"svg.fonttype": "none", "svg.hashsalt": f"{x}|{y}", "font.size": 10}
    style: dict[Any, Any] = {**dict.fromkeys(inked, INK), **fixed}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(width, height), layout="constrained")
        figure.patch.set_alpha(0)
        plot = figure.subplots()
        plot.patch.set_alpha(0)
        plot.set_xlabel(x)
        plot.set_ylabel(y)
        plot.grid(color=GRID, alpha=0.15, linewidth=0.8)
        plot.set_axisbelow(True)
        plot.spines[["top", "right"]].set_visible(False)
        yield figure, plot


def legend(plot: Any) -> None:
    if not plot.get_legend_handles_labels()[0]:
        return
    plot.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=9)


def svg(figure: Any) -> str:
    """The figure as an ``<svg>`` element without outside names, in the page's colour and font."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font: \1 system-ui, sans-serif", text)
    text = re.sub(
        r'<svg ([^>]*?)width="[^"]*"', r"<svg \1", re.sub(r'(<svg [^>]*?)height="[^"]*"', r"\1", text, count=1), count=1
    )
    return text.replace(INK, "currentColor").replace(GRID, "currentColor")
