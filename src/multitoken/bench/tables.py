"""Results as rows of text, for the terminal, the report and the comparison alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from multitoken.bench.schema import MethodResult, Results, Summary

NONE = "–"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the overview. ``value`` is the number behind the text, for comparisons; ``note`` explains it."""

    heading: str
    note: str
    text: Callable[[Summary], str]
    value: Callable[[Summary], float | None]


def number(
    field: str, digits: int, suffix: str = ""
) -> tuple[Callable[[Summary], str], Callable[[Summary], float | None]]:
    def value(summary: Summary) -> float | None:
        return getattr(summary, field)

    return lambda summary: formatted(value(summary), digits, suffix), value


def formatted(value: float | None, digits: int, suffix: str = "") -> str:
    return NONE if value is None else f"{value:.{digits}f}{suffix}"


def exact_text(summary: Summary) -> str:
    """``47/48 (1 near tie)``."""
    if summary.exact is None:
        return NONE
    text = f"{summary.exact}/{summary.answers}"
    if summary.near_ties:
        text += f" ({summary.near_ties} near tie{'s' if summary.near_ties > 1 else ''})"
    return text


def repetition_text(summary: Summary) -> str:
    values = list(summary.repetition.values())
    return NONE if all(value is None for value in values) else " / ".join(formatted(value, 3) for value in values)


def accuracy_text(summary: Summary) -> str:
    if summary.accuracy is None:
        return NONE
    return f"{summary.accuracy:.1%} ± {summary.accuracy_error or 0:.1%}"


def exact_rate(summary: Summary) -> float | None:
    return summary.exact / summary.answers if summary.exact is not None and summary.answers else None


def memory_text(summary: Summary) -> str:
    return NONE if summary.peak_memory is None else f"{summary.peak_memory / 2**20:,.0f} MiB"


COLUMNS = (
    Column("tau", "tokens per decode forward, ratio of the sums", *number("tau", 3)),
    Column("tau/question", "mean of the per-question ratios", *number("tau_per_question", 3)),
    Column("block", "mean block size", *number("block_size", 1)),
    Column("forwards", "decode forwards", lambda s: str(s.forwards), lambda s: s.forwards),
    Column("tok/s", "decode only", *number("decode_rate", 1)),
    Column("speed-up", "decode, over this engine's plain decoding", *number("speedup", 2, "x")),
    Column("end to end", "prefill included, over plain decoding", *number("end_to_end_speedup", 2, "x")),
    Column("vs Transformers", "decode, over its plain generate", *number("peer_speedup", 2, "x")),
    Column("end to end vs Transformers", "prefill included", *number("peer_end_to_end_speedup", 2, "x")),
    Column("exact", "answers equal to plain decoding's", exact_text, exact_rate),
    Column("repetition 2/3/4", "repeated n-grams, share", repetition_text, lambda s: s.repetition.get(4)),
    Column("accuracy", "right answers ± standard error", accuracy_text, lambda s: s.accuracy),
    Column("Spec-Bench", "speed-up as its scripts average", *number("spec_bench_speedup", 2, "x")),
    Column("Spec-Bench accepted", "as its scripts average", *number("spec_bench_accepted", 2)),
    Column("peak memory", "largest during an answer", memory_text, lambda s: s.peak_memory),
)


def columns_of(summaries: Sequence[Summary]) -> list[Column]:
    """The columns in which at least one summary has something to show."""
    return [column for column in COLUMNS if any(column.text(summary) != NONE for summary in summaries)]


def overview(results: Results, headings: Sequence[str] = ()) -> tuple[list[Column], list[list[str]]]:
    """Columns, and one row per method: its name and its cells. ``headings``: take these columns only."""
    columns = columns_of([method.overall for method in results.methods])
    columns = [column for column in columns if not headings or column.heading in headings]
    return columns, [[name_of(m), *(column.text(m.overall) for column in columns)] for m in results.methods]


def by_category(results: Results, field: str, digits: int, suffix: str = "") -> list[list[str]]:
    """One row per category and one for all: the category and one cell per method."""
    rows = [
        [name, *(formatted(getattr(m.categories[name], field), digits, suffix) for m in results.methods)]
        for name in results.categories
    ]
    return [*rows, ["overall", *(formatted(getattr(m.overall, field), digits, suffix) for m in results.methods)]]


def name_of(method: MethodResult) -> str:
    return method.label if method.lossless else f"{method.label} (lossy)"
