"""What appears on the terminal: consoles, JSON, spans in colour."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.text import Text
from transformers import PreTrainedTokenizerBase

from multitoken.session.output import Result
from multitoken.session.text import Detokenizer

COLOURS = ("bright_cyan", "bright_yellow", "bright_green", "bright_magenta")
BREAK = "|"


def console() -> Console:
    """Standard output; colours on a terminal unless NO_COLOR is set."""
    return Console(highlight=False)


def errors() -> Console:
    """Standard error, for notes that are not part of the output."""
    return Console(stderr=True, highlight=False)


def print_json(value: Any) -> None:
    """One value as one line of JSON."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, default=str) + "\n")


class SpanPrinter:
    """Prints text as it arrives, each step's span in the next colour.

    Where there are no colours (a pipe, a file, NO_COLOR), spans are parted by ``|`` instead. With ``spans`` False the
    text is printed as it is.
    """

    def __init__(self, out: Console, spans: bool):
        self._out, self._spans = out, spans
        self._plain = out.no_color or not out.is_terminal
        self._count = 0

    def add(self, text: str) -> None:
        """Print the text that one step brought; a step that brings none has no span to show."""
        if not text:
            return
        if self._out.is_terminal:
            text = printable(text)
        if self._spans and self._plain:
            text = BREAK + text if self._count else text
        style = COLOURS[self._count % len(COLOURS)] if self._spans and not self._plain else ""
        self._count += 1
        if style:
            self._out.print(Text(text, style=style), end="", soft_wrap=True)
        else:
            self._out.file.write(text)
        self._out.file.flush()

    def end(self) -> None:
        self._out.file.write("\n")
        self._out.file.flush()


def span_texts(tokenizer: PreTrainedTokenizerBase, result: Result) -> list[str]:
    """The text that the prefill and each decode step brought; a character counts for the step that completes it."""
    detokenizer, pieces, start = Detokenizer(tokenizer), [], 0
    for span in (result.prefill_tokens, *result.spans):
        pieces.append(detokenizer.push(result.token_ids[start : start + span]))
        start += span
    pieces[-1] += detokenizer.finish()
    return pieces


def coloured(pieces: Iterable[str]) -> Text:
    """Spans as one text for a table or panel."""
    text = Text()
    for index, piece in enumerate(piece for piece in pieces if piece):
        text.append(printable(piece), style=COLOURS[index % len(COLOURS)])
    return text


def printable(text: str) -> str:
    """``text`` without the control characters by which a model's output could steer the terminal."""
    return "".join(c if c in "\n\t" or not (ord(c) < 32 or 127 <= ord(c) < 160) else "\ufffd" for c in text)
