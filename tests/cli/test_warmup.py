"""A model prepared ahead of time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_support import one_line_error

from multitoken.models.loading import load_model
from multitoken.models.runtime import compiled


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MULTITOKEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_later_starts_find_what_was_made(run, tiny, cache, monkeypatch):
    outcome = run("warmup", "--model", tiny, "--json", "--no-progress")
    assert outcome.code == 0, outcome.err
    made = json.loads(outcome.out)
    assert made["runtime"] == "compiled" and made["dtype"] == "float32" and made["seconds"]["load"] > 0
    assert [entry["what"] for entry in made["cached"]] == ["compiled code", "cost of a forward"]
    assert all(entry["new"] for entry in made["cached"])
    for entry in made["cached"]:
        path = Path(entry["path"])
        assert path.is_relative_to(cache) and path.stat().st_size == entry["bytes"] > 0
    monkeypatch.setattr(compiled, "_trace", None)  # nothing is compiled from here on
    again = run("warmup", "--model", tiny, "--no-progress")
    assert again.code == 0 and "(float32, compiled) is ready" in again.out
    assert again.out.count("was there") == 2 and "made now" not in again.out
    assert load_model(str(tiny), progress=False).backbone.runtime == "compiled"


def test_without_code(run, tiny, cache):
    outcome = run("warmup", "--model", tiny, "--runtime", "packed", "--json", "--no-progress")
    made = json.loads(outcome.out)
    assert made["runtime"] == "packed" and [entry["what"] for entry in made["cached"]] == ["cost of a forward"]


def test_what_cannot_be_prepared(run, tiny, cache):
    one_line_error(run("warmup", "--model", tiny, "--runtime", "eager"), 2, "runtime", "use compiled")
    one_line_error(run("warmup", "--model", tiny, "--attn", "sdpa"), 2, "runtime", "'sdpa'", "use packed")
    assert not list(cache.rglob("*.pt2"))
