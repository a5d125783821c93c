"""A question of a benchmark, and where its data is found."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from multitoken.errors import DataError

VARIABLE = "MULTITOKEN_DATA"


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked.

    Attributes:
        id: unique within its task.
        turns: the user's messages; each sees the answers to those before it.
        answer: the right answer, where the task has one (GSM8K: a number as text; code: the tests).
    """

    id: str
    category: str
    turns: tuple[str, ...]
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class TaskData:
    """The questions of a run and what they were read from.

    Attributes:
        scored: the questions have answers that outputs are checked against.
        source: file, or ``bundled``.
        sha256: of the source's bytes.
    """

    task: str
    questions: list[Question] = field(repr=False)
    scored: bool
    source: str
    sha256: str


def read_lines(path: Path) -> tuple[list[tuple[str, dict[str, Any]]], str]:
    """JSON objects of a file, one per line, each with a name of its place for errors; and the file's SHA-256."""
    try:
        data = path.read_bytes()
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); check --data") from error
    except UnicodeDecodeError:
        raise DataError(f"{path}: not UTF-8 text; give a JSON Lines file") from None
    return list(_objects(text.split("\n"), path)), hashlib.sha256(data).hexdigest()


def _objects(lines: Iterable[str], path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path} line {number}"
        try:
            found = json.loads(line)
        except ValueError as error:
            raise DataError(f"{where}: not JSON ({error}); give one object per line") from None
        if not isinstance(found, dict):
            raise DataError(f"{where}: must be an object; give one object per line")
        yield where, found


def text_of(found: dict[str, Any], key: str, where: str) -> str:
    """A text that must be there and must not be empty."""
    value = found.get(key)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where}: {key!r} must be a text that is not empty")
    return value


def turns_of(found: dict[str, Any], where: str) -> tuple[str, ...]:
    turns = found.get("turns")
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise DataError(f"{where}: 'turns' must be a list of texts that are not empty")
    return tuple(turns)


def locate(given: Path | None, names: Sequence[str], what: str, address: str) -> Path:
    """The data file: ``given``, else ``MULTITOKEN_DATA``; in a folder, the first of ``names`` that is there.

    Raises:
        DataError: there is none; the message says where to get it.
    """
    place = given if given is not None else Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None
    remedy = f"download {address} and give its path as --data, or its folder in {VARIABLE}"
    if place is None:
        raise DataError(f"{what} has no data file: {remedy}")
    place = place.expanduser()
    if place.is_dir():
        found = [place / name for name in names if (place / name).is_file()]
        if not found:
            raise DataError(f"{place}: holds no {' or '.join(names)}: {remedy}")
        return found[0]
    if not place.is_file():
        raise DataError(f"{place}: no such file: {remedy}")
    return place


def check_unique(questions: Sequence[Question], source: object) -> None:
    seen: set[str] = set()
    for question in questions:
        if question.id in seen:
            raise DataError(f"{source}: id {question.id!r} is used twice; make ids unique")
        seen.add(question.id)


def limited(questions: Sequence[Question], per_category: int | None) -> list[Question]:
    """The first ``per_category`` questions of each category, in their order."""
    kept: list[Question] = []
    counts: dict[str, int] = {}
    for question in questions:
        counts[question.category] = counts.get(question.category, 0) + 1
        if per_category is None or counts[question.category] <= per_category:
            kept.append(question)
    return kept
