"""``data synthesize`` from the command line's side: prompts of a file, and what it refuses."""

import hashlib
import json

import pytest

from multitoken.cli import data
from multitoken.cli.data import SynthesizeCommand, read_prompts, run_synthesize
from multitoken.errors import DataError, OptionError


def test_prompts_by_key(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"question": "How many?", "answer": "3"}\n\n{"question": "Why?"}\n')
    prompts, provenance = read_prompts(path, "question")
    assert prompts == ["How many?", "Why?"]
    assert provenance["prompts_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(DataError, match="line 3.*'answer'"):
        read_prompts(path, "answer")


def test_test_questions_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "copy-under-another-name.jsonl"
    path.write_text(json.dumps({"prompt": "a test question"}) + "\n")
    monkeypatch.setitem(data.TEST_SETS, hashlib.sha256(path.read_bytes()).hexdigest(), "the test questions")
    with pytest.raises(DataError, match="must stay unseen"):
        read_prompts(path, "prompt")


def command(**options) -> SynthesizeCommand:
    return SynthesizeCommand.model_validate(options)


def test_options_are_checked_before_the_model_is_loaded(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "Hello"}\n')
    out = tmp_path / "c.jsonl"
    with pytest.raises(OptionError, match="count"):
        run_synthesize(command(model="none", count=2, out=out, prompts=path))
    with pytest.raises(OptionError, match="field"):
        run_synthesize(command(model="none", count=2, out=out, field="question"))
