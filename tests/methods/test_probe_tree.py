"""Probing: trees, candidates, the shared block and the next-token table."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
from safetensors.torch import save_file

from multitoken.engine.draft import ROOT
from multitoken.errors import ModelError
from multitoken.methods.probe.candidates import SHARPNESS, UNLISTED, Level, continuations
from multitoken.methods.probe.table import NextTokenTable, make_table, next_token_table, table_path
from multitoken.methods.probe.tree import (
    Candidates,
    best_tree,
    dynamic_tree,
    endings,
    likeliest_anchors,
    share,
    static_tree,
    top,
)
from multitoken.models.block import causal_block
from support import VOCAB, tiny_backbone

# -- trees ------------------------------------------------------------------------------------------------------------

# After any token: level -> (token, probability)
BY_LEVEL = {1: [(1, 0.6), (2, 0.3), (3, 0.1)], 2: [(4, 0.5), (5, 0.4)], 3: [(6, 0.9)]}


def by_level(level, parents, width):
    pairs = BY_LEVEL[level][:width]
    tokens = torch.tensor([[token for token, _ in pairs]] * len(parents))
    return tokens, torch.tensor([[p for _, p in pairs]] * len(parents), dtype=torch.float64).log()


def paths(tree: Candidates) -> dict[tuple[int, ...], float]:
    """Token paths and their probabilities."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        assert ROOT <= parent < len(found)
        found.append((*(found[parent] if parent != ROOT else ()), token))
    return dict(zip(found, [round(math.exp(score), 6) for score in tree.scores], strict=True))


def test_static_tree_grows_under_the_best_of_each_depth():
    assert paths(static_tree(0, (3, 1, 1), by_level)) == {
        (1,): 0.6, (2,): 0.3, (3,): 0.1, (1, 4): 0.3, (1, 4, 6): 0.27,
    }  # fmt: skip


def test_dynamic_tree_keeps_the_likeliest():
    """The paper's Algorithm 1: depth 2 under 1 only, then the best four by cumulative probability."""
    tree = dynamic_tree(0, 3, 5, by_level)
    assert paths(tree) == {(1,): 0.6, (2,): 0.3, (1, 4): 0.3, (1, 4, 6): 0.27, (1, 5): 0.24}


def test_best_tree_is_the_best_of_all_paths():
    """Against every path there is: 1 and 2 both have children, 2-4 (0.15) comes before 3 (0.1)."""
    everything = {}
    for depth in (1, 2, 3):
        for path in itertools.product(*(BY_LEVEL[level] for level in range(1, depth + 1))):
            everything[tuple(token for token, _ in path)] = round(math.prod(p for _, p in path), 6)
    for nodes in (4, 9):  # numbers at which no tie decides
        expected = sorted(everything.values(), reverse=True)[:nodes]
        found = paths(best_tree(0, 3, nodes, by_level))
        assert list(found.values()) == expected and all(everything[path] == p for path, p in found.items())


def random_tree(rng: random.Random, nodes: int) -> Candidates:
    """Children of a node share its probability, some of it left over."""
    tokens, parents, scores, left = [], [], [], {ROOT: 1.0}
    for node in range(nodes):
        parent = rng.choice([ROOT, *range(node)])
        probability = left[parent] * rng.uniform(0.2, 0.8)
        left[parent] -= probability
        left[node] = probability
        tokens.append(node)
        parents.append(parent)
        scores.append(math.log(probability))
    return top(Candidates(tokens, parents, scores), nodes)


