"""``train heads`` on a tiny model."""

from __future__ import annotations

import json

from cli_support import one_line_error


def test_from_data_to_decoding(run, tiny, tmp_path):
    corpus, out = tmp_path / "corpus.jsonl", tmp_path / "heads"
    made = run("data", "synthesize", "-m", tiny, "--count", 40, "--out", corpus, "--answer-tokens", 16, "--no-progress")
    assert made.code == 0, made
    flags = ("-m", tiny, "--data", corpus, "--out", out, "--steps", 6, "--heads", 2, "--rank", 16, "--vocabulary", 100)
    small = ("--span-steps", 5, "--held-out", 0.2, "--window", 4, "--batch", 4)
    done = run("train", "heads", *flags, *small, "--json")
    assert done.code == 0, done
    facts = json.loads(done.out)
    assert facts["figures"]["heads"]["steps"] == 6 and set(facts["figures"]) == {"heads", "span", "gate"}
    assert "train heads: step 6 of 6: loss" in done.err
    again = run("train", "heads", *flags, *small, "--no-progress")
    assert again.code == 0 and "6 steps" in again.out and "span: accuracy" in again.out and again.err == ""
    answer = run("generate", "hello", "-m", tiny, "--method", f"heads:checkpoint={out}", "--max-new-tokens", 8)
    plain = run("generate", "hello", "-m", tiny, "--method", "plain", "--max-new-tokens", 8)
    assert answer.code == 0 and answer.out == plain.out and "lossy" not in answer.err
    cost = ("inspect", "heads", "-m", tiny, "--checkpoint", out, "--rows", "1,3", "--context", 8, "--repeats", 1)
    costs = json.loads(run(*cost, "--json").out)["costs"]
    assert [entry["rows"] for entry in costs] == [1, 3]
    assert all(entry[part] > 0 for entry in costs for part in ("forward", "span", "gate", "chain", "tree"))
    assert "span predictor" in run(*cost).out
    fixed = f"heads:checkpoint={out}:acceptance=fixed"
    unseen = run("generate", "hello", "-m", tiny, "--method", fixed, "--max-new-tokens", 8, "--show-spans")
    assert unseen.code == 0 and "heads (lossy)" in unseen.err
    assert "(lossy)" in run("compare", "hello", "-m", tiny, "--methods", fixed, "--max-new-tokens", 8).out


def test_wrong_use_is_one_line(run, tiny, tmp_path):
    missing = run("train", "heads", "-m", tiny, "--data", tmp_path / "none.jsonl", "--out", tmp_path / "out")
    one_line_error(missing, 1, "multitoken data synthesize")
    flags = ("-m", tiny, "--data", "x", "--out", tmp_path / "out")
    one_line_error(run("train", "heads", *flags, "--kind", "parallel", "--rank", 8), 2, "goes with kind=sequential")
    one_line_error(run("train", "heads", *flags, "--distill", 2), 2, "distill")
