"""Reading questions and checking answers."""

from __future__ import annotations

import json

import pytest

from multitoken.bench.tasks import is_correct, load_task
from multitoken.bench.tasks.code import correct, passes
from multitoken.bench.tasks.code_problems import PROBLEMS
from multitoken.bench.tasks.gsm8k import correct as right_number
from multitoken.errors import DataError, OptionError


def write(path, *objects):
    path.write_text("".join(json.dumps(found) + "\n" for found in objects), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def _no_data(monkeypatch):
    monkeypatch.delenv("MULTITOKEN_DATA", raising=False)


def spec(number, category, *turns):
    return {"question_id": number, "category": category, "turns": list(turns)}


def test_spec_bench_turns_and_limit(tmp_path, monkeypatch):
    write(tmp_path / "question.jsonl", spec(1, "a", "x", "y"), spec(2, "a", "z"), spec(3, "b", "w"))
    monkeypatch.setenv("MULTITOKEN_DATA", str(tmp_path))
    found = load_task("spec-bench", None, per_category=1)
    assert [(q.id, q.category, q.turns) for q in found.questions] == [("1", "a", ("x", "y")), ("3", "b", ("w",))]
    assert not found.scored and len(found.sha256) == 64


@pytest.mark.parametrize("task", ["spec-bench", "gsm8k"])
def test_a_missing_file_says_where_to_get_it(task, tmp_path):
    for given in (None, tmp_path, tmp_path / "absent.jsonl"):
        with pytest.raises(DataError, match=r"download https://.*--data"):
            load_task(task, given)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1: not JSON"),
        ("[]", "must be an object"),
        ('{"category": "a", "turns": ["x"]}', "no question_id"),
        ('{"question_id": 1, "category": "a", "turns": []}', "'turns' must be a list"),
        ('{"question_id": 1, "turns": ["x"]}', "'category' must be a text"),
        ("", "holds no questions"),
    ],
)
def test_malformed_spec_bench(tmp_path, line, message):
    path = tmp_path / "q.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(DataError, match=message):
        load_task("spec-bench", path)


def test_an_id_used_twice_is_refused(tmp_path):
    with pytest.raises(DataError, match="'1' is used twice"):
        load_task("spec-bench", write(tmp_path / "q.jsonl", spec(1, "a", "x"), spec(1, "b", "y")))


def test_gsm8k(tmp_path):
    path = write(tmp_path / "gsm8k_test.jsonl", {"question": "How many?", "answer": "It is\n#### 1,200"})
    found = load_task("gsm8k", path)
    (question,) = found.questions
    assert found.scored and question.answer == "1200"
    assert "How many?" in question.turns[0] and "####" in question.turns[0]
    assert is_correct("gsm8k", question, "so 3 * 400 = 1200.\n#### $1,200.00")
    assert not is_correct("gsm8k", question, "#### 1201")
    with pytest.raises(DataError, match="must end with ####"):
        load_task("gsm8k", write(path, {"question": "How many?", "answer": "12"}))


@pytest.mark.parametrize(
    ("text", "answer", "right"),
    [
        ("#### 18", "18", True),
        ("#### 7\n#### 18 dollars", "18", True),
        ("She makes 3 + 15 = 18 dollars.", "18", True),
        ("18 and then 19", "18", False),
        ("#### none, so 18", "18", True),
        ("no number", "18", False),
        ("#### -4", "-4", True),
        ("#### 0.50", "0.5", True),
        ("", "1", False),
    ],
)
def test_numbers_in_answers(text, answer, right):
    assert right_number(text, answer) is right


def test_jsonl(tmp_path):
    path = write(tmp_path / "q.jsonl", {"prompt": "hi"}, {"id": "b", "category": "c", "turns": ["x", "y"]})
    found = load_task("jsonl", path).questions
    assert [(q.id, q.category, q.turns) for q in found] == [("0", "all", ("hi",)), ("b", "c", ("x", "y"))]
    with pytest.raises(OptionError, match="--data FILE"):
        load_task("jsonl", None)
    for line, message in (({"promt": "hi"}, "unknown key 'promt'"), ({}, "either 'prompt' or 'turns'")):
        with pytest.raises(DataError, match=message):
            load_task("jsonl", write(path, line))


def test_code_runs_only_when_asked():
    assert not load_task("code", None).scored
    found = load_task("code", None, run_code=True)
    assert found.scored and len(found.questions) == len(PROBLEMS) >= 20


def test_code_answers():
    tests = "assert double(2) == 4"
    assert correct("Sure:\n```python\ndef double(x):\n    return 2 * x\n```\nDone.", tests)
    assert correct("def double(x):\n    return 2 * x", tests)
    assert not correct("```python\ndef double(x):\n    return x\n```", tests)
    assert not correct("I cannot.", tests)
    assert not passes("import sys; sys.exit(0)", tests), "leaving early is not passing"
    assert not passes("while True: pass", tests, seconds=0.5)
