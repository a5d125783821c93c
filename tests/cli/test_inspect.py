"""Measurements by command."""

from __future__ import annotations

import json

import pytest
from cli_support import one_line_error


def test_cost(run, tiny, tmp_path):
    pytest.importorskip("matplotlib")
    plot = tmp_path / "cost.svg"
    argv = ["inspect", "cost", "--model", tiny, "--sizes", "1,4", "--context", "8", "--repeats", "2"]
    outcome = run(*argv, "--json", "--plot", plot)
    assert outcome.code == 0, outcome.err
    points = json.loads(outcome.out)["points"]
    assert [(p["dtype"], p["size"]) for p in points] == [
        ("float32", 1),
        ("float32", 4),
        ("bfloat16", 1),
        ("bfloat16", 4),
    ]
    assert "</svg>" in plot.read_text()
    text = run(*argv, "--dtypes", "float32").out
    assert "float32 packed, ms" in text and "bfloat16" not in text


def test_cost_of_runtimes(run, tiny):
    argv = ["inspect", "cost", "--model", tiny, "--sizes", "1,4", "--context", "8", "--repeats", "2"]
    outcome = run(*argv, "--dtypes", "float32", "--runtimes", "eager,packed,int8", "--json")
    points = json.loads(outcome.out)["points"]
    assert [(p["runtime"], p["size"]) for p in points] == [
        (runtime, size) for runtime in ("eager", "packed", "int8") for size in (1, 4)
    ]
    twice = run(*argv, "--runtimes", "eager,eager")
    assert twice.code != 0 and "runtimes" in twice.err


def test_alignment(run, tiny, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "One"}\n{"messages": [{"role": "user", "content": "Two"}]}\n')
    argv = ["inspect", "alignment", "--model", tiny, "--jsonl", prompts, "--tokens", "12", "--positions", "5"]
    outcome = run(*argv, "--json", "--top-k", "100")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert found["hit_count"] + found["miss_count"] == 10
    assert len(found["hits"] or found["misses"]) == 4
    assert "input" in run(*argv, "--init", "mean").out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["cost", "--sizes", "0"], ["sizes", "1 or more"]),
        (["cost", "--dtypes", "int8"], ["dtypes", "int8", "bfloat16"]),
        (["cost", "--dtypes", "float32,float32"], ["dtypes", "once"]),
        (["cost", "--context", "1000"], ["context", "256"]),
        (["cost", "--plot", "figure.gif"], ["plot", ".svg"]),
        (["alignment", "--init", "zero"], ["init", "zero", "vocab"]),
        (["alignment", "--top-k", "0"], ["top_k", "0"]),
    ],
)
def test_impossible_options(run, tiny, argv, words):
    one_line_error(run("inspect", *argv, "--model", tiny), 2, *words)
