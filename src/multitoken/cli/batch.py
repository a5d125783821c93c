"""Batches: JSON Lines in, JSON Lines out, in order, and again from where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from multitoken.cli.files import write_error
from multitoken.cli.prompts import Item
from multitoken.errors import DataError
from multitoken.models.progress import Progress
from multitoken.storage import LineFile

Answer = Callable[[Sequence[Item]], list[dict[str, Any]]]


class ResumableLines:
    """A JSON Lines file that grows by whole lines only.

    Opening it drops a half-written last line; ``done`` holds the ``id`` and ``asked`` of the lines that are there. A
    write that fails (a full disk) leaves the file as it was before that line.
    """

    def __init__(self, path: Path):
        self.path = path
        self.done: list[tuple[Any, str]] = []
        try:
            self._file = LineFile(path)
        except OSError as error:
            raise write_error(path, error) from error
        try:
            self._repair()
        except BaseException:
            self._file.close()
            raise

    def append(self, record: dict[str, Any]) -> None:
        try:
            self._file.append(json.dumps(record, ensure_ascii=False) + "\n")
        except OSError as error:
            raise DataError(
                f"{write_error(self.path, error)}; {len(self.done)} lines are kept, and the same command goes on there"
            ) from error
        self.done.append((record["id"], record["asked"]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def _repair(self) -> None:
        lines = self._file.lines()
        for number, line in enumerate(lines, 1):
            record = _record(line)
            if record is None and number == len(lines):
                break
            if record is None:
                raise DataError(f"{self.path} line {number}: not a line that this command wrote; choose another --out")
            self.done.append((record["id"], record["asked"]))
        self._file.keep(lines[: len(self.done)])


def _record(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and {"id", "asked"} <= found.keys() else None


def run_batch(
    items: Sequence[Item], marks: Sequence[str], out: Path, answer: Answer, group: int, progress: bool = True
) -> int:
    """Answer ``items`` in groups and append a line for each to ``out``. Returns how many were there already.

    ``marks`` holds for each item what its line keeps as ``asked``: a hash of the question and of how it is answered.

    Raises:
        DataError: ``out`` holds lines of another batch, or cannot be written.
    """
    with ResumableLines(out) as lines:
        skipped = len(lines.done)
        expected = [(item.id, mark) for item, mark in zip(items, marks, strict=True)]
        if lines.done != expected[:skipped]:
            raise DataError(
                f"{out}: holds answers to other prompts than these, or made with other options; choose another --out, "
                "or delete it"
            )
        with Progress(progress, "answering", len(items)) as bar:
            bar.at(skipped)
            for start in range(skipped, len(items), group):
                part = slice(start, start + group)
                for (key, mark), record in zip(expected[part], answer(items[part]), strict=True):
                    lines.append({"id": key, **record, "asked": mark})
                    bar.advance(1)
    return skipped
