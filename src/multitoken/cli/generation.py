"""The options that commands share which generate text: the library's own, and the method."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from multitoken.api import load
from multitoken.cli.methods import parse_method
from multitoken.cli.models import ModelFlags
from multitoken.cli.prompts import Messages
from multitoken.cli.show import SpanPrinter, console
from multitoken.methods import NamedMethod
from multitoken.session.language_model import DEFAULT_METHOD, LanguageModel
from multitoken.session.options import GenerateOptions
from multitoken.session.output import Result
from multitoken.session.session import Chunk

WARM_UP_TOKENS = 4


class GenerationFlags(ModelFlags, GenerateOptions):
    """Model, method and `GenerateOptions`."""

    method: str = Field(
        DEFAULT_METHOD,
        description="NAME, or NAME:OPTION=VALUE:... (multitoken methods lists them)",
    )
    option: dict[str, Any] = Field(
        default_factory=dict,
        description="an option of the method; may be repeated",
        json_schema_extra={"short": "o"},
    )
    raw: bool = Field(False, description="the prompt is text to continue, not a message to answer")

    @property
    def generation(self) -> dict[str, Any]:
        """The fields of `GenerateOptions`."""
        return {name: getattr(self, name) for name in GenerateOptions.model_fields}

    def create_method(self) -> NamedMethod:
        """The chosen method. Needs no model, so that its options are checked before one is loaded."""
        return parse_method(self.method, self.option).create()

    def open(self) -> LanguageModel:
        return load(self.model, **self.loading)

    def generate(self, model: LanguageModel, prompt: str | Messages, method: NamedMethod) -> Result:
        result = model.generate(prompt, method, raw=self.raw, **self.generation)
        assert isinstance(result, Result)
        return result

    def stream(self, model: LanguageModel, prompt: str | Messages, method: NamedMethod) -> Iterator[Chunk]:
        return model.stream(prompt, method, raw=self.raw, **self.generation)

    def print_stream(
        self, model: LanguageModel, prompt: str | Messages, method: NamedMethod, show_spans: bool
    ) -> Result:
        """Answer on standard output as the text comes; ``show_spans`` colours the tokens of each step."""
        printer = SpanPrinter(console(), show_spans)
        result = None
        for piece in self.stream(model, prompt, method):
            printer.add(piece.text)
            result = piece.result or result
        printer.end()
        assert result is not None
        return result

    def warm_up(self, model: LanguageModel, prompt: str, method: NamedMethod) -> None:
        """A few tokens that are not timed, so that what a method makes once is there."""
        brief = {**self.generation, "max_new_tokens": min(WARM_UP_TOKENS, self.max_new_tokens), "min_tokens": 0}
        model.generate(prompt, method, raw=self.raw, **brief)
