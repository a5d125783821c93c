"""Whole runs over a tiny model: alternation, turns, resuming, what the results say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import bench_support
import pytest
import torch
from bench_support import IDS, bench, load_tiny, records, write_questions

import support
from multitoken.bench import runner
from multitoken.bench.command import with_reference
from multitoken.bench.competitors import EngineCompetitor, Entry, Task, shares
from multitoken.bench.runner import Runner, groups
from multitoken.bench.schema import read_results
from multitoken.bench.tasks import Question, load_task
from multitoken.engine.engine import Engine
from multitoken.errors import DataError, OptionError
from multitoken.methods import Plain, create

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_questions(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """A run with peers: its folder and results."""
    out = tmp_path_factory.mktemp("run")
    return out, bench(data, out, peers=["transformers"], cost=True, spec_bench_compatible=True)


def outputs(found):
    """What does not depend on the clock: question, turn, method -> tokens and spans."""
    return {
        (record["id"], turn, label): (trace["tokens"], trace["spans"])
        for record in found
        for turn, held in enumerate(record["turns"])
        for label, trace in held["traces"].items()
    }


def test_every_method_answers_every_turn(finished):
    out, results = finished
    found = records(out)
    assert [record["id"] for record in found] == IDS
    labels = ["plain", "pld", "transformers", "transformers-pld"]
    assert [method.label for method in results.methods] == labels
    assert all(list(turn["traces"]) == labels for record in found for turn in record["turns"])
    assert [len(record["turns"]) for record in found] == [2, 2, 1, 1, 1]


def test_results_hold_what_the_traces_say(finished):
    out, results = finished
    assert read_results(out) == results
    plain, pld, transformers, lookup = (method.overall for method in results.methods)
    assert (plain.questions, plain.answers) == (5, 7)
    assert plain.tau == plain.speedup == plain.end_to_end_speedup == 1
    assert transformers.peer_speedup == 1
    traces = [turn["traces"]["pld"] for record in records(out) for turn in record["turns"]]
    decoded = sum(sum(trace["spans"][1:]) for trace in traces)
    assert pld.tau == pytest.approx(decoded / sum(len(trace["spans"]) - 1 for trace in traces))
    assert sum(span * count for span, count in pld.spans.items()) == decoded
    rate = decoded / sum(trace["decode_seconds"] for trace in traces)
    assert pld.decode_rate == pytest.approx(rate) and plain.decode_rate is not None
    assert pld.speedup == pytest.approx(rate / plain.decode_rate)
    assert [s.exact for s in (plain, pld, transformers, lookup)] == [7] * 4, "float32: all are plain decoding's"
    assert {category: s.questions for category, s in results.methods[1].categories.items()} == {"writing": 2, "rag": 3}
    assert lookup.block_size is None and not lookup.depths and pld.depths[0].drafted > 0
    assert plain.spec_bench_speedup is not None and results.cost[0].size == 1
    assert len(results.provenance.data_sha256) == 64 and results.provenance.model_hash


def test_the_second_turn_sees_the_first_answer(data, monkeypatch):
    asked = []
    encode = runner.encode

    def spy(model, messages):
        asked.append([dict(message) for message in messages])
        return encode(model, messages)

    monkeypatch.setattr(runner, "encode", spy)
    model = load_tiny()
    engine = Engine(model.backbone)
    competitors = [EngineCompetitor(engine, Entry(name, create(name))) for name in ("plain", "pld")]
    (record,) = Runner(model, load_task("spec-bench", data), competitors, 8).ask(
        [Question("81", "writing", ("aba aba", "again"))]
    )
    first = record.turns[0].traces["plain"].text
    assert [message["content"] for message in asked[-1]] == ["aba aba", first, "again"]
    assert record.turns[1].prompt_tokens == len(encode(model, asked[-1]))


def test_killed_and_resumed_equals_uninterrupted(data, finished, tmp_path):
    """SIGKILL in the middle; afterwards every question is there once, with the answers of a whole run."""
    folders = os.pathsep.join([str(Path(bench_support.__file__).parent), str(Path(support.__file__).parent)])
    source = str(Path(runner.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": folders + os.pathsep + source, "OMP_NUM_THREADS": "1"}
    out = tmp_path / "killed"
    journal = out / "records.jsonl"
    process = subprocess.Popen([sys.executable, bench_support.__file__, str(data), str(out)], env=environment)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if journal.is_file() and journal.read_bytes().count(b"\n") >= 3:  # the settings and two questions
            break
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    held = journal.read_bytes()
    assert 3 <= held.count(b"\n") < 1 + len(IDS)
    done = subprocess.run([sys.executable, bench_support.__file__, str(data), str(out)], env=environment, check=False)
    assert done.returncode == 0
    assert journal.read_bytes().startswith(held[: held.rindex(b"\n")]), "what was there has stayed"
    assert [record["id"] for record in records(out)] == IDS
    whole = {key: value for key, value in outputs(records(finished[0])).items() if "transformers" not in key[2]}
    assert outputs(records(out)) == whole


def test_a_finished_run_is_not_asked_again_and_other_settings_are_refused(data, tmp_path, monkeypatch):
    bench(data, tmp_path, limit_per_category=1)
    before = (tmp_path / "records.jsonl").read_bytes()
    with pytest.raises(DataError, match=r"max_new_tokens was 16 and is 9; give the same, or another --out"):
        bench(data, tmp_path, limit_per_category=1, max_new_tokens=9)
    with pytest.raises(DataError, match="limit_per_category was 1 and is None"):
        bench(data, tmp_path)
    monkeypatch.setattr(EngineCompetitor, "answer", lambda *_: pytest.fail("asked again"))
    bench(data, tmp_path, limit_per_category=1)
    assert (tmp_path / "records.jsonl").read_bytes() == before


def test_batches_and_samples_are_lossless_too(data, tmp_path):
    alone = bench(data, tmp_path / "alone", temperature=0.8, seed=3)
    together = bench(data, tmp_path / "together", temperature=0.8, seed=3, batch=2)
    assert [method.overall.exact for method in together.methods] == [7, 7]
    drawn = [
        {key: tokens for key, (tokens, _) in outputs(records(tmp_path / n)).items()} for n in ("alone", "together")
    ]
    assert drawn[0] == drawn[1], "what is drawn depends on the question and the seed, not on the batch"
    assert alone.methods[0].overall.tokens == together.methods[0].overall.tokens


class Wrong(Plain):
    """Commits a token of its own behind each of the model's."""

    name = "wrong"
    lossless = False

    def extend(self, rows, step):
        return [[9]] * len(rows)


