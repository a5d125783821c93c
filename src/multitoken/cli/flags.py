"""Command-line flags made from pydantic schemas, and values made from their texts.

A field ``block_size`` becomes ``--block-size``; its description is the help text. ``json_schema_extra`` may hold
``positional`` (an argument without flag), ``short`` (a one-letter flag) and ``cli: False`` (no flag at all). Only the
shape of a value (list, mapping) is decided here; types and limits are checked by the schema itself.
"""

from __future__ import annotations

import argparse
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from multitoken.errors import OptionError

LISTS = (list, tuple, set, frozenset, Sequence)
MAPPINGS = (dict, Mapping)
NOTHING = {"none", "null"}


def add_flags(parser: argparse.ArgumentParser, schema: type[BaseModel]) -> None:
    """One argument per field of ``schema``. Values that are not given are absent from the parsed namespace."""
    for name, field in schema.model_fields.items():
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        if extra.get("cli") is False:
            continue
        key = field.alias or name
        help_text = help_of(field)
        annotation = required_type(field.annotation)
        if extra.get("positional"):
            nargs = "*" if get_origin(annotation) in LISTS else None if field.is_required() else "?"
            parser.add_argument(key, nargs=nargs, default=argparse.SUPPRESS, help=help_text)
            continue
        names = [f"-{extra['short']}"] if "short" in extra else []
        names.append("--" + key.replace("_", "-"))
        settings: dict[str, Any] = {"dest": key, "default": argparse.SUPPRESS, "help": help_text}
        if annotation is bool:
            settings["action"] = argparse.BooleanOptionalAction if field.default else "store_true"
        else:
            settings["metavar"] = metavar(annotation)
            if get_origin(annotation) in (*LISTS, *MAPPINGS):
                settings["action"] = "append"
        parser.add_argument(*names, **settings)


def values_of(namespace: argparse.Namespace, schema: type[BaseModel]) -> dict[str, Any]:
    """Given values by key, each in the shape that its field wants."""
    given = vars(namespace)
    values: dict[str, Any] = {}
    for name, field in schema.model_fields.items():
        key = field.alias or name
        if key not in given:
            continue
        value, annotation = given[key], required_type(field.annotation)
        if get_origin(annotation) in MAPPINGS:
            kind = get_args(annotation)[-1]
            values[key] = {name: parse_text(kind, item) for name, item in (pair(text, key) for text in value)}
        elif get_origin(annotation) in LISTS:
            values[key] = [item for text in value for item in parse_text(annotation, text)]
        else:
            values[key] = parse_text(field.annotation, value) if isinstance(value, str) else value
    return values


def parse_text(annotation: Any, text: str) -> Any:
    """``text`` in the shape of ``annotation``: split for a list of numbers, None for ``none``, else as it is."""
    inner = required_type(annotation)
    if types.NoneType in get_args(annotation) and text.lower() in NOTHING:
        return None
    if get_origin(inner) in LISTS:
        if text.startswith("[") and text.endswith("]"):
            return yaml_value(text)
        items = {item for item in get_args(inner) if item is not Ellipsis}
        # A stop string may hold commas; numbers and names do not.
        parts = [text] if items == {str} else [part.strip() for part in text.split(",") if part.strip()]
        return [parse_text(item, part) for part in parts for item in items] if len(items) == 1 else parts
    return parse_number(inner, text)


def parse_number(kind: Any, text: str) -> Any:
    """``text`` as a number or truth value where ``kind`` is one (strict schemas refuse texts); else as it is."""
    if kind is bool:
        return {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}.get(
            text.lower(), text
        )
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            return text
    return text


def parse_options(pairs: Mapping[str, Any], schema: type[BaseModel]) -> dict[str, Any]:
    """Options that were given as texts, in the shapes that ``schema`` wants; unknown keys are left for it to refuse."""
    values = {}
    for key, value in pairs.items():
        name = key.replace("-", "_")
        field = schema.model_fields.get(name)
        values[name] = parse_text(field.annotation, value) if field and isinstance(value, str) else value
    return values


def pair(text: str, option: str) -> tuple[str, str]:
    """``key=value`` as two strings."""
    key, mark, value = text.partition("=")
    if not mark or not key.strip():
        raise OptionError(option, text, "write it as key=value")
    return key.strip(), value.strip()


def yaml_value(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def required_type(annotation: Any) -> Any:
    """``T`` for ``T | None``, without what ``Annotated`` adds; anything else as it is."""
    if get_origin(annotation) is Annotated:
        return required_type(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        others = [part for part in get_args(annotation) if part is not types.NoneType]
        if len(others) == 1 and len(others) < len(get_args(annotation)):
            return required_type(others[0])
    return annotation


def metavar(annotation: Any) -> str:
    """Short name of a value's type for help texts."""
    annotation = required_type(annotation)
    origin = get_origin(annotation)
    if origin is Literal:
        return "{" + ",".join(str(choice) for choice in get_args(annotation)) + "}"
    if origin in MAPPINGS:
        return "KEY=VALUE"
    if origin in LISTS:
        inner = metavar(get_args(annotation)[0]) if get_args(annotation) else "VALUE"
        return inner if inner == "TEXT" else f"{inner},..."
    return {int: "N", float: "X", str: "TEXT", Path: "PATH", bool: "BOOL"}.get(annotation, "VALUE")


def help_of(field: FieldInfo) -> str:
    """Description and default of a field."""
    text = field.description or ""
    default = field.get_default(call_default_factory=True) if not field.is_required() else None
    if not isinstance(default, bool) and default not in (None, "", (), [], {}) and "default" not in text:
        text += f" (default: {default_text(default)})"
    return text.replace("%", "%%")


def default_text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value)
    return str(value)
