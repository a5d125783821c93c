"""Heads as a source of candidates for fused and auto."""

from __future__ import annotations

import pytest
import torch
from heads_support import KINDS, knowing, random_heads, write
from lossless import CYCLE, assert_lossless, cycle_row, cycling_backbone

from multitoken.errors import ModelError
from multitoken.methods import create
from multitoken.methods.fused.method import mean
from multitoken.methods.heads import checkpoint
from multitoken.methods.heads.checkpoint import chosen_heads, ready
from multitoken.methods.heads.source import HeadSource
from multitoken.methods.heads.tree import trees
from support import VOCAB, tiny_backbone


@pytest.mark.parametrize("kind", KINDS)
def test_distributions_are_those_that_trees_are_made_of(kind):
    backbone = tiny_backbone()
    trained = ready(random_heads(kind), backbone)
    hidden = torch.randn(backbone.width, generator=torch.Generator().manual_seed(3))
    source = HeadSource(trained, VOCAB)
    view = source.look(hidden)
    first = source.distributions(view, [(7,)])[0]
    assert sum(first.values()) == pytest.approx(1, abs=1e-4) and all(token % 5 for token in first)
    tree = trees(trained, hidden[None], [7], [2], 40)[0]
    top = [node for node, parent in enumerate(tree.parents) if parent == -1]
    paths = [(7, tree.tokens[node]) for node in top]
    second = source.distributions(view, paths)
    assert source.depth == (2 if kind == "competing" else 3)
    for node, parent in enumerate(tree.parents):
        if parent == -1:
            expected = first[tree.tokens[node]]
        else:
            expected = first[tree.tokens[parent]] * second[top.index(parent)][tree.tokens[node]]
        assert tree.scores[node] == pytest.approx(torch.tensor(expected).log().item(), abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["fused", "auto"])
def test_output_stays_plain_decodings(tmp_path, monkeypatch, kind, method):
    monkeypatch.setenv("MULTITOKEN_CACHE", str(tmp_path / "cache"))
    path = write(tmp_path / "heads", random_heads(kind), tiny_backbone())
    for together in (True, False):
        assert_lossless(create(method, heads=path), "llama", together)


def test_heads_foretell_what_the_text_has_not_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("MULTITOKEN_CACHE", str(tmp_path / "cache"))
    backbone = cycling_backbone()
    path = write(tmp_path / "heads", knowing(backbone), backbone)
    options = {"probes": 0, "rescore": 0, "block_size": 8}
    without = cycle_row(create("fused", **options), CYCLE[:2], tokens=9)
    beside = cycle_row(create("fused", heads=path, **options), CYCLE[:2], tokens=9)
    assert max(without.spans[:5]) == 1 and beside.spans[1] == 4


def test_heads_of_another_model_are_refused(tmp_path):
    path = write(tmp_path / "heads", random_heads(), tiny_backbone())
    with pytest.raises(ModelError, match="not for this model"):
        create("fused", heads=path, rescore=0).bind(tiny_backbone("qwen2"))


@pytest.mark.parametrize("method", ["fused", "auto"])
def test_shipped_heads_are_used_where_there_are_any(tmp_path, monkeypatch, method):
    monkeypatch.setenv("MULTITOKEN_CACHE", str(tmp_path / "cache"))
    backbone = tiny_backbone()
    monkeypatch.setattr(checkpoint, "SHIPPED", tmp_path / "shipped")
    assert chosen_heads("shipped", backbone) is None
    write(tmp_path / "shipped" / backbone.fingerprint, random_heads(), backbone)
    assert chosen_heads("none", backbone) is None
    assert chosen_heads("shipped", backbone) is not None
    assert_lossless(create(method, heads="shipped"), "llama", True)


def test_a_mean_counts_what_is_missing_as_nothing():
    assert mean({1: 0.5, 2: 0.25}, {2: 0.75, 3: 0.1}) == {1: 0.25, 2: 0.5, 3: 0.05}