def test_divergences_are_explained(data, tmp_path):
    results = bench(data, tmp_path, methods=(Wrong(),), limit_per_category=1)
    wrong = results.method("wrong")
    assert [method.label for method in results.methods] == ["plain", "wrong"], "plain decoding always runs"
    assert wrong is not None and wrong.overall.exact == 0 and len(wrong.divergences) == 3
    first = wrong.divergences[0]
    assert (first.question, first.turn, first.index, first.other) == ("81", 1, 1, 9)
    assert first.reference != 9 and first.gap is not None and first.gap > 0
    assert wrong.overall.agreement is not None and 0 < wrong.overall.agreement < 1
    assert "Quality against acceleration" in (tmp_path / "report.html").read_text("utf-8")


def test_groups_stay_within_a_category():
    made = [Question(str(i), "ab"[i % 2], ("x",)) for i in range(5)]
    assert [[q.id for q in group] for group in groups(made, 2)] == [["0", "2"], ["4"], ["1", "3"]]


def test_shares_add_up_to_the_wall_clock():
    engine = Engine(load_tiny().backbone)
    tasks = [Task((7, 8, 9), 3, 0.0, 0, frozenset()), Task((7,), 5, 0.0, 0, frozenset())]
    competitor = EngineCompetitor(engine, Entry("plain", create("plain")))
    rows, _ = competitor._run(tasks)
    assert [sum(part) for part in zip(*shares(rows, 4.0, 6.0, 16.0), strict=True)] == pytest.approx([4.0, 6.0, 16.0])
    assert shares(rows, 4.0, 6.0, 16.0)[0] == pytest.approx((3.0, 2.0, 6.0))


def test_who_begins_changes(data):
    model, order = load_tiny(), []

    class Spy(EngineCompetitor):
        def answer(self, tasks):
            order.append(self.label)
            return super().answer(tasks)

    engine = Engine(model.backbone)
    competitors = [Spy(engine, Entry(name, create(name))) for name in ("plain", "pld")]
    made = Runner(model, load_task("spec-bench", data), competitors, 2)
    for number in range(2):
        made.ask([Question("1", "a", ("x",))], number)
    assert order == ["plain", "pld", "pld", "plain"]


def test_bad_requests_are_refused_before_anything_runs(data, tmp_path):
    with pytest.raises(OptionError, match="use --batch 1"):
        bench(data, tmp_path, peers=["transformers"], batch=2)
    with pytest.raises(OptionError, match="add --peers transformers"):
        bench(data, tmp_path, peers_dtype=["bfloat16"])
    with pytest.raises(OptionError, match="only --task code"):
        bench(data, tmp_path, run_code=True)
    with pytest.raises(DataError, match=r"question 81 may need \d+ tokens .* --max-new-tokens"):
        bench(data, tmp_path, max_new_tokens=120)
    with pytest.raises(OptionError, match="once"):
        with_reference([Entry("pld", create("pld"))] * 2)
    assert not (tmp_path / "results.json").exists()


def test_peers_run_in_other_precisions_and_leave_the_model_alone(data, tmp_path):
    before = load_tiny().backbone.module.config._attn_implementation
    results = bench(data, tmp_path, peers=["transformers"], peers_dtype=["float32", "bfloat16"], limit_per_category=1)
    labels = [method.label for method in results.methods if method.peer]
    assert labels == ["transformers", "transformers-pld", "transformers[bfloat16]", "transformers-pld[bfloat16]"]
    assert load_tiny().backbone.module.config._attn_implementation == before
    assert load_tiny().backbone.dtype == torch.float32
