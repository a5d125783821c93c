"""``demo``: plain decoding and a method that predicts ahead, on one prompt, with what each step brought in colour."""

from __future__ import annotations

from pydantic import Field
from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from multitoken.bench.compare import Comparison
from multitoken.bench.questions import QUESTIONS
from multitoken.cli.compare import REFERENCE, compare_on, print_comparison, with_texts
from multitoken.cli.generation import GenerationFlags
from multitoken.cli.show import BREAK, coloured, console, print_json, span_texts
from multitoken.errors import OptionError
from multitoken.methods import available, create
from multitoken.session.language_model import LanguageModel

WIDE = 100
NEXT = """Try next:
  multitoken chat --show-spans                         talk with the model
  multitoken compare "Your prompt" --methods pld,auto  which method pays on your words?
  multitoken methods                                   all methods and their options
  multitoken inspect cost                              what a forward costs on this machine
  multitoken generate --help                           sampling, stop strings, files, batches"""

SLOWER = """Slower here: on this machine a forward of so large a block costs more than its extra tokens bring.
A smaller block may pay (--method probe:block_size=8), or --dtype bfloat16."""


class DemoCommand(GenerationFlags):
    """Options of ``demo``."""

    prompt: str = Field(QUESTIONS[0], description="what to ask", json_schema_extra={"positional": True})
    method: str = Field("probe", description="shown beside plain: NAME or NAME:OPTION=VALUE:...")
    max_new_tokens: int = Field(64, ge=1, description="output tokens")


def run_demo(options: DemoCommand) -> int:
    if not options.prompt.strip():
        raise OptionError("prompt", options.prompt, "give some text")
    method = options.create_method()
    if method.name == REFERENCE:
        others = ", ".join(name for name in available() if name != REFERENCE)
        raise OptionError("method", options.method, f"is shown anyway; choose another: {others}")
    model = options.open()
    found = compare_on(model, options.prompt, {REFERENCE: create(REFERENCE), options.method: method}, options, 1)
    if options.as_json:
        print_json({"prompt": options.prompt, "methods": [with_texts(entry.to_dict(), model) for entry in found]})
        return 0
    out = console()
    out.print(f"{options.model} is asked: {options.prompt}", style="bold", markup=False)
    out.print("Each colour is what one forward of the model brought." if _colours(out) else _LEGEND)
    panels = [_panel(entry, model, out) for entry in found]
    if out.width >= WIDE:
        out.print(Columns(panels, equal=True, expand=True, width=out.width // 2 - 1))
    else:
        for panel in panels:
            out.print(panel)
    print_comparison(out, found, model)
    if (found[1].speedup or 1.0) < 1.0:
        out.print(SLOWER, markup=False)
    out.print(NEXT, markup=False)
    return 0


_LEGEND = f"{BREAK} marks where one forward of the model ends and the next begins."


def _colours(out: Console) -> bool:
    return out.is_terminal and not out.no_color


def _panel(entry: Comparison, model: LanguageModel, out: Console) -> Panel:
    result = entry.result
    pieces = span_texts(model.tokenizer, result)
    text = coloured(pieces) if _colours(out) else Text(BREAK.join(pieces))
    title = f"{entry.label}: {result.completion_tokens} tokens, tau {result.tau:.2f}"
    return Panel(text, title=Text(title), title_align="left")
