"""``bench`` and ``bench compare``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from shlex import join
from typing import Any

from pydantic import Field
from rich.table import Table

from multitoken.bench.command import REPORT, RESULTS, run
from multitoken.bench.competitors import Entry
from multitoken.bench.options import BenchOptions
from multitoken.bench.schema import Results
from multitoken.bench.side_by_side import change_text, compare, comparison_page, lonely
from multitoken.bench.tables import overview
from multitoken.cli.command import CommandOptions
from multitoken.cli.files import write_whole
from multitoken.cli.methods import MethodSpec, parse_methods
from multitoken.cli.models import ModelFlags
from multitoken.cli.show import console, print_json

SHOWN = ("tau", "block", "speed-up", "end to end", "vs Transformers", "exact", "accuracy", "Spec-Bench")


class BenchCommand(ModelFlags, BenchOptions):
    """Options of ``bench``."""


class BenchCompareOptions(CommandOptions):
    """Options of ``bench compare``."""

    a: Path = Field(description="results.json, or its folder", json_schema_extra={"positional": True})
    b: Path = Field(description="the one to set beside it", json_schema_extra={"positional": True})
    html: Path | None = Field(None, description="write the comparison as a page too")


def run_bench(options: BenchCommand) -> int:
    entries = [entry(spec) for spec in parse_methods(options.methods)]
    asked = BenchOptions(**{name: getattr(options, name) for name in BenchOptions.model_fields})
    command = join(["multitoken", *sys.argv[1:]])
    results = run(asked, options.load, entries, command=command, progress=options.progress)
    if options.as_json:
        print_json(results.model_dump(mode="json"))
        return 0
    console().print(results_table(results))
    console().print(f"{options.out / RESULTS} and {options.out / REPORT} hold the rest.", soft_wrap=True)
    return 0


def entry(spec: MethodSpec) -> Entry:
    method = spec.create()
    return Entry(spec.label, method, method.options.model_dump(mode="json"))


def results_table(results: Results) -> Table:
    """The figures one looks for first; a terminal is narrow."""
    columns, rows = overview(results, SHOWN)
    table = Table(title=f"{results.provenance.model}, {results.settings['task']}", title_justify="left")
    table.add_column("method", overflow="fold")
    for column in columns:
        table.add_column(column.heading, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def run_compare(options: BenchCompareOptions) -> int:
    found = compare(options.a, options.b)
    if options.html is not None:
        write_whole(options.html, comparison_page(found, str(options.a), str(options.b)).encode())
    if options.as_json:
        print_json(asdict(found))
        return 0
    out = console()
    if found.circumstances:
        out.print(side_table("Circumstances that differ", ("", "A", "B"), found.circumstances))
    rows = [(p.method, p.column, p.a, p.b, change_text(p.change)) for p in found.pairs]
    out.print(side_table("A against B", ("method", "figure", "A", "B", "change"), rows))
    for name, labels in lonely(found):
        out.print(f"Only in {name}: {', '.join(labels)}", markup=False)
    return 0


def side_table(title: str, headings: tuple[str, ...], rows: list[Any]) -> Table:
    table = Table(*headings, title=title, title_justify="left")
    before = None
    for row in rows:
        cells = list(row)
        if before == row[0]:
            cells[0] = ""
        before = row[0]
        table.add_row(*cells)
    return table
