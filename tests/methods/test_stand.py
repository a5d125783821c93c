"""STAND: the store, the trees it grows, and that its output is plain decoding's."""

from __future__ import annotations

import pytest
import torch
from lossless import CYCLE, assert_lossless, cycle_row, tau

from multitoken.engine.draft import ROOT, Draft
from multitoken.engine.method import Step
from multitoken.engine.row import Request, Row
from multitoken.engine.sampling import Sampling
from multitoken.errors import OptionError
from multitoken.methods import create
from multitoken.methods.stand import NgramDistributions, rank_tree, tempered


def started(method, prompt, temperature=0.0, seed=0) -> Row:
    row = Row.of(Request(tuple(prompt), method, Sampling(temperature=temperature, seed=seed)))
    row.state = method.start(row)
    return row


def test_store_averages_repeats_and_keeps_the_best():
    store = NgramDistributions(1, 2, kept=2)
    store.add([8, 5], [(1, 0.8), (2, 0.2)])
    store.add([9, 5], [(3, 0.9), (1, 0.1)])
    assert store.after([9, 5]) == [(3, 0.9), (1, 0.1)]
    assert dict(store.after([7, 5])) == pytest.approx({1: 0.45, 3: 0.45})
    store.add([9, 5], [(1, 1.0)])
    assert dict(store.after([7, 5])) == pytest.approx({1: 1.9 / 3, 3: 0.3})
    assert store.after([7, 7]) == []


def test_observe_files_each_distribution_under_its_context():
    """Root 5 and one accepted node 6: the logits of both are filed, those of the rejected node are not."""
    method = create("stand", kept=1, max_ngram=2)
    row = started(method, [4, 5])
    row.tokens += [6, 7]
    logits = torch.zeros(3, 20)
    logits[0, 6] = logits[2, 7] = logits[1, 13] = 50.0  # root, accepted node (slot 1), rejected node (slot 0)
    draft = Draft([13, 6], [ROOT, ROOT])
    method.observe([row], Step([draft], [[1]], [[6, 7]], torch.zeros(1, 4), [logits], [[]], [torch.zeros(0, 20)]))
    store = row.state.store
    assert store.after([4, 5]) == [(6, pytest.approx(1.0))] and store.after([5, 6]) == [(7, pytest.approx(1.0))]
    assert store.after([13]) == [] and store.after([6]) == store.after([5, 6]) and store.after([7]) == []


def known(method, temperature=0.0, seed=0) -> Row:
    """A row whose store knows what follows 1 and 2."""
    row = started(method, [1], temperature, seed)
    row.state.store.add([1], [(2, 0.6), (3, 0.3), (4, 0.1)])
    row.state.store.add([2], [(5, 0.7), (1, 0.2)])
    return row


def test_best_first_tree():
    """Paths by probability: 2 (0.6), 2-5 (0.42), 3 (0.3), 2-1 (0.12), 4 (0.1)."""
    method = create("stand", block_size=6)
    draft = method.draft([known(method)])[0]
    assert (draft.tokens, draft.parents) == ([2, 5, 3, 1, 4], [ROOT, 0, ROOT, 0, ROOT])
    narrow = create("stand", block_size=30, width=1, depth=2)
    draft = narrow.draft([known(narrow)])[0]
    assert (draft.tokens, draft.parents) == ([2, 5], [ROOT, 0])


def test_the_longest_context_wins():
    method = create("stand", block_size=2)
    row = started(method, [9, 1])
    row.state.store.add([1], [(2, 1.0)])
    row.state.store.add([9, 1], [(3, 1.0)])
    assert method.draft([row])[0].tokens == [3]


def test_gumbel_candidates_follow_the_probabilities():
    """Above temperature 0 the first child is a sample: its frequencies are the (tempered) stored probabilities."""
    method = create("stand", block_size=2, width=1)
    row = known(method, temperature=1.0)
    first = [method.draft([row])[0].tokens[0] for _ in range(3000)]
    assert [first.count(token) / 3000 for token in (2, 3, 4)] == pytest.approx([0.6, 0.3, 0.1], abs=0.04)


def test_gumbel_noise_is_the_rows_own():
    method = create("stand", block_size=3, width=1)

    def drafts(seed):
        row = known(method, 1.0, seed)
        return [tuple(method.draft([row])[0].tokens) for _ in range(8)]

    assert drafts(1) == drafts(1) != drafts(2)


def test_tempered_sharpens_within_the_mass():
    sharp = dict(tempered([(1, 0.6), (2, 0.2)], 0.5))
    assert sharp == pytest.approx({1: 0.72, 2: 0.08})


def test_rank_tree_takes_the_most_likely_places():
    assert rank_tree((0.6, 0.3), 5, 9) == ((ROOT, 0), (0, 0), (ROOT, 1), (1, 0), (0, 1))
    assert rank_tree((0.6,), 5, 2) == ((ROOT, 0), (0, 0))


def test_shaped_tree_skips_what_the_store_lacks():
    method = create("stand", tree="ranks", rank_acceptance=(0.6, 0.3), block_size=6)
    draft = method.draft([known(method)])[0]
    # Places 0, 00, 1, 000, 01 of the shape; nothing is known after 5.
    assert (draft.tokens, draft.parents) == ([2, 5, 3, 1], [ROOT, 0, ROOT, 0])


def test_prompt_counts_only_when_asked():
    plain, reading = create("stand"), create("stand", from_prompt=True)
    assert plain.draft([started(plain, [1, 2, 3, 1])])[0].nodes == 0
    assert reading.draft([started(reading, [1, 2, 3, 1])])[0].tokens[:3] == [2, 3, 1]


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3_text", "gpt2"])
def test_equals_plain(family):
    assert_lossless(create("stand", block_size=10), family)


def test_equals_plain_alone():
    assert_lossless(create("stand", tree="ranks", from_prompt=True), "llama", together=False)


def test_repetitive_text_is_drafted_once_seen():
    row = cycle_row(create("stand", block_size=10, width=1), CYCLE)
    assert row.spans[1 : len(CYCLE) - 1] == [1] * (len(CYCLE) - 2)  # the first round is news
    assert max(row.spans) == 10 and tau(row) > 4


def test_the_store_grows_by_a_constant_per_token():
    method = create("stand", block_size=5)
    row = cycle_row(method, CYCLE, tokens=60)
    assert len(row.state.store) == 4 * len(CYCLE)  # nothing but the cycle's own n-grams
    assert method.draft([started(method, CYCLE)])[0].nodes == 0, "a new row knows nothing of the last"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"block_size": 1}, "block_size"),
        ({"min_ngram": 5}, "must not exceed max_ngram"),
        ({"rank_acceptance": (0.9, 0.2)}, "sum to at most 1"),
        ({"candidates": "best"}, "candidates"),
    ],
)
def test_bad_options(options, named):
    with pytest.raises(OptionError, match=named):
        create("stand", **options)
