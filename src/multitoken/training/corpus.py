"""A corpus: what a model wrote itself, as token ids, with where it comes from.

The file is JSON Lines. The first line is a header: ``schema``, the model and its fingerprint, how the text was made.
Each further line is a sample.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from multitoken.errors import DataError

SCHEMA = "multitoken.corpus/1"


@dataclass(frozen=True, slots=True)
class Sample:
    """One conversation.

    Attributes:
        prompt: token ids up to where the model begins to answer.
        answer: what it wrote, its end of text included where it reached one.
        source: ``self`` (the model wrote the prompt too) or ``file``.
        finish: ``stop`` or ``length``.
    """

    prompt: list[int]
    answer: list[int]
    source: str = "self"
    finish: str = "stop"

    @property
    def digest(self) -> str:
        """Hash of its tokens."""
        return hashlib.sha256(json.dumps([self.prompt, self.answer]).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Corpus:
    """A corpus in memory.

    Attributes:
        header: the first line of the file.
        samples: the others, in the order of the file.
    """

    header: dict[str, Any]
    samples: list[Sample] = field(repr=False)

    @property
    def digest(self) -> str:
        """Short hash of all samples, whatever their order."""
        return hashlib.sha256("".join(sorted(sample.digest for sample in self.samples)).encode()).hexdigest()[:16]

    @property
    def tokens(self) -> int:
        """Tokens of all answers."""
        return sum(len(sample.answer) for sample in self.samples)

    def split(self, held_out: float = 0.05) -> tuple[list[Sample], list[Sample]]:
        """Samples to train on and samples to judge by. Each sample's side follows from its tokens alone.

        Raises `DataError` where one side would be empty.
        """
        bound = int(held_out * 2**32)
        sides: tuple[list[Sample], list[Sample]] = ([], [])
        for sample in self.samples:
            sides[int(sample.digest[:8], 16) < bound].append(sample)
        if not sides[0] or (held_out > 0 and not sides[1]):
            raise DataError(
                f"{len(self.samples)} samples are too few to hold {held_out:.0%} of them out; make more of them"
            )
        return sides


def read_corpus(path: Path | str, fingerprint: str | None = None) -> Corpus:
    """Read a corpus. A half-written last line, as a kill leaves it, is left out.

    Args:
        path: a file that ``multitoken data synthesize`` wrote.
        fingerprint: of the model that it is to be used with; another one in the header is an error.
    """
    path = Path(path)
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; make one with multitoken data synthesize") from error
    whole = [line for line in lines if line.endswith(b"\n")]
    header = read_header(whole[0] if whole else b"", path)
    if fingerprint is not None and header.get("fingerprint") != fingerprint:
        raise DataError(
            f"{path}: was written by {header.get('model')} ({header.get('fingerprint')}), not by this model "
            f"({fingerprint}); make one with multitoken data synthesize"
        )
    return Corpus(header, list(_samples(whole[1:], path)))


def read_header(line: bytes, path: Path) -> dict[str, Any]:
    """The first line of a corpus."""
    try:
        header = json.loads(line)
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        raise DataError(f"{path}: is no corpus ({SCHEMA}); make one with multitoken data synthesize")
    return header


def _samples(lines: Iterable[bytes], path: Path) -> Iterable[Sample]:
    for number, line in enumerate(lines, 2):
        try:
            found = json.loads(line)
            yield Sample(found["prompt"], found["answer"], found["source"], found["finish"])
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} line {number}: is no sample ({error}); delete the line") from None
