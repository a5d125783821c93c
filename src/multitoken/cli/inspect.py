"""``inspect cost`` and ``inspect alignment``: measurements of a model on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import Field
from rich.table import Table

from multitoken.bench.alignment import Alignment, ProbeVector, measure_alignment
from multitoken.bench.plots import alignment_figure, check_plot, cost_figure
from multitoken.bench.questions import QUESTIONS
from multitoken.cli.files import write_whole
from multitoken.cli.models import ModelFlags
from multitoken.cli.prompts import read_items
from multitoken.cli.show import console, print_json
from multitoken.errors import OptionError
from multitoken.methods import Plain
from multitoken.methods.probe.vectors import EmbeddingStatistics, initial_vectors
from multitoken.models.backbone import Backbone
from multitoken.models.cost import CostPoint, measure_costs
from multitoken.models.loading import LoadedModel
from multitoken.models.progress import Progress
from multitoken.session.prompts import encode


class CostOptions(ModelFlags):
    """Options of ``inspect cost``."""

    dtype: str = Field("float32", description="see --dtypes", json_schema_extra={"cli": False})
    dtypes: list[Literal["float32", "bfloat16", "float16"]] = Field(
        ["float32", "bfloat16"], min_length=1, description="precisions to measure, by turns"
    )
    runtime: str = Field("auto", description="see --runtimes", json_schema_extra={"cli": False})
    quantize: str = Field("none", description="see --runtimes", json_schema_extra={"cli": False})
    runtimes: list[Literal["auto", "eager", "packed", "compiled", "int8", "int8-compiled"]] = Field(
        ["auto"], min_length=1, description="runtimes to measure, each in every precision, by turns"
    )
    sizes: list[int] = Field([1, 2, 4, 8, 16, 32, 64], min_length=1, description="block sizes")
    context: int = Field(256, ge=0, description="tokens in the cache")
    rows: int = Field(1, ge=1, description="rows per forward")
    repeats: int = Field(7, ge=1, description="forwards per size; the median counts")
    plot: Path | None = Field(None, description="figure file: .svg, .png or .pdf (extra plot)")


class AlignmentOptions(ModelFlags):
    """Options of ``inspect alignment``."""

    init: Literal["vocab", "mean", "last", "sample", "offset"] = Field("vocab", description="the probe's vector")
    jsonl: Path | None = Field(None, description="prompts, one JSON object per line (default: eight of its own)")
    tokens: int = Field(100, ge=1, description="tokens that the model writes per prompt")
    positions: int = Field(20, ge=1, description="probes per prompt, at random places of what it wrote")
    top_k: int = Field(14, ge=1, description="a hit has the true token among so many of the probe's candidates")
    seed: int = Field(0, ge=0, description="of the random places")
    plot: Path | None = Field(None, description="figure file: .svg, .png or .pdf (extra plot)")


def run_cost(options: CostOptions) -> int:
    if options.plot is not None:
        check_plot(options.plot)
    if len(set(options.dtypes)) < len(options.dtypes):
        raise OptionError("dtypes", ",".join(options.dtypes), "name each precision once")
    if len(set(options.runtimes)) < len(options.runtimes):
        raise OptionError("runtimes", ",".join(options.runtimes), "name each runtime once")
    backbones = [
        options.model_copy(update={"dtype": dtype, **_loading(runtime)}).load().backbone
        for dtype in options.dtypes
        for runtime in options.runtimes
    ]
    points = measure_costs(backbones, options.sizes, options.context, options.rows, options.repeats)
    if options.plot is not None:
        write_whole(options.plot, cost_figure(points, options.model, options.plot.suffix[1:].lower()))
    if options.as_json:
        print_json({"model": options.model, "points": [point.to_dict() for point in points]})
    else:
        console().print(cost_table(points, options))
    return 0


def _loading(runtime: str) -> dict[str, str]:
    if runtime == "int8":
        return {"quantize": "int8", "runtime": "packed"}
    return {"quantize": "int8", "runtime": "compiled"} if runtime == "int8-compiled" else {"runtime": runtime}


def cost_table(points: Sequence[CostPoint], options: CostOptions) -> Table:
    """Block sizes down, precisions and runtimes across: milliseconds and how many times the cost of block size 1."""
    title = f"Forward of {options.model}: {options.context} tokens cached, {options.rows} row(s), medians"
    table = Table(title=title, title_justify="left")
    table.add_column("block size", justify="right")
    curves = {label: [p for p in points if p.label == label] for label in dict.fromkeys(p.label for p in points)}
    for label in curves:
        table.add_column(f"{label}, ms", justify="right")
        table.add_column("x first", justify="right")
    for number, size in enumerate(options.sizes):
        cells = []
        for line in curves.values():
            seconds = line[number].seconds
            cells += [f"{1e3 * seconds:.1f}", f"{seconds / line[0].seconds:.2f}"]
        table.add_row(str(size), *cells)
    return table


def run_alignment(options: AlignmentOptions) -> int:
    if options.plot is not None:
        check_plot(options.plot)
    texts = [item.prompt for item in read_items(options.jsonl)] if options.jsonl else list(QUESTIONS)
    model = options.load()
    prompts = [encode(model.tokenizer, text) for text in texts]
    with Progress(options.progress, "writing and probing", len(prompts)) as bar:
        found = measure_alignment(
            model.backbone,
            prompts,
            Plain(),
            probe_vector(model.backbone, options.init, options.seed),
            tokens=options.tokens,
            positions=options.positions,
            top_k=options.top_k,
            eos=model.eos,
            seed=options.seed,
            progress=bar.at,
        )
    if options.plot is not None:
        figure = alignment_figure(found, options.model, options.init, options.plot.suffix[1:].lower())
        write_whole(options.plot, figure)
    if options.as_json:
        print_json(
            {
                "model": options.model,
                "dtype": model.dtype,
                "init": options.init,
                "seed": options.seed,
                **found.to_dict(),
            }
        )
    else:
        _print_alignment(found, options, model)
    return 0


def probe_vector(backbone: Backbone, init: str, seed: int) -> ProbeVector:
    """The first probe of method ``probe`` with this init."""
    statistics = EmbeddingStatistics.of(backbone)
    vectors = partial(initial_vectors, init, 1, backbone=backbone, statistics=statistics, seed=seed)
    return lambda prompt: vectors(prompt=prompt)[0]


def _print_alignment(found: Alignment, options: AlignmentOptions, model: LoadedModel) -> None:
    out = console()
    out.print(f"{options.model}, probe {options.init}: cosine with the true hidden state", markup=False)
    table = Table()
    for heading in ("layer", f"in top {found.top_k}", "not", "AUC"):
        table.add_column(heading, justify="right")
    curves = (found.hits, found.misses, found.auc)
    depths = len(next(curve for curve in curves if curve is not None))
    for depth in range(depths):
        cells = ["-" if curve is None else f"{curve[depth]:.3f}" for curve in curves]
        table.add_row("input" if depth == 0 else str(depth), *cells)
    out.print(table)
    out.print(
        f"{found.hit_count} of {found.hit_count + found.miss_count} probes ({found.hit_rate:.0%}) have the true token "
        f"in their top {found.top_k}. AUC: the chance that the cosine of such a probe is above another's."
    )
