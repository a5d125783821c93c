"""What a command is, and the options that commands share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class CommandOptions(BaseModel):
    """Options of every command."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), populate_by_name=False)

    as_json: bool = Field(False, alias="json", description="print JSON instead of text")
    config: Path | None = Field(None, description="YAML file with the same keys as the flags; flags win")
    debug: bool = Field(False, description="show the traceback of an error")


@dataclass(frozen=True, slots=True)
class Command:
    """One command: its words, what it does, its options, and the function that runs it and returns an exit code."""

    name: str
    summary: str
    schema: type[CommandOptions]
    run: Callable[[Any], int]
