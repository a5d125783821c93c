"""Methods by name, and their options.

A method is a class with a ``name``, an ``Options`` schema and a constructor that takes it. Registering it here makes it
known to the Python API, the command line, the server and the benchmark.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from multitoken.engine.method import Method
from multitoken.errors import OptionError


class MethodOptions(BaseModel):
    """Base of a method's options: typed, immutable, unknown keys are errors. Field descriptions are the help texts."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


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
        first = error.errors()[0]
        option = ".".join(str(part) for part in first["loc"]) or owner
        if first["type"] == "extra_forbidden":
            known = ", ".join(schema.model_fields) or "none"
            raise OptionError(option, first["input"], f"unknown option of {owner}; it has: {known}") from None
        message = first["msg"].removeprefix("Value error, ")
        raise OptionError(option, first.get("input"), f"{message} ({owner})") from None
