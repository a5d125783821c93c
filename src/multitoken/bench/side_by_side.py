"""Two results side by side: what changed in the numbers, and what differed in the circumstances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from multitoken.bench import page
from multitoken.bench.schema import Results, Summary, read_results
from multitoken.bench.tables import Column, columns_of, name_of

HIGHER, LOWER = 1, -1
BETTER = {"forwards": LOWER, "peak memory": LOWER, "repetition 2/3/4": LOWER, "block": 0}


@dataclass(frozen=True, slots=True)
class Pair:
    """One number of one method in both results. ``change`` is relative to A; ``better`` is None where it is neither."""

    method: str
    column: str
    a: str
    b: str
    change: float | None
    better: bool | None


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Attributes:
    circumstances: (what, in A, in B) for every setting and part of the provenance that differs.
    pairs: numbers of the methods that both hold.
    only_a, only_b: methods that one of them lacks.
    """

    circumstances: list[tuple[str, str, str]]
    pairs: list[Pair]
    only_a: list[str]
    only_b: list[str]


def compare(a: Path, b: Path) -> SideBySide:
    """Compare two ``results.json`` files, or the folders that hold them. Raises `DataError` if one cannot be read."""
    return compare_results(read_results(a), read_results(b))


def compare_results(a: Results, b: Results) -> SideBySide:
    pairs = []
    for method in a.methods:
        other = b.method(method.label)
        if other is not None:
            pairs += [
                pair(name_of(method), column, method.overall, other.overall)
                for column in columns_of([method.overall, other.overall])
            ]
    labels_a, labels_b = [m.label for m in a.methods], [m.label for m in b.methods]
    return SideBySide(
        circumstances=circumstances(a, b),
        pairs=pairs,
        only_a=[label for label in labels_a if label not in labels_b],
        only_b=[label for label in labels_b if label not in labels_a],
    )


def pair(method: str, column: Column, a: Summary, b: Summary) -> Pair:
    old, new = column.value(a), column.value(b)
    change = (new - old) / old if old and new is not None else None
    direction = BETTER.get(column.heading, HIGHER)
    better = None if not change or not direction else (change > 0) == (direction == HIGHER)
    return Pair(method, column.heading, column.text(a), column.text(b), change, better)


def circumstances(a: Results, b: Results) -> list[tuple[str, str, str]]:
    found = []
    ours, theirs = facts(a), facts(b)
    for key in dict.fromkeys([*ours, *theirs]):
        if ours.get(key) != theirs.get(key):
            found.append((key, ours.get(key, "absent"), theirs.get(key, "absent")))
    return found


def facts(results: Results) -> dict[str, str]:
    """Settings and provenance as flat texts, without what is new in every run."""
    made = results.provenance.model_dump(exclude={"command", "date", "versions", "machine", "data"})
    settings = {k: v for k, v in results.settings.items() if k not in ("versions", "machine", "methods", "peers")}
    named = {f"{kind} {k}": v for kind in ("versions", "machine") for k, v in getattr(results.provenance, kind).items()}
    return {key: str(value) for key, value in {**settings, **made, **named}.items()}


def change_text(change: float | None) -> str:
    return "" if change is None else f"{change:+.1%}"


def comparison_page(found: SideBySide, a: str, b: str) -> str:
    """The comparison as an HTML document."""
    rows = []
    for before, p in zip([None, *found.pairs], found.pairs, strict=False):
        name = "" if before is not None and before.method == p.method else p.method
        css = "" if p.better is None else "good" if p.better else "bad"
        rows.append([name, p.column, p.a, p.b, page.Marked(change_text(p.change), css)])
    parts = [
        "<h1>Two benchmarks side by side</h1>",
        page.definitions([("A", a), ("B", b)]),
        "<h2>Circumstances that differ</h2>",
        page.table([("", ""), ("A", ""), ("B", "")], found.circumstances, text=(1, 2))
        if found.circumstances
        else "<p>None.</p>",
        "<h2>Methods</h2>",
        page.table([(h, "") for h in ("method", "figure", "A", "B", "change")], rows, text=(1,)),
        *(f"<p>Only in {name}: {escape(', '.join(labels))}</p>" for name, labels in lonely(found)),
    ]
    return page.page("multitoken bench compare", parts)


def lonely(found: SideBySide) -> Sequence[tuple[str, list[str]]]:
    return [(name, labels) for name, labels in (("A", found.only_a), ("B", found.only_b)) if labels]
