"""The ``multitoken`` command: parsing, dispatch, exit codes.

Exit codes: 0 done, 2 wrong usage or option, 1 any other error, 130 interrupted, 141 the reader of the output left.
An error is one line on standard error.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from multitoken.cli.command import Command
from multitoken.cli.commands import COMMANDS, GROUPS
from multitoken.cli.config import options_of
from multitoken.cli.files import FULL
from multitoken.cli.flags import add_flags
from multitoken.errors import MultitokenError, OptionError

DONE, FAILED, WRONG_USAGE, INTERRUPTED, READER_LEFT = 0, 1, 2, 130, 141


class UsageError(MultitokenError):
    """The command line itself cannot be understood."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are exceptions, which takes flags in full only, and gets a command's flags when used."""

    def __init__(self, *args, command: Command | None = None, **kwargs):
        super().__init__(*args, allow_abbrev=False, **kwargs)
        self._command = command

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[override]
        if self._command is not None:
            add_flags(self, self._command.schema)
            self.set_defaults(chosen=self._command)
            self._command = None
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. ``argv``: without the program's name."""
    argv = list(sys.argv[1:] if argv is None else argv)
    code = _guarded(argv)
    try:
        sys.stdout.flush()
    except OSError as error:
        _drop_output()
        if isinstance(error, BrokenPipeError):
            return READER_LEFT
        return _fail(f"cannot write the output: {error.strerror or error}", FAILED)
    return code


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="multitoken", description="Several tokens per forward pass, with the model's own output.")
    parser.add_argument("--version", action="version", version=f"multitoken {_version()}")
    groups = {"": parser.add_subparsers(dest="command", metavar="COMMAND", required=True)}
    for command in COMMANDS:
        *parents, name = command.name.split()
        group = " ".join(parents)
        if group not in groups:
            parent = groups[""].add_parser(group, help=GROUPS[group], description=GROUPS[group])
            groups[group] = parent.add_subparsers(dest="command", metavar="COMMAND", required=True)
        made = groups[group].add_parser(name, help=command.summary, description=command.summary, command=command)
        if any(other.name.startswith(f"{command.name} ") for other in COMMANDS):
            groups[command.name] = made.add_subparsers(dest="command", metavar="COMMAND", required=False)
    return parser


def _guarded(argv: list[str]) -> int:
    """Run and turn whatever is raised into a line and an exit code."""
    try:
        return _dispatch(argv)
    except SystemExit as leaving:  # argparse after --help or --version
        return leaving.code if isinstance(leaving.code, int) else DONE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return READER_LEFT
    except Exception as error:
        if "--debug" in argv:
            raise
        return _fail(*_explained(error))


def _dispatch(argv: list[str]) -> int:
    namespace = build_parser().parse_args(argv)
    command: Command = namespace.chosen
    schema = command.schema
    known = {field.alias or name for name, field in schema.model_fields.items()} | {"command", "chosen"}
    for stray in sorted(vars(namespace).keys() - known):  # given to the command that this one belongs to
        flag = "--" + stray.replace("_", "-")
        raise UsageError(f"{flag} is no flag of multitoken {command.name}; see multitoken {command.name} --help")
    return command.run(options_of(namespace, schema, f"multitoken {command.name}"))


def _explained(error: Exception) -> tuple[str, int]:
    if isinstance(error, (OptionError, UsageError)):
        return str(error), WRONG_USAGE
    if isinstance(error, MultitokenError):
        return str(error), FAILED
    if isinstance(error, OSError) and error.errno in FULL:
        return f"cannot write the output: {error.strerror}", FAILED
    return f"unexpected {type(error).__name__}: {error} (--debug shows where; please report it)", FAILED


def _fail(message: str, code: int) -> int:
    print("error: " + " ".join(message.split()), file=sys.stderr)
    return code


def _drop_output() -> None:
    """Point standard output nowhere, so that flushing what is left of it at exit does not fail again."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("multitoken")
    except PackageNotFoundError:
        return "(not installed)"
