"""The user's own questions: JSON Lines with ``prompt`` or ``turns``, and optionally ``id`` and ``category``."""

from __future__ import annotations

from pathlib import Path

from multitoken.bench.tasks.question import Question, TaskData, check_unique, read_lines, text_of, turns_of
from multitoken.errors import DataError, OptionError

KEYS = ("id", "category", "prompt", "turns")


def load(data: Path | None) -> TaskData:
    if data is None:
        raise OptionError("data", None, 'task jsonl needs --data FILE with lines like {"prompt": "Hello"}')
    if not data.expanduser().is_file():
        raise DataError(f"{data}: no such file; check --data")
    lines, digest = read_lines(data.expanduser())
    questions = []
    for index, (where, found) in enumerate(lines):
        unknown = [key for key in found if key not in KEYS]
        if unknown:
            raise DataError(f"{where}: unknown key {unknown[0]!r}; use {', '.join(KEYS)}")
        if ("prompt" in found) == ("turns" in found):
            raise DataError(f"{where}: give either 'prompt' or 'turns'")
        turns = (text_of(found, "prompt", where),) if "prompt" in found else turns_of(found, where)
        category = text_of(found, "category", where) if "category" in found else "all"
        questions.append(Question(str(found.get("id", index)), category, turns))
    if not questions:
        raise DataError(f'{data}: no questions; give one object per line, like {{"prompt": "Hello"}}')
    check_unique(questions, data)
    return TaskData("jsonl", questions, scored=False, source=str(data), sha256=digest)
