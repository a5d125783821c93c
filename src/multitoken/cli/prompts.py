"""Prompts from the command line, files, standard input and JSON Lines."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multitoken.cli.files import decode, read_text
from multitoken.errors import DataError, OptionError

STDIN = "-"
ROLES = ("system", "user", "assistant", "tool")
KEYS = ("id", "prompt", "messages")

Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Item:
    """One line of a batch: its ``id`` (its line number, from 0, where it names none) and what to answer."""

    id: Any
    prompt: str | Messages
    line: int


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """The one prompt that was given as an argument, a file, or ``-`` for standard input. Never empty."""
    if prompt is not None and file is not None:
        raise OptionError("file", str(file), "give a prompt or a file, not both")
    if prompt is None and file is None:
        raise OptionError("prompt", None, "give a text, --file FILE, or - to read standard input")
    source = str(file) if file is not None else prompt
    if source == STDIN:
        text, name = decode(sys.stdin.buffer.read(), "standard input"), "standard input"
    elif file is not None:
        text, name = read_text(file), str(file)
    else:
        text, name = str(prompt), "the argument"
    if name != "the argument":
        text = text.rstrip("\r\n")  # the line end that editors and echo add is not part of the prompt
    if not text.strip():
        raise OptionError("prompt", text, f"{name} holds no text; give some")
    return text


def read_items(path: Path) -> list[Item]:
    """All prompts of a JSON Lines file, checked before the first is answered. Blank lines are skipped."""
    text = decode(sys.stdin.buffer.read(), "standard input") if str(path) == STDIN else read_text(path)
    items: list[Item] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            items.append(_item(line, f"{path} line {number}", len(items), number))
    if not items:
        raise DataError(f'{path}: no prompts; give one JSON object per line, like {{"prompt": "Hello"}}')
    ids = [json.dumps(item.id) for item in items]
    if len(set(ids)) < len(ids):
        twice = next(item for item, key in zip(items, ids, strict=True) if ids.count(key) > 1)
        raise DataError(f"{path} line {twice.line}: id {twice.id!r} is used twice; make ids unique")
    return items


def _item(line: str, where: str, index: int, number: int) -> Item:
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON: {error.msg} at column {error.colno}") from None
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise DataError(f"{where}: holds half of a surrogate pair; write the whole character") from None
    if not isinstance(found, dict):
        raise DataError(f'{where}: must be an object like {{"prompt": "Hello"}}')
    unknown = [key for key in found if key not in KEYS]
    if unknown:
        raise DataError(f"{where}: unknown key {unknown[0]!r}; use {', '.join(KEYS)}")
    if ("prompt" in found) == ("messages" in found):
        raise DataError(f"{where}: give either prompt or messages")
    if "prompt" in found:
        if not isinstance(found["prompt"], str) or not found["prompt"].strip():
            raise DataError(f"{where}: prompt must be a text that is not empty")
        return Item(found.get("id", index), found["prompt"], number)
    return Item(found.get("id", index), _messages(found["messages"], where), number)


def _messages(found: Any, where: str) -> Messages:
    good = isinstance(found, list) and found
    for message in found if good else ():
        good = good and isinstance(message, dict) and set(message) == {"role", "content"}
        good = good and message["role"] in ROLES and isinstance(message["content"], str)
    if not good:
        raise DataError(
            f'{where}: messages must be a list of {{"role": ..., "content": ...}}, roles {", ".join(ROLES)}'
        )
    return found
