"""The report of a run: what was measured, in tables and plots, on one page."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from multitoken.bench import figures, page
from multitoken.bench.schema import Difference, MethodResult, Results
from multitoken.bench.tables import NONE, by_category, formatted, name_of, overview

SHOWN_DEPTHS = 8
SHOWN_DIFFERENCES = 100


def report_page(results: Results) -> str:
    """The whole HTML document."""
    made = results.provenance
    title = f"{made.model} on {results.settings.get('task', 'questions')}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(subtitle(results))}</p>',
        page.cards(headline(results)),
        "<h2>Methods</h2>",
        "<p>Speed-ups compare tokens per second over all answers; the methods took turns, question by question, in one "
        "run. Hover over a heading for its definition.</p>",
        overview_table(results),
        *category_parts(results),
        *shape_parts(results),
        *pareto_parts(results),
        *depth_parts(results),
        *divergence_parts(results),
        "<h2>Provenance</h2>",
        page.definitions(provenance_items(results)),
    ]
    return page.page(f"multitoken bench: {title}", parts)


def subtitle(results: Results) -> str:
    summary, made, asked = results.methods[0].overall, results.provenance, results.settings
    drawn = f"temperature {asked['temperature']}" if asked.get("temperature") else "greedy"
    facts = (
        f"{summary.questions} questions, {summary.answers} answers of up to {asked.get('max_new_tokens')} tokens",
        f"{drawn}, {made.dtype}, batch {asked.get('batch')}",
        f"{made.machine.get('device')}, {made.machine.get('threads')} threads",
        made.date[:10],
    )
    return "; ".join(facts)


def headline(results: Results) -> list[tuple[str, str]]:
    """The figures one looks for first."""
    ours = [m for m in results.methods if not m.peer]
    rated = [m for m in ours[1:] if m.overall.speedup is not None]
    drafting = [m for m in ours[1:] if m.overall.tau is not None]
    found = []
    if rated:
        best = max(rated, key=lambda m: m.overall.speedup or 0)
        found.append((formatted(best.overall.speedup, 2, "x"), f"best decode speed-up over plain: {best.label}"))
    if drafting:
        best = max(drafting, key=lambda m: m.overall.tau or 0)
        found.append((formatted(best.overall.tau, 2), f"most tokens per forward: {best.label}"))
    checked = [m for m in ours[1:] if m.lossless and m.overall.exact is not None]
    if checked:
        equal, total = sum(m.overall.exact or 0 for m in checked), sum(m.overall.answers for m in checked)
        rest = (
            "" if equal == total else f"; {sum(m.overall.near_ties for m in checked)} of the others part at a near tie"
        )
        found.append((f"{equal}/{total}", f"lossless answers equal to plain decoding's{rest}"))
    found.append((formatted(results.methods[0].overall.decode_rate, 1), "tokens per second, plain decoding"))
    return found


def overview_table(results: Results) -> str:
    columns, rows = overview(results)
    for place, column in enumerate(columns, 1):
        if column.heading in ("tau", "speed-up", "end to end", "vs Transformers"):
            values = [column.value(method.overall) or 0 for method in results.methods]
            best = values.index(max(values))
            rows[best][place] = page.Marked(rows[best][place], "best")
    return page.table([("method", ""), *((c.heading, c.note) for c in columns)], rows)


def category_parts(results: Results) -> list[str]:
    headings = [("category", ""), *((name_of(m), m.dtype) for m in results.methods)]
    plots = [
        page.figure(figures.category_figure(results, field, label), caption)
        for field, label, caption in (
            ("tau", "tau", "tau: tokens committed per decode forward, by category"),
            ("speedup", "decode speed-up", "decode speed-up over this engine's plain decoding, by category"),
        )
    ]
    tables = [
        page.details(title, page.table(headings, by_category(results, field, digits, suffix), sum_row=True))
        for title, field, digits, suffix in (
            ("Table: tau", "tau", 3, ""),
            ("Table: decode speed-up over plain decoding", "speedup", 2, "x"),
            ("Table: end-to-end speed-up over plain decoding", "end_to_end_speedup", 2, "x"),
        )
    ]
    return ["<h2>By category</h2>", f'<div class="pair">{"".join(plots)}</div>', *tables]


def shape_parts(results: Results) -> list[str]:
    plots = [
        page.figure(figures.block_figure(results), "tau against mean block size; settings of one method are joined"),
        page.figure(figures.span_figure(results), "how many tokens a forward committed: share of all decode forwards"),
    ]
    if results.cost:
        plots.insert(1, page.figure(figures.cost_figure(results.cost), "what a forward costs against its block size"))
    return ["<h2>Blocks and spans</h2>", f'<div class="pair">{"".join(plots)}</div>']


def pareto_parts(results: Results) -> list[str]:
    if all(method.lossless for method in results.methods):
        return []
    _, label = figures.quality(results)
    caption = f"{label} against decode speed-up; the line joins the best trade-offs"
    plot = page.figure(figures.pareto_figure(results), caption)
    return ["<h2>Quality against acceleration</h2>", f'<div class="pair">{plot}</div>']


def depth_parts(results: Results) -> list[str]:
    """Acceptance by depth, of the methods that draft."""
    drafting = [method for method in results.methods if method.overall.depths]
    if not drafting:
        return []
    deepest = min(max(len(method.overall.depths) for method in drafting), SHOWN_DEPTHS)
    headings = [
        ("method", ""),
        *((f"depth {d}", "forwards that accepted a node here, of all") for d in range(1, deepest + 1)),
    ]
    rows = [[method.label, *depth_cells(method, deepest)] for method in drafting]
    return [
        "<h2>Acceptance by depth</h2>",
        "<p>Share of the decode forwards that accepted a candidate at this depth of the draft.</p>",
        page.table(headings, rows),
    ]


def depth_cells(method: MethodResult, deepest: int) -> list[str]:
    rates = [depth.rate for depth in method.overall.depths[:deepest]]
    cells = [NONE if rate is None else f"{rate:.1%}" for rate in rates]
    return cells + [NONE] * (deepest - len(cells))


def divergence_parts(results: Results) -> list[str]:
    """Every first difference from plain decoding, with the two tokens and their logits."""
    parts = []
    for method in results.methods[1:]:
        if not method.divergences:
            continue
        rows = [difference_row(difference) for difference in method.divergences[:SHOWN_DIFFERENCES]]
        title = f"{name_of(method)}: {len(method.divergences)} of {method.overall.answers} answers differ"
        if len(method.divergences) > SHOWN_DIFFERENCES:
            title += f" (the first {SHOWN_DIFFERENCES}; all are in results.json)"
        headings = [
            (name, "") for name in ("question", "turn", "token", "plain", "method", "logit", "logit", "gap", "")
        ]
        parts.append(page.details(title, page.table(headings, rows, text=(3, 4, 8))))
    if not parts:
        return ["<h2>Divergences</h2>", "<p>None: every answer that was compared equals plain decoding's.</p>"]
    return [
        "<h2>Divergences</h2>",
        "<p>First token at which an answer differs from plain decoding's, and the logits of both tokens by one plain "
        "forward. Near ties are within the rounding of the precision.</p>",
        *parts,
    ]


def difference_row(found: Difference) -> list[str]:
    kind = {True: "near tie", False: "not explained by rounding", None: ""}[found.near_tie]
    if found.reference is None or found.other is None:
        kind = "one ended earlier"
    return [
        found.question,
        str(found.turn),
        str(found.index),
        quoted(found.reference_text),
        quoted(found.other_text),
        formatted(found.reference_logit, 4),
        formatted(found.other_logit, 4),
        formatted(found.gap, 4),
        page.Marked(kind, "text bad" if found.near_tie is False else "text"),
    ]


def quoted(text: str | None) -> str:
    return NONE if text is None else repr(text)


def provenance_items(results: Results) -> list[tuple[str, str]]:
    made = results.provenance
    settings = {key: value for key, value in results.settings.items() if key not in ("versions", "machine")}
    return [
        ("model", f"{made.model} ({made.model_hash}), {made.dtype}"),
        ("data", f"{made.data}, SHA-256 {made.data_sha256}"),
        ("command", made.command or NONE),
        ("machine", joined(made.machine)),
        ("versions", joined(made.versions)),
        ("settings", joined(settings)),
        ("date", made.date),
        ("schema", f"results.json, version {results.version}"),
    ]


def joined(values: Mapping[str, object]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())
