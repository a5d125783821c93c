"""Spec-Bench: 480 questions in 13 categories, the eight of MT-Bench with two turns each.

Source: Xia et al., arXiv 2401.07851, github.com/hemingkx/Spec-Bench (Apache-2.0).
"""

from __future__ import annotations

from pathlib import Path

from multitoken.bench.tasks.question import Question, TaskData, check_unique, locate, read_lines, text_of, turns_of
from multitoken.errors import DataError

NAMES = ("spec_bench_question.jsonl", "question.jsonl")
ADDRESS = "https://raw.githubusercontent.com/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl"


def load(data: Path | None) -> TaskData:
    path = locate(data, NAMES, "spec-bench", ADDRESS)
    lines, digest = read_lines(path)
    questions = []
    for where, found in lines:
        if "question_id" not in found:
            raise DataError(f"{where}: no question_id; give Spec-Bench's question.jsonl ({ADDRESS})")
        questions.append(Question(str(found["question_id"]), text_of(found, "category", where), turns_of(found, where)))
    check_unique(questions, path)
    return TaskData("spec-bench", questions, scored=False, source=str(path), sha256=digest)
