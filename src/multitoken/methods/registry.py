"""Methods by name, and their options.

A method is a class with a ``name``, an ``Options`` schema and a constructor that takes it. Registering it here makes it
known to the Python API, the command line, the server and the benchmark.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from multitoken.engine.method import Method
from multitoken.errors import OptionError


class MethodOptions(BaseModel):
    """Base of a method's options: typed, immutable, unknown keys are errors. Field descriptions are the help texts."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)


class NamedMethod(Method):
    """A method that can be asked for by name."""

    Options: ClassVar[type[MethodOptions]] = MethodOptions
    summary: ClassVar[str] = ""

    def __init__(self, options: MethodOptions | None = None):
        self.options = options if options is not None else self.Options()


_METHODS: dict[str, type[NamedMethod]] = {}
T = TypeVar("T", bound=type[NamedMethod])


def register(cls: T) -> T:
    """Class decorator: make a method available under its ``name``."""
    _METHODS[cls.name] = cls
    return cls


def available() -> dict[str, type[NamedMethod]]:
    """Registered methods by name, in order of registration."""
    return dict(_METHODS)


def create(name: str, **options: Any) -> NamedMethod:
    """A method by name with its options. Raises `OptionError` naming what is wrong and what would be right."""
    if name not in _METHODS:
        raise OptionError("method", name, f"use one of {', '.join(_METHODS)}")
    cls = _METHODS[name]
    return cls(validated(cls.Options, options, f"method {name}"))


S = TypeVar("S", bound=BaseModel)


def validated(schema: type[S], values: dict[str, Any], owner: str) -> S:
    """``schema(**values)``, with the first validation error as an `OptionError`."""
    try:
        return schema(**values)
    except ValidationError as error:
        found = error.errors()
        first = found[0]
        message = first["msg"].removeprefix("Value error, ")
        if not first["loc"]:
            option, value = _culprit(schema, values, message, owner)
            raise OptionError(option, value, f"{message} ({owner})") from None
        option = ".".join(str(part) for part in first["loc"] if part != "[key]")
        if first["type"] == "extra_forbidden":
            known = ", ".join(field.alias or name for name, field in schema.model_fields.items()) or "none"
            raise OptionError(option, first["input"], f"unknown option of {owner}; it has: {known}") from None
        # A field that takes several kinds of values has an error for each, with the kind as second part of its place.
        kinds = [
            e["msg"] for e in found if len(e["loc"]) == 2 and e["loc"][0] == first["loc"][0] and e["loc"][1] != "[key]"
        ]
        if len(kinds) > 1 and isinstance(first["loc"][1], str):
            option, message = str(first["loc"][0]), ", or ".join(kinds)
        raise OptionError(
            option, first.get("input"), f"{message.replace('Input should be', 'must be')} ({owner})"
        ) from None


def _culprit(schema: type[BaseModel], values: dict[str, Any], message: str, owner: str) -> tuple[str, Any]:
    """The option, with its value, that the message of a check of several options names first."""
    words = re.findall(r"\w+", message)
    option = next((word for word in words if word in schema.model_fields), None)
    if option is None:
        return owner, values
    return option, values.get(option, schema.model_fields[option].get_default(call_default_factory=True))
