"""What a run of the command line gave."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Outcome:
    code: int
    out: str
    err: str


def one_line_error(outcome: Outcome, code: int, *words: str) -> None:
    """The outcome is an error of one line that holds ``words``, with nothing on standard output."""
    assert outcome.code == code, outcome
    assert outcome.err.startswith("error: ") and outcome.err.count("\n") == 1, outcome.err
    assert "Traceback" not in outcome.err
    assert all(word in outcome.err for word in words), outcome.err
    assert outcome.out == ""