@pytest.mark.parametrize("seed", range(12))
def test_share_against_brute_force(seed):
    rng = random.Random(seed)
    tree, probes = random_tree(rng, 6), rng.choice([1, 2])
    slots, gain = rng.randint(probes, 9), rng.uniform(0.05, 1.5)

    def value(nodes, owners):
        ending = endings(tree.first(nodes))
        return sum(math.exp(score) for score in tree.scores[:nodes]) + gain * sum(ending[o + 1] for o in owners)

    best = max(
        value(nodes, owners)
        for nodes in range(min(len(tree), slots) + 1)
        for count in range(min((slots - nodes) // probes, nodes + 1) + 1)
        for owners in itertools.combinations(range(ROOT, nodes), count)
    )
    nodes, owners = share(tree, slots, probes, gain)
    assert nodes + len(owners) * probes <= slots and owners == sorted(set(owners)) and all(o < nodes for o in owners)
    assert value(nodes, owners) == pytest.approx(best)


def test_endings_and_anchors():
    """Paths a 0.6, a-b 0.35, c 0.3: the walk ends at the root with 0.1, at a with 0.25."""
    tree = Candidates([1, 2, 3], [ROOT, 0, ROOT], [math.log(p) for p in (0.6, 0.35, 0.3)])
    assert endings(tree) == pytest.approx([0.1, 0.25, 0.35, 0.3]) and endings(tree).sum() == pytest.approx(1)
    assert likeliest_anchors(tree, 2) == [1, 2]
    assert share(tree, 5, 0, 1.0) == (3, [])


# -- candidates and the table -----------------------------------------------------------------------------------------


@pytest.fixture
def table() -> NextTokenTable:
    """Of a vocabulary of 6: entries for the tokens 0 to 2, two each."""
    tokens = torch.tensor([[1, 2], [3, 4], [2, 5]], dtype=torch.int32)
    return NextTokenTable(tokens, torch.tensor([[0.5, 0.25], [0.75, 0.125], [0.5, 0.5]]).log().half(), 6)


def test_level_is_the_top_of_a_distribution():
    logits = torch.tensor([0.0, 3.0, 1.0, 2.0])
    level = Level.of(logits, pool=2)
    assert level.tokens.tolist() == [1, 3]
    torch.testing.assert_close(level.logprobs, logits.log_softmax(0)[[1, 3]])


def test_probe_alone_proposes_without_a_table():
    level = Level.of(torch.tensor([0.0, 3.0, 1.0, 2.0, -1.0, -2.0]))
    tokens, logprobs = continuations(level, [5, 1], None, 1.0, 3, prune=False)
    assert tokens.tolist() == [[1, 3, 2]] * 2
    torch.testing.assert_close(logprobs, level.logprobs[:3].repeat(2, 1))


def test_pruning_replaces_an_immediate_repetition():
    level = Level.of(torch.tensor([0.0, 3.0, 1.0, 2.0, -1.0, -2.0]))
    tokens, _ = continuations(level, [1, 3, 5], None, 1.0, 2, prune=True)
    assert tokens.tolist() == [[3, 2], [1, 2], [1, 3]]


def test_rescoring_by_hand(table):
    """After 1 the table lists 3 (0.75) and 4 (0.125); the others count ``UNLISTED`` nats less than 4."""
    level = Level.of(torch.tensor([0.1, 0.2, 0.3, 0.15, 0.2, 0.05]).log(), pool=4)
    assert sorted(level.tokens.tolist()) == [1, 2, 3, 4]
    tokens, logprobs = continuations(level, [1], table, 0.5, 4, prune=False)
    listed = {3: math.log(0.75), 4: math.log(0.125), 1: math.log(0.125) - UNLISTED, 2: math.log(0.125) - UNLISTED}
    own = {1: 0.2, 2: 0.3, 3: 0.15, 4: 0.2}
    scores = {token: math.exp(SHARPNESS * (math.log(own[token]) + 0.5 * listed[token])) for token in own}
    expected = sorted(((score / sum(scores.values()), token) for token, score in scores.items()), reverse=True)
    assert tokens[0].tolist() == [token for _, token in expected]
    assert logprobs[0].exp().tolist() == pytest.approx([score for score, _ in expected], rel=2e-3)


def test_tokens_without_an_entry_say_nothing(table):
    """Token 4 is not covered: it leaves a probe's order as it is, and alone it proposes nothing."""
    level = Level.of(torch.tensor([0.1, 0.2, 0.3, 0.15, 0.2, 0.05]).log())
    tokens, logprobs = continuations(level, [4], table, 1.0, 6, prune=False)
    assert tokens[0].tolist() == level.tokens.tolist() and logprobs.exp().sum() == pytest.approx(1)
    tokens, logprobs = continuations(None, [0, 4], table, 1.0, 2, prune=False)
    assert tokens[0].tolist() == [1, 2] and logprobs[0].exp().tolist() == pytest.approx([0.5, 0.25], rel=1e-3)
    assert torch.isinf(logprobs[1]).all()
    assert len(best_tree(4, 2, 5, lambda _, parents, width: continuations(None, parents, table, 1, width, True))) == 0


@torch.inference_mode()
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_table_entries_equal_a_direct_forward(family):
    backbone = tiny_backbone(family)
    made = make_table(backbone, kept=8, progress=False)
    assert made.covered == made.vocab_size == backbone.vocab_size
    for token in (0, 7, VOCAB - 1):
        cache = backbone.new_cache()
        cache.add_row()
        block = causal_block(torch.tensor([[backbone.bos, token]]), torch.zeros(1, dtype=torch.int64))
        direct = backbone.project(backbone.forward(block, cache)[0, -1:]).log_softmax(-1)[0]
        tokens, logprobs = made.entries([token])
        torch.testing.assert_close(logprobs[0], direct.topk(8).values, rtol=2e-3, atol=2e-3)
        torch.testing.assert_close(direct[tokens[0]], direct.topk(8).values, rtol=1e-3, atol=1e-3)


def test_table_is_kept_reloaded_and_refused_when_damaged(backbone, tmp_path, monkeypatch):
    monkeypatch.setenv("MULTITOKEN_CACHE", str(tmp_path))
    made = next_token_table(backbone)
    kept = next_token_table(backbone)
    assert torch.equal(made.tokens, kept.tokens) and torch.equal(made.logprobs, kept.logprobs)
    assert kept.vocab_size == made.vocab_size
    path = table_path(backbone)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ModelError, match="delete it and it will be made again"):
        next_token_table(backbone)


def test_table_stops_when_its_time_is_over(backbone):
    partial = make_table(backbone, seconds=0.0, kept=4, progress=False)
    assert partial.covered == 256 < partial.vocab_size
    _, logprobs = partial.entries([3, 260])
    assert torch.isfinite(logprobs[0]).all() and torch.isinf(logprobs[1]).all()


def test_compact_round_trip(backbone, tmp_path):
    made = make_table(backbone, kept=16, progress=False)
    path = tmp_path / "compact.safetensors"
    save_file(made.compact(5), str(path), metadata={"vocab_size": str(made.vocab_size)})
    loaded = NextTokenTable.load(path, torch.device("cpu"))
    assert loaded.vocab_size == made.vocab_size and torch.equal(loaded.tokens, made.tokens[:, :5])
    near = made.logprobs[:, :5].float().clamp(min=-255 / 16)
    assert (loaded.logprobs.float() - near).abs().max() <= 1 / 32 + 1e-2
    with pytest.raises(ValueError, match="16-bit"):
        NextTokenTable(made.tokens, made.logprobs, 70000).compact(5)
