"""What is asked in a benchmark: questions from files, or bundled ones, and how answers are checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from multitoken.bench.tasks import code, gsm8k, lines, spec_bench
from multitoken.bench.tasks.question import Question, TaskData, limited
from multitoken.errors import DataError

TASKS = ("spec-bench", "gsm8k", "code", "jsonl")


def load_task(task: str, data: Path | None, *, per_category: int | None = None, run_code: bool = False) -> TaskData:
    """Questions of a task. Raises `DataError` for a missing or malformed file, saying where to get it."""
    if task == "code":
        found = code.load(data, run_code)
    else:
        found = {"spec-bench": spec_bench, "gsm8k": gsm8k, "jsonl": lines}[task].load(data)
    if not found.questions:
        raise DataError(f"{found.source}: holds no questions")
    return replace(found, questions=limited(found.questions, per_category))


def is_correct(task: str, question: Question, text: str) -> bool:
    """Whether ``text`` answers a question of a scored task."""
    if question.answer is None:
        raise ValueError(f"question {question.id} has no answer")
    return (gsm8k if task == "gsm8k" else code).correct(text, question.answer)


__all__ = ["TASKS", "Question", "TaskData", "is_correct", "load_task"]
