"""Methods as they are written on the command line: ``name`` or ``name:option=value:option=value``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from multitoken.cli.flags import pair, parse_options
from multitoken.errors import OptionError
from multitoken.methods import NamedMethod, available, create


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """A method's name, its options as given, and how the user wrote it."""

    name: str
    options: Mapping[str, Any]
    label: str

    def create(self) -> NamedMethod:
        """The method. Raises `OptionError` for an unknown name or option, or a value that cannot be used."""
        return create(self.name, **self.options)


def parse_method(text: str, extra: Mapping[str, Any] | None = None) -> MethodSpec:
    """A method spec; ``extra`` are further options (of ``-o``), which win."""
    name, *parts = text.split(":")
    methods = available()
    if name not in methods:
        raise OptionError("method", name, f"use one of {', '.join(methods)}")
    given = {**dict(pair(part, "method") for part in parts), **(extra or {})}
    return MethodSpec(name, parse_options(given, methods[name].Options), text)


def parse_methods(texts: list[str]) -> list[MethodSpec]:
    """Several specs, parted by commas; a comma before a number is part of a value. Never none."""
    if not split_specs(texts):
        raise OptionError("methods", ",".join(texts), f"name at least one of {', '.join(available())}")
    return [parse_method(text) for text in split_specs(texts)]


def split_specs(texts: list[str]) -> list[str]:
    """Parts of ``plain,probe:tree=static:widths=15,4`` as separate specs: a part that is a number goes on the last."""
    specs: list[str] = []
    for text in texts:
        for part in text.split(","):
            if specs and not part.strip(" []").split(":")[0].isidentifier() and part.strip():
                specs[-1] += "," + part.strip()
            elif part.strip():
                specs.append(part.strip())
    return specs
