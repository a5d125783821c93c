"""What a command is, and the options that commands share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class CommandOptions(BaseModel):
    """Options of every command."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    as_json: bool = Field(False, alias="json", description="print JSON instead of text")
    config: Path | None = Field(None, description="YAML file with the same keys as the flags; flags win")
    debug: bool = Field(False, description="show the traceback of an error")


@dataclass(frozen=True, slots=True)
class Command:
    """One command: its words, what it does, and where its options and its function are.

    They are imported when the command is chosen, since that reads PyTorch; ``multitoken --help`` should not.
    """

    name: str
    summary: str
    module: str
    options: str
    function: str

    @property
    def schema(self) -> type[CommandOptions]:
        return getattr(import_module(self.module), self.options)

    @property
    def run(self) -> Callable[[Any], int]:
        """Runs the command with its validated options and returns the exit code."""
        return getattr(import_module(self.module), self.function)
