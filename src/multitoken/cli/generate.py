"""``generate``: answer one prompt, or a file of prompts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import Field

from multitoken.cli.batch import run_batch
from multitoken.cli.generation import GenerationFlags
from multitoken.cli.prompts import Item, read_items, read_prompt
from multitoken.cli.show import errors, print_json
from multitoken.errors import DataError, OptionError
from multitoken.methods import NamedMethod
from multitoken.session.options import GenerateOptions
from multitoken.session.output import Result


class GenerateCommand(GenerationFlags):
    """Options of ``generate``."""

    prompt: str | None = Field(
        None, description="text, or - for standard input", json_schema_extra={"positional": True}
    )
    file: Path | None = Field(None, description="read the prompt from a UTF-8 file", json_schema_extra={"short": "f"})
    jsonl: Path | None = Field(None, description="batch: one JSON object per line with prompt or messages, and id")
    out: Path | None = Field(None, description="where a batch writes its results; goes on where it stopped")
    group: int = Field(1, ge=1, description="batch: prompts answered side by side")
    show_spans: bool = Field(False, description="colour the tokens of each step")


def run_generate(options: GenerateCommand) -> int:
    if options.jsonl is not None:
        return _batch(options, options.jsonl)
    if options.out is not None:
        raise OptionError("out", str(options.out), "goes with --jsonl; redirect standard output for a single prompt")
    if options.show_spans and options.as_json:
        raise OptionError("show_spans", True, "has nothing to colour in JSON, which lists the spans; leave it out")
    if options.group > 1:
        raise OptionError("group", options.group, "goes with --jsonl; a single prompt is answered alone")
    prompt = read_prompt(options.prompt, options.file)
    method = options.create_method()
    model = options.open()
    if options.as_json:
        print_json(options.generate(model, prompt, method).to_dict())
        return 0
    result = options.print_stream(model, prompt, method, options.show_spans)
    if options.show_spans:
        errors().print(summary(result), style="dim", soft_wrap=True)
    return 0


def _batch(options: GenerateCommand, source: Path) -> int:
    if options.out is None:
        raise OptionError("out", None, "name the file that the batch writes to: --out FILE")
    if options.prompt is not None or options.file is not None:
        raise OptionError("jsonl", str(source), "give a batch or a single prompt, not both")
    if options.show_spans:
        raise OptionError("show_spans", True, "has nothing to colour in a batch; leave it out")
    items = read_items(source)
    method = options.create_method()
    marks = [asked(item, options, method) for item in items]
    model = options.open()

    def answer(part: Sequence[Item]) -> list[dict[str, Any]]:
        try:
            results = model.generate(
                [item.prompt for item in part], method, raw=options.raw, batch_size=options.group, **options.generation
            )
        except OptionError as error:
            lines = f"line {part[0].line}" if len(part) == 1 else f"lines {part[0].line} to {part[-1].line}"
            raise DataError(f"{source} {lines}: {error}") from error
        assert isinstance(results, list)
        return [result.to_dict() for result in results]

    skipped = run_batch(items, marks, options.out, answer, options.group, options.progress)
    report = {"out": str(options.out), "prompts": len(items), "already_there": skipped}
    if options.as_json:
        print_json(report)
    else:
        errors().print(f"{len(items)} answers in {options.out}, {skipped} of them from before", markup=False)
    return 0


def asked(item: Item, options: GenerateCommand, method: NamedMethod) -> str:
    """A short hash of all that decides an answer, to tell whether one that is there answers the same question."""
    how = {
        "prompt": item.prompt,
        "raw": options.raw,
        "model": options.model,
        "dtype": options.dtype,
        "method": method.name,
        "option": method.options.model_dump(mode="json"),
        "generation": GenerateOptions(**options.generation).model_dump(mode="json"),
    }
    return sha256(json.dumps(how, sort_keys=True).encode()).hexdigest()[:12]


def summary(result: Result) -> str:
    """One line about a result."""
    method = result.method if result.lossless else f"{result.method} (lossy)"
    return (
        f"{result.completion_tokens} tokens in {result.forwards} forwards and the prompt's, tau {result.tau:.2f}, "
        f"{result.tokens_per_second:.1f} tokens/s, {method}, {result.finish_reason}"
    )
