"""The validation curve of a training: what was measured on held-out text, as JSON and as a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path

from multitoken.storage import write_atomically

SCHEMA = "multitoken.curve/1"
WIDTH, HEIGHT, MARGIN = 640, 300, 48
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")


@dataclass(frozen=True, slots=True)
class Point:
    """One evaluation.

    Attributes:
        step: steps done.
        seconds: of training so far, over all runs.
        loss: mean training loss since the last point; None at the beginning.
        held_out: figures on held-out text; ``loss`` is one of them.
    """

    step: int
    seconds: float
    loss: float | None
    held_out: dict[str, float] = field(default_factory=dict)


def save_curve(folder: Path, points: Sequence[Point]) -> None:
    """Write ``curve.json`` and ``curve.svg``."""
    text = json.dumps({"schema": SCHEMA, "points": [asdict(point) for point in points]}, indent=1) + "\n"
    write_atomically(folder / "curve.json", lambda part: part.write_text(text, "utf-8"))
    picture = draw_curve(points)
    write_atomically(folder / "curve.svg", lambda part: part.write_text(picture, "utf-8"))


def draw_curve(points: Sequence[Point]) -> str:
    """Two panels over the steps: losses, and the other held-out figures."""
    losses = {
        "training loss": [(p.step, p.loss) for p in points if p.loss is not None],
        "held-out loss": [(p.step, p.held_out["loss"]) for p in points if "loss" in p.held_out],
    }
    names = [name for name in (points[-1].held_out if points else {}) if name != "loss"]
    others = {name: [(p.step, p.held_out[name]) for p in points if name in p.held_out] for name in names}
    panels = [series for series in (losses, others) if any(series.values())]
    last = max((p.step for p in points), default=1) or 1
    body = "".join(_panel(series, last, HEIGHT * index) for index, series in enumerate(panels))
    size = f'width="{WIDTH}" height="{HEIGHT * max(len(panels), 1)}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="white"/>{body}</svg>\n'
    )


def _panel(series: dict[str, list[tuple[int, float]]], last: int, top: int) -> str:
    values = [value for line in series.values() for _, value in line]
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    right, bottom = WIDTH - 150, top + HEIGHT - MARGIN

    def place(step: int, value: float) -> str:
        x = MARGIN + (right - MARGIN) * step / last
        y = bottom - (HEIGHT - 2 * MARGIN) * (value - low) / span
        return f"{x:.1f},{y:.1f}"

    parts = []
    for i in range(5):
        value = low + span * i / 4
        y = float(place(0, value).split(",")[1])
        parts.append(f'<line x1="{MARGIN}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{MARGIN - 4}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    parts.append(f'<text x="{MARGIN}" y="{bottom + 16}">0</text>')
    parts.append(f'<text x="{right}" y="{bottom + 16}" text-anchor="end">{last} steps</text>')
    for index, (name, line) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        corners = " ".join(place(step, value) for step, value in line)
        parts.append(f'<polyline points="{corners}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(f'<text x="{right + 10}" y="{top + MARGIN + 16 * index}" fill="{colour}">{escape(name)}</text>')
    return "".join(parts)
