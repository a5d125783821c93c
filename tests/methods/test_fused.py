"""Fused drafting: what the text itself votes, the blend of sources, and the tree."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict

import pytest
from lossless import CYCLE, assert_lossless, cycle_row, tau

from multitoken.engine.draft import ROOT, tree_shape
from multitoken.errors import OptionError
from multitoken.methods import create
from multitoken.methods.fused.history import LONGEST, PRIOR_RATE, PRIOR_TRIES, REPEATS, History, blend
from multitoken.methods.fused.tree import mixed_tree


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULTITOKEN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def text(seed: int, length: int = 120) -> list[int]:
    """Few tokens, so that contexts of every length come again."""
    rng = random.Random(seed)
    phrase = [rng.randrange(5) for _ in range(12)]
    return [*phrase, *(rng.randrange(5) for _ in range(length - 24)), *phrase]


def brute_shares(tokens: list[int], context: list[int]) -> dict[int, float]:
    """Followers of every earlier occurrence of ``context``, the last one counted twice."""
    size = len(context)
    followers = [tokens[i] for i in range(size, len(tokens)) if tokens[i - size : i] == context]
    counts = Counter(followers + followers[-1:])
    return {token: count / counts.total() for token, count in counts.items()}


@pytest.mark.parametrize("seed", range(4))
def test_votes_against_brute_force(seed):
    tokens = text(seed)
    history = History()
    for end in (1, 30, 31, len(tokens)):  # taken in bit by bit
        history.update(tokens[:end])
    votes = history.votes(tokens)
    assert 3 <= len(votes) <= LONGEST
    for size in range(1, LONGEST + 1):
        expected = brute_shares(tokens, tokens[-size:])
        if size <= len(votes):
            assert votes[size - 1][1] == pytest.approx(expected) and sum(expected.values()) == pytest.approx(1)
        else:
            assert expected == {}


def test_trust_is_the_measured_rate_behind_a_prior():
    tokens = text(1)
    hits: defaultdict[tuple[int, int], float] = defaultdict(float)
    tries: Counter[tuple[int, int]] = Counter()
    for position in range(2, len(tokens)):
        seen = tokens[:position]
        for size in range(1, min(LONGEST, position - 1) + 1):
            shares = brute_shares(seen, seen[-size:])
            if shares:
                times = sum(seen[i - size : i] == seen[-size:] for i in range(size, position))
                bucket = (size, min(times, REPEATS))
                tries[bucket] += 1
                hits[bucket] += shares.get(tokens[position], 0.0)
    history = History()
    assert history.trust(2, 1) == pytest.approx(PRIOR_RATE[2])
    history.update(tokens)
    assert len(tries) > 8
    for size, times in tries:
        rate = (hits[size, times] + PRIOR_RATE[size] * PRIOR_TRIES) / (tries[size, times] + PRIOR_TRIES)
        assert history.trust(size, times) == pytest.approx(rate) and 0 < rate < 1
    assert history.trust(1, 50) == history.trust(1, REPEATS)


def test_blend_gives_the_longest_context_the_last_word():
    mixed = blend({1: 0.5, 2: 0.25}, [(0.5, {3: 1.0}), (0.2, {1: 0.5, 4: 0.5})])
    assert mixed == pytest.approx({1: 0.5 * 0.5 * 0.8 + 0.1, 2: 0.25 * 0.5 * 0.8, 3: 0.5 * 0.8, 4: 0.1})
    assert blend({7: 0.3}, []) == {7: 0.3}


def distribution(rng: random.Random) -> dict[int, float]:
    weights = {token: rng.random() for token in rng.sample(range(8), 4)}
    total = sum(weights.values()) * rng.uniform(1, 1.5)
    return {token: weight / total for token, weight in weights.items()}


def base_of(rng: random.Random, levels: int):
    def base(level, parents):
        return [distribution(rng) for _ in parents] if level <= levels else None

    return base


@pytest.mark.parametrize("nodes", [1, 5, 40])
@pytest.mark.parametrize("seed", range(4))
def test_every_prefix_of_the_tree_is_a_tree(seed, nodes):
    rng = random.Random(seed)
    tokens = text(seed)
    history = History()
    history.update(tokens)
    tree = mixed_tree(tokens, history, base_of(rng, 2), 6, nodes)
    assert len(tree) == nodes and tree.scores == sorted(tree.scores, reverse=True) and tree.scores[0] <= 0
    assert all(ROOT <= parent < node for node, parent in enumerate(tree.parents))
    assert len(set(zip(tree.parents, tree.tokens, strict=True))) == nodes  # no candidate twice
    assert tree_shape(tuple(tree.parents)).depths.max() <= 6
    for parent in {ROOT, *tree.parents}:
        children = sum(math.exp(tree.scores[n]) for n in range(nodes) if tree.parents[n] == parent)
        assert children <= math.exp(tree.scores[parent] if parent != ROOT else 0.0) + 1e-9


def test_blended_probabilities_sum_to_one_at_most():
    rng = random.Random(0)
    tokens = text(2)
    history = History()
    history.update(tokens)
    for end in range(1, len(tokens)):
        assert sum(blend(distribution(rng), history.votes(tokens[:end])).values()) <= 1 + 1e-9


def test_tree_without_sources_is_empty():
    assert len(mixed_tree([1, 2, 3], History(), lambda *_: None, 5, 10)) == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [(dict(probes=9), "less than or equal to 8"), (dict(block_size=1), "greater"), (dict(widths=3), "unknown option")],
)
def test_options_are_refused(options, words):
    with pytest.raises(OptionError, match=words):
        create("fused", **options)


def test_text_that_repeats_is_copied():
    row = cycle_row(create("fused", block_size=12), [*CYCLE, CYCLE[0]])
    assert tau(row) > 4 and max(row.blocks) <= 12


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {}),
        ("gemma2", dict(block_size=8, probes=2, init="mean")),
        ("gpt_neox", dict(probes=0)),
        ("mistral", dict(rescore=0, depth=3)),
    ],
)
def test_output_is_plain_decodings(family, options):
    assert_lossless(create("fused", **options), family)
