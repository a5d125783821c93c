"""GSM8K: grade-school maths with a number as the answer.

Source: Cobbe et al., arXiv 2110.14168, github.com/openai/grade-school-math (MIT).
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from pathlib import Path

from multitoken.bench.tasks.question import Question, TaskData, locate, read_lines, text_of
from multitoken.errors import DataError

NAMES = ("gsm8k_test.jsonl", "test.jsonl")
ADDRESS = "https://raw.githubusercontent.com/openai/grade-school-math/master/grade_school_math/data/test.jsonl"
MARK = "####"
PROMPT = "{question}\n\nThink step by step. End with the final answer as a number after #### on a line of its own."
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")


def load(data: Path | None) -> TaskData:
    path = locate(data, NAMES, "gsm8k", ADDRESS)
    lines, digest = read_lines(path)
    questions = []
    for index, (where, found) in enumerate(lines):
        answer = number(text_of(found, "answer", where).rpartition(MARK)[2])
        if MARK not in found["answer"] or answer is None:
            raise DataError(f"{where}: 'answer' must end with {MARK} and a number")
        turn = PROMPT.format(question=text_of(found, "question", where))
        questions.append(Question(str(index), "gsm8k", (turn,), answer))
    return TaskData("gsm8k", questions, scored=True, source=str(path), sha256=digest)


def correct(text: str, answer: str) -> bool:
    """The output's number, after its last ``####`` or else the last one in it, equals ``answer``."""
    _, mark, tail = text.rpartition(MARK)
    found = number(tail) if mark else None
    if found is None:
        numbers = NUMBER.findall(text)
        found = normal(numbers[-1]) if numbers else None
    return found is not None and found == answer


def number(text: str) -> str | None:
    """First number in ``text``, without thousands separators and trailing zeros."""
    found = NUMBER.search(text)
    return normal(found.group()) if found else None


def normal(digits: str) -> str | None:
    try:
        value = Decimal(digits.replace(",", ""))
    except InvalidOperation:
        return None
    return f"{value.normalize() + 0:f}"
