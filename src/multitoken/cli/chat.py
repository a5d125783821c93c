"""``chat``: a conversation, each answer streamed."""

from __future__ import annotations

import sys

from pydantic import Field

from multitoken.cli.generate import summary
from multitoken.cli.generation import GenerationFlags
from multitoken.cli.show import errors, print_json
from multitoken.errors import ModelError, OptionError

HELP = "an empty line is ignored; /reset forgets the conversation, /exit (or Ctrl-D) ends it"


class ChatCommand(GenerationFlags):
    """Options of ``chat``."""

    show_spans: bool = Field(False, description="colour the tokens of each step")
    system: str | None = Field(None, description="system message")


def run_chat(options: ChatCommand) -> int:
    if options.show_spans and options.as_json:
        raise OptionError("show_spans", True, "has nothing to colour in JSON, which lists the spans; leave it out")
    method = options.create_method()
    model = options.open()
    if model.tokenizer.chat_template is None:
        raise ModelError(f"{options.model} has no chat template; use multitoken generate, or load a chat model")
    opening = [{"role": "system", "content": options.system}] if options.system else []
    messages = list(opening)
    errors().print(f"{options.model}, method {method.name}: {HELP}", style="dim")
    while (line := _read()) is not None:
        if line == "/exit":
            break
        if line == "/reset":
            messages = list(opening)
            continue
        if not line:
            continue
        messages.append({"role": "user", "content": line})
        try:
            text = _answer(options, model, messages, method)
        except OptionError as error:
            messages.pop()
            if not sys.stdin.isatty():
                raise
            errors().print(f"error: {error} (or /reset)", markup=False)
            continue
        messages.append({"role": "assistant", "content": text})
    return 0


def _answer(options: ChatCommand, model, messages: list[dict[str, str]], method) -> str:
    if options.as_json:
        result = options.generate(model, messages, method)
        print_json(result.to_dict())
        return result.text
    result = options.print_stream(model, messages, method, options.show_spans)
    errors().print(summary(result), style="dim", markup=False)
    return result.text


def _read() -> str | None:
    """Next line of the user, None at the end of the input."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None
    except UnicodeDecodeError:
        raise OptionError("prompt", "standard input", "is not UTF-8 text; convert it first") from None
