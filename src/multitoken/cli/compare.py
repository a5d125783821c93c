"""``compare``: methods side by side on one prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field
from rich.console import Console
from rich.table import Table

from multitoken.bench.compare import Comparison, compare, run_alternating
from multitoken.bench.divergence import Divergence, explain
from multitoken.cli.generation import GenerationFlags
from multitoken.cli.methods import MethodSpec, parse_methods
from multitoken.cli.prompts import read_prompt
from multitoken.cli.show import console, print_json
from multitoken.errors import OptionError
from multitoken.methods import NamedMethod
from multitoken.models.progress import Progress
from multitoken.session.language_model import DEFAULT_METHOD, LanguageModel
from multitoken.session.output import Result

REFERENCE = "plain"


class CompareCommand(GenerationFlags):
    """Options of ``compare``."""

    prompt: str | None = Field(
        None, description="text, or - for standard input", json_schema_extra={"positional": True}
    )
    file: Path | None = Field(None, description="read the prompt from a UTF-8 file", json_schema_extra={"short": "f"})
    method: str = Field(REFERENCE, description="see --methods", json_schema_extra={"cli": False})
    option: dict[str, Any] = Field({}, description="see --methods", json_schema_extra={"cli": False})
    methods: list[str] = Field(
        [DEFAULT_METHOD],
        min_length=1,
        description="methods, parted by commas, each NAME or NAME:OPTION=VALUE:...; plain is always run as reference",
    )
    repeat: int = Field(1, ge=1, description="runs per method, by turns; speeds are medians")


def run_compare(options: CompareCommand) -> int:
    specs = parse_methods(options.methods)
    labels = [spec.label for spec in specs]
    if len(set(labels)) < len(labels):
        raise OptionError("methods", ",".join(labels), "name each method with its options once")
    others = [spec for spec in specs if spec.label != REFERENCE]
    # Made before the model is loaded, so that an option that cannot be used is told at once.
    methods = {spec.label: spec.create() for spec in (MethodSpec(REFERENCE, {}, REFERENCE), *others)}
    prompt = read_prompt(options.prompt, options.file)
    model = options.open()
    found = compare_on(model, prompt, methods, options, options.repeat)
    if options.as_json:
        print_json(
            {
                "prompt": prompt,
                "repeat": options.repeat,
                "methods": [with_texts(entry.to_dict(), model) for entry in found],
            }
        )
    else:
        print_comparison(console(), found, model)
    return 0


def compare_on(
    model: LanguageModel,
    prompt: str,
    methods: Mapping[str, NamedMethod],
    options: GenerationFlags,
    repeats: int,
) -> list[Comparison]:
    """Run every method on ``prompt``, the first being the reference; an untimed short run of each comes before."""
    runs = [(label, partial(options.generate, model, prompt, method)) for label, method in methods.items()]
    with Progress(options.progress, "comparing", len(runs) * (repeats + 1)) as bar:
        for method in methods.values():
            options.warm_up(model, prompt, method)
            bar.advance(1)
        results = run_alternating(runs, repeats, lambda: bar.advance(1))
    ids = model.encode(prompt, options.raw)
    sampled = options.temperature > 0
    return compare(list(methods), results, partial(explain, model.backbone, ids, sampled=sampled))


def print_comparison(out: Console, found: Sequence[Comparison], model: LanguageModel) -> None:
    table = Table()
    for heading in ("method", "tokens/s", "speed", "tau", "forwards", "tokens", "output"):
        table.add_column(heading, justify="left" if heading in ("method", "output") else "right", overflow="fold")
    for number, entry in enumerate(found):
        result = entry.result
        table.add_row(
            entry.label if result.lossless else f"{entry.label} (lossy)",
            f"{entry.tokens_per_second:.1f}",
            "-" if entry.speedup is None else f"{entry.speedup:.2f}x",
            f"{result.tau:.2f}",
            str(result.forwards),
            str(result.completion_tokens),
            "reference" if number == 0 else "identical" if entry.divergence is None else _place(entry.divergence),
        )
    out.print(table)
    for entry in found:
        if entry.divergence is not None:
            out.print(f"{entry.label}: {why(entry.divergence, model, entry.result)}", markup=False)


def _place(divergence: Divergence) -> str:
    kind = {True: ", near-tie", False: ", NOT a tie", None: ""}[divergence.near_tie]
    return f"differs at token {divergence.index}{kind}"


def why(divergence: Divergence, model: LanguageModel, result: Result) -> str:
    """The divergence in one sentence."""
    where = (
        f"token {divergence.index} is {_text(model, divergence.other)}, in plain {_text(model, divergence.reference)}"
    )
    if divergence.gap is None:
        return where
    logits = (
        f"; after the common words a plain forward gives them logits {divergence.other_logit:.4f} and "
        f"{divergence.reference_logit:.4f}, a gap of {divergence.gap:.4f} in {result.dtype}"
    )
    if divergence.near_tie is None:
        return f"{where}{logits}"
    if divergence.near_tie:
        return f"{where}{logits}: a near-tie that rounding decides"
    if not result.lossless:
        return f"{where}{logits}: the method is lossy"
    return f"{where}{logits}: too far apart for rounding, please report this as a bug"


def with_texts(entry: dict[str, Any], model: LanguageModel) -> dict[str, Any]:
    """A comparison's JSON with the texts of the two tokens where it diverged."""
    found = entry["divergence"]
    if found is not None:
        found["reference_text"] = token_text(model, found["reference"])
        found["other_text"] = token_text(model, found["other"])
    return entry


def token_text(model: LanguageModel, token: int | None) -> str | None:
    return None if token is None else str(model.tokenizer.decode([token]))


def _text(model: LanguageModel, token: int | None) -> str:
    return "the end" if token is None else f"{token_text(model, token)!r} ({token})"
