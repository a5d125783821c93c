"""A command's options from its YAML file and its flags; flags win, unknown keys are errors."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel

from multitoken.cli.files import read_text
from multitoken.cli.flags import values_of
from multitoken.errors import DataError

S = TypeVar("S", bound=BaseModel)


def options_of(namespace: argparse.Namespace, schema: type[S], command: str) -> S:
    """Validated options of ``command``."""
    from multitoken.methods.registry import validated  # reads PyTorch, which --help can do without

    given = values_of(namespace, schema)
    file = given.get("config")
    values = {**(read_config(Path(file)) if file else {}), **given}
    return validated(schema, values, command)


def read_config(path: Path) -> dict[str, Any]:
    """Keys and values of a YAML mapping; dashes in keys may stand for underscores."""
    text = read_text(path)
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" in line {where.line + 1}" if where else ""
        problem = getattr(error, "problem", None) or "malformed"
        raise DataError(f"{path}: not YAML{line}: {problem}") from None
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise DataError(f"{path}: must hold a mapping of option names to values, like max_new_tokens: 64")
    return {key.replace("-", "_"): value for key, value in found.items()}
