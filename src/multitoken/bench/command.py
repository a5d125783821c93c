"""``bench``: from options to ``results.json`` and ``report.html``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from multitoken.bench.competitors import Competitor, EngineCompetitor, Entry
from multitoken.bench.figures import check_matplotlib
from multitoken.bench.options import BenchOptions
from multitoken.bench.peers import transformers_peers
from multitoken.bench.provenance import machine, provenance, versions
from multitoken.bench.records import Journal
from multitoken.bench.report import report_page
from multitoken.bench.runner import REFERENCE, Runner
from multitoken.bench.schema import CostEntry, Results
from multitoken.bench.summary import summarize
from multitoken.bench.tasks import TaskData, load_task
from multitoken.engine.engine import Engine
from multitoken.errors import DataError, OptionError
from multitoken.methods import create
from multitoken.models.backbone import Backbone
from multitoken.models.cost import measure_cost
from multitoken.models.loading import LoadedModel
from multitoken.storage import write_atomically

RECORDS, RESULTS, REPORT = "records.jsonl", "results.json", "report.html"
COST_SIZES, COST_CONTEXT = (1, 2, 4, 8, 16, 32, 64), 256


def run(
    options: BenchOptions,
    load: Callable[[], LoadedModel],
    entries: Sequence[Entry],
    *,
    command: str = "",
    progress: bool = True,
) -> Results:
    """Run or resume a benchmark and write its results and report into ``options.out``.

    Args:
        load: loads the model; called when everything that needs no model has been checked.
        entries: methods, made from ``options.methods``; plain decoding is added if it is not among them.
        command: as it was typed, for the provenance.

    Raises:
        OptionError, DataError: options or files that cannot be used, or a folder that holds another run.
    """
    check_matplotlib()
    entries = with_reference(entries)
    data = load_task(
        options.task, options.data, per_category=options.limit_per_category, run_code=checked_run_code(options)
    )
    model = load()
    competitors = line_up(options, model, entries)
    runner = Runner(
        model,
        data,
        competitors,
        options.max_new_tokens,
        options.batch,
        options.temperature,
        options.seed,
        progress,
    )
    held = settings(options, model, data, competitors)
    with Journal(options.out / RECORDS, held) as journal:
        runner.run(journal)
        methods = summarize(
            journal.records,
            competitors,
            sampled=options.temperature > 0,
            spec_bench=options.spec_bench_compatible,
        )
    cost = cost_curve(model.backbone) if options.cost else []
    results = Results(provenance=provenance(model, data, command), settings=held, methods=methods, cost=cost)
    write(options.out / RESULTS, results.model_dump_json(indent=1) + "\n")
    write(options.out / REPORT, report_page(results))
    return results


def with_reference(entries: Sequence[Entry]) -> list[Entry]:
    """``entries`` with plain decoding first. Raises `OptionError` for a label given twice."""
    labels = [entry.label for entry in entries]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise OptionError("methods", twice, "name each method once, or give it other options")
    reference = [entry for entry in entries if entry.label == REFERENCE] or [Entry(REFERENCE, create(REFERENCE))]
    return reference + [entry for entry in entries if entry.label != REFERENCE]


def line_up(options: BenchOptions, model: LoadedModel, entries: Sequence[Entry]) -> list[Competitor]:
    engine = Engine(model.backbone)
    found: list[Competitor] = [EngineCompetitor(engine, entry) for entry in entries]
    if "transformers" in options.peers:
        found += transformers_peers(model, options.peers_dtype, options.batch)
    elif options.peers_dtype:
        raise OptionError("peers_dtype", options.peers_dtype[0], "there are no peers; add --peers transformers")
    return found


def settings(
    options: BenchOptions, model: LoadedModel, data: TaskData, competitors: Sequence[Competitor]
) -> dict[str, Any]:
    """What two parts of one run must share for their numbers to belong together."""
    shared = ("task", "limit_per_category", "max_new_tokens", "batch", "temperature", "seed", "run_code")
    return {
        **options.model_dump(mode="json", include=set(shared)),
        "data_sha256": data.sha256,
        "model": model.name,
        "model_hash": model.backbone.fingerprint,
        "dtype": model.dtype,
        "runtime": model.backbone.runtime,
        "attention": model.backbone.module.config._attn_implementation,
        "methods": [c.label for c in competitors if not c.peer],
        "method_options": {c.label: c.options for c in competitors if not c.peer},
        "peers": [c.label for c in competitors if c.peer],
        "versions": versions(),
        "machine": machine(model.backbone.device),
    }


def checked_run_code(options: BenchOptions) -> bool:
    if options.run_code and options.task != "code":
        raise OptionError("run_code", True, "only --task code has code to run; leave it out")
    return options.run_code


def cost_curve(backbone: Backbone) -> list[CostEntry]:
    """Cost of a forward against its block size, as far as the model has positions."""
    limit = backbone.max_positions
    context = COST_CONTEXT if limit is None else min(COST_CONTEXT, limit // 2)
    sizes = [size for size in COST_SIZES if limit is None or context + size <= limit]
    return [CostEntry(**point.to_dict()) for point in measure_cost(backbone, sizes, context)]


def write(path: Path, text: str) -> None:
    """Write a file in one piece."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}; choose another path") from error
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))
