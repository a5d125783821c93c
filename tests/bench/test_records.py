"""The journal: whole lines, same settings, nothing lost or repeated."""

from __future__ import annotations

import pytest

from multitoken.bench.records import Journal, QuestionRecord, Trace, TurnRecord
from multitoken.errors import DataError

SETTINGS = {"task": "jsonl", "temperature": 0.0, "methods": ["plain"]}
TRACE = Trace(tokens=[1, 2], spans=[1, 1], prefill_seconds=0.1, decode_seconds=0.1, seconds=0.2, finish_reason="stop")


def record(name):
    return QuestionRecord(id=name, category="a", turns=[TurnRecord(prompt_tokens=3, traces={"plain": TRACE})])


def filled(path, names):
    with Journal(path, SETTINGS) as journal:
        for name in names:
            journal.append([record(name)])
    return path.read_bytes()


@pytest.mark.parametrize("cut", [0, 1, 5, 60])
def test_a_torn_line_is_dropped_and_asked_again(tmp_path, cut):
    path = tmp_path / "r.jsonl"
    whole = filled(path, "abc")
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]) + lines[3][:cut])
    with Journal(path, SETTINGS) as journal:
        assert [found.id for found in journal.records] == ["a", "b"]
        journal.append([record("c")])
    assert path.read_bytes() == whole


def test_a_torn_header_starts_anew(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_bytes(b'{"settings": {"ta')
    assert filled(path, "a").count(b"\n") == 2


def test_other_settings_are_refused_by_name(tmp_path):
    path = tmp_path / "r.jsonl"
    whole = filled(path, "a")
    with pytest.raises(DataError, match=r"temperature was 0.0 and is 0.7; seed was None and is 1; give the same"):
        Journal(path, {**SETTINGS, "temperature": 0.7, "seed": 1})
    assert path.read_bytes() == whole


@pytest.mark.parametrize(("text", "message"), [("hello\n", "line 1: not a journal"), (None, "line 2: not a record")])
def test_a_foreign_file_is_refused(tmp_path, text, message):
    path = tmp_path / "r.jsonl"
    if text is None:
        filled(path, "")
        text = path.read_text() + '{"id": 1}\n'
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        Journal(path, SETTINGS)


def test_a_full_disk_keeps_what_is_there(tmp_path, monkeypatch):
    path = tmp_path / "r.jsonl"
    with Journal(path, SETTINGS) as journal:
        journal.append([record("a")])
        before = path.read_bytes()

        def full(_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(DataError, match="1 questions are kept"):
            journal.append([record("b")])
    assert path.read_bytes() == before
