"""``compare`` and ``demo`` on a tiny model."""

from __future__ import annotations

import json

import pytest
from cli_support import one_line_error

from multitoken.bench.compare import run_alternating
from multitoken.engine.draft import Draft
from multitoken.methods.registry import _METHODS, NamedMethod

METHODS = "pld,probe:rescore=0:block_size=8"


@pytest.fixture
def lossy(monkeypatch):
    """A method that commits a token of its own after each of the model's."""

    class Careless(NamedMethod):
        name = "careless"
        lossless = False

        def draft(self, rows):
            return [Draft()] * len(rows)

        def extend(self, rows, step):
            return [[70] for _ in rows]

    monkeypatch.setitem(_METHODS, "careless", Careless)


def test_json(run, tiny):
    argv = ["compare", "Hello", "-m", tiny, "--methods", METHODS, "--max-new-tokens", 16, "--ignore-eos"]
    outcome = run(*argv, "--repeat", 3, "--json", "--no-progress")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert [entry["label"] for entry in found["methods"]] == ["plain", "pld", "probe:rescore=0:block_size=8"]
    plain, *others = found["methods"]
    assert (plain["tau"], plain["speedup"], plain["identical"]) == (1.0, 1.0, True)
    for entry in others:
        assert entry["identical"] is True and entry["divergence"] is None
        assert entry["token_ids"] == plain["token_ids"]
        assert entry["speedup"] == pytest.approx(entry["tokens_per_second"] / plain["tokens_per_second"])


def test_table(run, tiny):
    outcome = run("compare", "Hello", "-m", tiny, "--methods", "plain,pld", "--max-new-tokens", 8, "--no-progress")
    assert outcome.code == 0, outcome.err
    assert "reference" in outcome.out and "identical" in outcome.out
    assert outcome.out.count("plain") == 1, "plain is not run twice when it is named"


def test_a_divergence_is_explained(run, tiny, lossy):
    argv = ["compare", "Hello", "-m", tiny, "--methods", "careless", "--max-new-tokens", 8, "--ignore-eos"]
    entry = json.loads(run(*argv, "--json", "--no-progress").out)["methods"][1]
    found = entry["divergence"]
    assert entry["identical"] is False and found["near_tie"] is False
    assert found["other"] == 70
    assert isinstance(found["other_text"], str) and isinstance(found["reference_text"], str)
    assert found["gap"] == pytest.approx(found["reference_logit"] - found["other_logit"])
    text = " ".join(run(*argv, "--no-progress").out.split())
    assert f"differs at token {found['index']}" in text
    assert f"({found['other']})" in text and "the method is lossy" in text
    sampled = json.loads(run(*argv, "--temperature", 1, "--json", "--no-progress").out)["methods"][1]
    assert sampled["divergence"]["near_tie"] is None


def test_runs_take_turns():
    order: list[str] = []
    runs = [(name, lambda name=name: order.append(name)) for name in "ab"]
    run_alternating(runs, 3)  # type: ignore[arg-type]
    assert "".join(order) == "ababab"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["Hi", "--methods", "pld,prob"], ["prob", "plain"]),
        (["Hi", "--methods", ","], ["methods", "at least one"]),
        (["Hi", "--methods", "pld,pld"], ["methods", "once"]),
        (["Hi", "--methods", "pld:num_tokens=0"], ["num_tokens", "0"]),
        (["Hi", "--methods", "pld", "--repeat", "0"], ["repeat", "0"]),
        (["--methods", "pld"], ["prompt"]),
    ],
)
def test_bad_input(run, tiny, argv, words):
    one_line_error(run("compare", *argv, "-m", tiny), 2, *words)


@pytest.mark.parametrize("columns", ["80", "140"])
def test_demo(run, tiny, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    argv = ["demo", "-m", tiny, "--method", "probe:rescore=0:block_size=8", "--max-new-tokens", 6, "--no-progress"]
    outcome = run(*argv)
    assert outcome.code == 0, outcome.err
    assert "plain" in outcome.out and "identical" in outcome.out and "multitoken chat" in outcome.out


def test_demo_json_and_bad_method(run, tiny):
    argv = ["demo", "-m", tiny, "--max-new-tokens", 4, "--no-progress"]
    found = json.loads(run(*argv, "--method", "pld", "--json").out)
    assert [entry["method"] for entry in found["methods"]] == ["plain", "pld"]
    one_line_error(run(*argv, "--method", "plain"), 2, "method", "probe")
