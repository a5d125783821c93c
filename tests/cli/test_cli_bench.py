"""``multitoken bench`` and ``multitoken bench compare``."""

from __future__ import annotations

import json

import pytest
from cli_support import one_line_error

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "q.jsonl"
    lines = [{"prompt": "aba aba aba", "category": "a"}, {"turns": ["one", "two"], "category": "b"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def bench(run, tiny, questions):
    def call(*argv):
        asked = ("--task", "jsonl", "--data", questions, "-m", tiny, "--max-new-tokens", 6, "--no-cost")
        return run("bench", *asked, *argv)

    return call


def test_bench_writes_results_and_shows_a_table(bench, run, tmp_path):
    out = tmp_path / "one"
    done = bench("--methods", "pld,probe:block_size=8:init=mean", "--out", out)
    assert done.code == 0, done.err
    for piece in ("speed-up", "probe:block_size=8:init=mean", "3/3", "report.html"):
        assert piece in done.out.replace("\n", " ") or piece in "".join(done.out.split())
    assert "2 of 2 questions" in done.err
    results = json.loads((out / "results.json").read_text("utf-8"))
    assert [method["label"] for method in results["methods"]] == ["plain", "pld", "probe:block_size=8:init=mean"]
    assert results["methods"][2]["options"]["block_size"] == 8
    assert (out / "report.html").read_text("utf-8").startswith("<!doctype html>")

    side = run("bench", "compare", out, out / "results.json", "--html", tmp_path / "side.html")
    assert side.code == 0 and "tau" in side.out and "+0.0%" in side.out
    assert (tmp_path / "side.html").is_file()
    as_json = run("bench", "compare", out, out, "--json")
    assert json.loads(as_json.out)["circumstances"] == []


def test_json_and_yaml(bench, tmp_path):
    config = tmp_path / "bench.yaml"
    config.write_text("methods: [plain]\nseed: 4\nprogress: false\n")
    done = bench("--config", config, "--json", "--out", tmp_path / "out")
    assert done.code == 0 and done.err == ""
    assert json.loads(done.out)["settings"]["seed"] == 4


def test_errors_are_one_line_and_name_the_option(bench, run, tmp_path):
    one_line_error(bench("--methods", "nonsense"), 2, "method='nonsense'", "use one of")
    one_line_error(bench("--methods", "pld,pld"), 2, "methods='pld'", "once")
    one_line_error(bench("--batch", 0), 2, "batch")
    one_line_error(run("bench", "--data", tmp_path), 1, "holds no spec_bench_question.jsonl", "download https://")
    one_line_error(run("bench", "compare", tmp_path, tmp_path), 1, "results.json", "cannot be read")
