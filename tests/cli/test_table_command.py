"""The next-token table made by command."""

from __future__ import annotations

import json

import pytest
import torch
from cli_support import one_line_error

from multitoken.cli import table as command
from multitoken.methods.probe.table import NextTokenTable, make_table, next_token_table, table_path
from multitoken.models.loading import load_model


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MULTITOKEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_made_where_methods_look_for_it(run, tiny, cache):
    outcome = run("table", "--model", tiny, "--kept", "7", "--no-progress", "--json")
    assert outcome.code == 0, outcome.err
    backbone = load_model(str(tiny)).backbone
    made = json.loads(outcome.out)
    assert made["path"] == str(table_path(backbone)) and made["tokens"] == backbone.vocab_size and made["kept"] == 7
    found, expected = next_token_table(backbone), make_table(backbone, kept=7, progress=False)
    assert torch.equal(found.tokens, expected.tokens) and torch.equal(found.logprobs, expected.logprobs)


def test_compact_file(run, tiny, cache, tmp_path):
    whole, compact = tmp_path / "whole.safetensors", tmp_path / "compact.safetensors"
    argv = ["table", "--model", tiny, "--kept", "16", "--no-progress", "--out"]
    assert "16 continuations" in run(*argv, whole).out
    assert run(*argv, compact, "--compact").code == 0
    assert not cache.exists(), "with --out the cache is left alone"
    a, b = (NextTokenTable.load(path, torch.device("cpu")) for path in (whole, compact))
    assert torch.equal(a.tokens, b.tokens) and a.vocab_size == b.vocab_size
    assert (a.logprobs - b.logprobs).abs().max() <= 1 / 16
    entries = a.tokens.numel()
    assert 3 * entries < compact.stat().st_size < 3 * entries + 1000 < whole.stat().st_size


def test_what_cannot_be_made(run, tiny, cache, tmp_path, monkeypatch):
    out = tmp_path / "table.safetensors"
    one_line_error(run("table", "--model", tiny, "--kept", "0"), 2, "kept", "0")
    one_line_error(run("table", "--model", tiny, "--out", tmp_path / "none" / "t"), 1, "none", "make it first")
    one_line_error(run("table", "--model", tiny, "--out", tmp_path), 1, "is a folder")
    monkeypatch.setattr(command, "COMPACT_VOCABULARY", 100)
    one_line_error(run("table", "--model", tiny, "--out", out, "--compact"), 2, "compact", "100", "leave it out")
    monkeypatch.setattr(command, "shipped_path", lambda backbone: tiny / "config.json")
    one_line_error(run("table", "--model", tiny), 2, "model", "--out")
    assert not out.exists() and not cache.exists()
