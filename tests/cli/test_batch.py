"""Batches that can be resumed."""

from __future__ import annotations

import errno
import json
import os

import pytest

from multitoken.cli.batch import ResumableLines, run_batch
from multitoken.cli.prompts import Item
from multitoken.errors import DataError

ITEMS = [Item(id=f"q{i}", prompt=f"question {i}", line=i + 1) for i in range(5)]
MARKS = [f"mark {i}" for i in range(5)]


def answer(items):
    return [{"text": item.prompt.upper()} for item in items]


def records(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_order_is_kept_over_groups(tmp_path):
    out = tmp_path / "out.jsonl"
    assert run_batch(ITEMS, MARKS, out, answer, group=2, progress=False) == 0
    assert records(out) == [{"id": f"q{i}", "text": f"QUESTION {i}", "asked": f"mark {i}"} for i in range(5)]


@pytest.mark.parametrize("tail", [b"", b'{"id": "q2", "te', b'{"id": "q2", "text": "x"}', b"\x00\x00\x00\n"])
def test_resume_after_being_killed_at_any_place(tmp_path, tail):
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    run_batch(ITEMS, MARKS, whole, answer, group=1, progress=False)
    out.write_bytes(b"".join(whole.read_bytes().splitlines(keepends=True)[:2]) + tail)
    asked = []
    assert run_batch(ITEMS, MARKS, out, lambda part: asked.extend(part) or answer(part), group=2, progress=False) == 2
    assert [item.id for item in asked] == ["q2", "q3", "q4"], "what is there is not asked again"
    assert out.read_bytes() == whole.read_bytes()


def test_a_finished_batch_is_left_alone(tmp_path):
    out = tmp_path / "out.jsonl"
    run_batch(ITEMS, MARKS, out, answer, group=5, progress=False)
    before = out.read_bytes()
    assert run_batch(ITEMS, MARKS, out, lambda part: pytest.fail("asked again"), group=5, progress=False) == 5
    assert out.read_bytes() == before


def test_an_error_keeps_what_was_answered(tmp_path):
    def failing(part):
        if part[0].id == "q3":
            raise DataError("q3 is too long")
        return answer(part)

    with pytest.raises(DataError, match="too long"):
        run_batch(ITEMS, MARKS, tmp_path / "out.jsonl", failing, group=1, progress=False)
    assert len(records(tmp_path / "out.jsonl")) == 3


@pytest.mark.parametrize(
    "line", ['{"id": "other", "text": "x", "asked": "mark 0"}\n', '{"id": "q0", "text": "x", "asked": "otherwise"}\n']
)
def test_answers_to_other_prompts_are_not_continued(tmp_path, line):
    out = tmp_path / "out.jsonl"
    out.write_text(line)
    with pytest.raises(DataError, match="other prompts.*other options"):
        run_batch(ITEMS, MARKS, out, answer, group=1, progress=False)
    assert out.read_text() == line


def test_a_file_of_something_else_is_not_touched(tmp_path):
    out = tmp_path / "notes.txt"
    out.write_text("dear diary\nsecond line\n")
    with pytest.raises(DataError, match="line 1"):
        run_batch(ITEMS, MARKS, out, answer, group=1, progress=False)
    assert out.read_text() == "dear diary\nsecond line\n"


def test_a_full_disk_leaves_whole_lines_only(tmp_path, monkeypatch):
    out = tmp_path / "out.jsonl"
    write, calls = os.write, []

    def full(file, data):
        calls.append(data)
        if len(calls) == 3:
            return write(file, data[:7])
        if len(calls) == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DataError, match=r"no space left.*2 lines are kept"):
        run_batch(ITEMS, MARKS, out, answer, group=5, progress=False)
    assert [r["id"] for r in records(out)] == ["q0", "q1"]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="cannot write"):
        ResumableLines(tmp_path / "none" / "out.jsonl")
