"""A benchmark over a tiny model and a made-up Spec-Bench file. Run as a script it is the process that tests kill."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from multitoken.bench.command import run
from multitoken.bench.competitors import Entry
from multitoken.bench.options import BenchOptions
from multitoken.bench.schema import Results
from multitoken.methods import NamedMethod, create
from multitoken.models.loading import LoadedModel, wrap
from support import byte_tokenizer, tiny_model

QUESTIONS = [
    {"question_id": 81, "category": "writing", "turns": ["aba aba", "again"]},
    {"question_id": 82, "category": "writing", "turns": ["xyz xyz xyz", "more"]},
    {"question_id": 101, "category": "rag", "turns": ["one two one two one"]},
    {"question_id": 102, "category": "rag", "turns": ["hello"]},
    {"question_id": 103, "category": "rag", "turns": ["abc abc abc"]},
]
IDS = [str(question["question_id"]) for question in QUESTIONS]


def load_tiny() -> LoadedModel:
    return wrap(tiny_model("gpt2"), byte_tokenizer(), name="tiny")


def write_questions(folder: Path) -> Path:
    path = folder / "question.jsonl"
    path.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS), encoding="utf-8")
    return path


def bench(data: Path, out: Path, methods: tuple[NamedMethod, ...] | None = None, **options: Any) -> Results:
    """A run of plain and prompt lookup with short answers."""
    chosen = methods or (create("plain"), create("pld"))
    entries = [Entry(method.name, method, method.options.model_dump(mode="json")) for method in chosen]
    asked = BenchOptions(**{"max_new_tokens": 16, "cost": False, **options, "data": data, "out": out})
    return run(asked, load_tiny, entries, command="multitoken bench", progress=False)


def records(out: Path) -> list[dict[str, Any]]:
    """The journal's records, without its first line."""
    return [json.loads(line) for line in (out / "records.jsonl").read_text("utf-8").splitlines()[1:]]


if __name__ == "__main__":
    bench(Path(sys.argv[1]), Path(sys.argv[2]))
