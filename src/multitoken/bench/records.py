"""What one run leaves on disk: a journal with one line per question, which grows by whole lines only.

The first line holds the settings. A run that was killed goes on where it stopped; a half-written last line is dropped,
and its question is asked again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from multitoken.errors import DataError
from multitoken.storage import LineFile


class Record(BaseModel):
    """Base of what is written: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Trace(Record):
    """One answer of one method to one turn. Field meanings as in `multitoken.engine.row.Row`.

    Attributes:
        tokens: output ids, an end-of-sequence id included.
        spans: tokens committed by each forward, the first being the prefill's.
        drafted, accepted: nodes by depth (index 0: depth 1); empty for peers, which do not tell.
        blocks: block size of each decode forward; empty for peers.
        prefill_seconds, decode_seconds: wall clock; of a batch, this row's share by tokens.
        seconds: end to end, from token ids to token ids.
        text: the output without special tokens.
        retokenized: tokens of ``text`` by the tokenizer, less one, as Spec-Bench's scripts count.
        peak_memory: largest resident memory during the answer, bytes (CUDA: allocated on the device); None if unknown.
    """

    tokens: list[int]
    spans: list[int]
    drafted: list[int] = Field(default_factory=list)
    accepted: list[int] = Field(default_factory=list)
    blocks: list[int] = Field(default_factory=list)
    prefill_seconds: float
    decode_seconds: float
    seconds: float
    finish_reason: str
    text: str = ""
    retokenized: int = 0
    peak_memory: int | None = None

    @property
    def forwards(self) -> int:
        """Decode forwards (prefill not counted)."""
        return max(len(self.spans) - 1, 0)

    @property
    def decoded(self) -> int:
        """Tokens committed by decode forwards."""
        return sum(self.spans[1:])


class DivergenceRecord(Record):
    """First difference from plain decoding: see `multitoken.bench.divergence.Divergence`."""

    index: int
    reference: int | None
    other: int | None
    reference_text: str | None = None
    other_text: str | None = None
    reference_logit: float | None = None
    other_logit: float | None = None
    gap: float | None = None
    near_tie: bool | None = None


class TurnRecord(Record):
    """One turn: every method's answer to the same prompt, by label."""

    prompt_tokens: int
    traces: dict[str, Trace]
    divergences: dict[str, DivergenceRecord] = Field(default_factory=dict)


class QuestionRecord(Record):
    """One question. ``correct``: by label, for tasks with an answer."""

    id: str
    category: str
    turns: list[TurnRecord]
    correct: dict[str, bool] = Field(default_factory=dict)


class Journal:
    """The file ``records.jsonl``. Context manager.

    Args:
        path: created if absent.
        settings: what the run depends on; must equal those of the file.

    Raises:
        DataError: the file was written with other settings (all that differ are named), or is damaged.
    """

    def __init__(self, path: Path, settings: dict[str, Any]):
        self.path = path
        self.records: list[QuestionRecord] = []
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = LineFile(path, sync=True)
        except OSError as error:
            raise DataError(f"cannot write {path}: {error.strerror}; choose another --out") from error
        try:
            self._open(settings)
        except BaseException:
            self._file.close()
            raise

    def append(self, records: Sequence[QuestionRecord]) -> None:
        """Write a line for each record and wait until the disk has them."""
        self._write("".join(record.model_dump_json() + "\n" for record in records))
        self.records.extend(records)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def _open(self, settings: dict[str, Any]) -> None:
        lines = self._file.lines()
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
        self._file.keep(lines)
        if not lines:
            self._write(json.dumps({"settings": settings}) + "\n")
            return
        self._check(lines[0], json.loads(json.dumps(settings)))
        self.records = [self._parsed(line, number) for number, line in enumerate(lines[1:], 2)]

    def _check(self, line: bytes, settings: dict[str, Any]) -> None:
        try:
            held = json.loads(line)["settings"]
        except (ValueError, KeyError, TypeError):
            raise DataError(f"{self.path} line 1: not a journal of this command; choose another --out") from None
        changed = [
            f"{key} was {held.get(key)!r} and is {settings.get(key)!r}"
            for key in dict.fromkeys([*held, *settings])
            if held.get(key) != settings.get(key)
        ]
        if changed:
            raise DataError(
                f"{self.path}: holds a run with other settings: {'; '.join(changed)}; give the same, or another --out"
            )

    def _parsed(self, line: bytes, number: int) -> QuestionRecord:
        try:
            return QuestionRecord.model_validate_json(line)
        except ValidationError:
            raise DataError(
                f"{self.path} line {number}: not a record of this command; choose another --out, or delete the file"
            ) from None

    def _write(self, text: str) -> None:
        try:
            self._file.append(text)
        except OSError as error:
            raise DataError(
                f"cannot write {self.path}: {error.strerror}; {len(self.records)} questions are kept, and the same "
                "command goes on there"
            ) from error
