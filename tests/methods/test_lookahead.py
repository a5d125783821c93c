"""Lookahead: the window's geometry and motion, the pool, and that its output is plain decoding's."""

from __future__ import annotations

import pytest
from lossless import CYCLE, assert_lossless, cycle_row, cycled, tau

from multitoken.engine.draft import ROOT, Draft
from multitoken.engine.row import Request, Row
from multitoken.errors import OptionError
from multitoken.methods import create
from multitoken.methods.lookahead import PRESETS, LookaheadOptions, Pool, Window, trie

LEVEL, WIDTH = 4, 5


def counting_window(level: int = LEVEL, width: int = WIDTH) -> Window:
    """A window over the text 0, 1, 2, ... with its root at 0, so that a token is its own position."""
    window = Window.starting([0], level, width, seed=0)
    window.levels = [list(range(1, width + level - 2))]
    return window


def predict(window: Window, root: int) -> list[int]:
    """What a model that counts says behind the newest level."""
    first = root + 1 if len(window.levels) == 1 else root
    return [first + len(window.levels) - 1 + i + 1 for i in range(window.newest)]


def filled_window(level: int = LEVEL, width: int = WIDTH) -> tuple[Window, int]:
    """The window when all its levels are there, and its root."""
    window, root = counting_window(level, width), 0
    while len(window.levels) < level - 1:
        assert window.advance(root, predict(window, root)) == []
        root += 1
    return window, root


@pytest.mark.parametrize(("level", "width"), [(4, 5), (3, 4), (5, 8), (2, 3), (3, 1)])
def test_every_slot_is_at_its_position_from_the_start(level, width):
    """Depth of level l, column w is l + w, and a counting model's tokens are root + depth at each step."""
    window = counting_window(level, width)
    for root in range(2 * level):
        tokens, parents = window.slots(0)
        depths = Draft((), parents, probe_tokens=tokens).shape.depths
        assert tokens == [root + depth for depth in depths]
        window.advance(root, predict(window, root))
    assert window.columns == width and len(window.levels) == level - 1


def test_a_full_window_is_the_papers_figure():
    """W = 5, N = 4: relative positions 1-4 (the root being 0), 1-5, 2-6, each column a branch of level 0's chain."""
    window, root = filled_window()
    assert [[token - root for token in level] for level in window.levels] == [
        [1, 2, 3, 4],
        [1, 2, 3, 4, 5],
        [2, 3, 4, 5, 6],
    ]
    _, parents = window.slots(10)
    assert parents == [ROOT, 10, 11, 12, ROOT, 10, 11, 12, 13, 14, 15, 16, 17, 18]


def test_a_full_window_completes_one_ngram_per_column():
    window, root = filled_window()
    grams = window.advance(root, predict(window, root))
    assert grams == [tuple(range(root + w, root + w + LEVEL)) for w in range(WIDTH)]


def test_bigrams_have_no_entry_for_the_root():
    window, root = filled_window(2, 3)
    assert window.advance(root, predict(window, root)) == [(1, 2), (2, 3)]


@pytest.mark.parametrize("depth", range(9))
def test_narrowed_to_what_the_budget_holds(depth):
    window, _ = filled_window()
    fits = window.narrow(depth)
    assert fits == (depth >= LEVEL - 2)
    if fits:
        tokens, parents = window.slots(0)
        assert window.columns == min(WIDTH, depth - LEVEL + 3)
        assert max(Draft((), parents, probe_tokens=tokens).shape.depths) <= depth


def test_pool_keeps_the_most_recent_of_each_key():
    pool = Pool(2)
    for tail in ((1, 2), (3, 4), (1, 2), (5, 6)):
        pool.add(9, tail)
    pool.add(8, (7, 7))
    assert pool.tails(9) == [(5, 6), (1, 2)] and pool.tails(8) == [(7, 7)] and pool.tails(7) == []
    assert len(pool) == 3


def test_trie_merges_common_prefixes():
    assert trie([(1, 2, 3), (1, 2, 4), (5, 2, 3)]) == ([1, 2, 3, 4, 5, 2, 3], [ROOT, 0, 1, 1, ROOT, 4, 5])


@pytest.mark.parametrize(("block_size", "shape"), PRESETS.items())
def test_presets_fill_their_block_size(block_size, shape):
    level, window, guesses = shape
    assert (level - 1) * (window + guesses) == block_size
    assert LookaheadOptions.model_validate({"block_size": block_size}).shape == shape
    assert LookaheadOptions.model_validate({"block_size": block_size, "window": 3}).shape == (level, 3, guesses)


@pytest.mark.parametrize("block_size", PRESETS)
def test_blocks_stay_within_their_size(block_size):
    assert max(cycle_row(create("lookahead", block_size=block_size), CYCLE * 2).blocks) <= block_size


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3_text", "gpt2"])
def test_equals_plain(family):
    assert_lossless(create("lookahead"), family)


@pytest.mark.parametrize("shape", [(2, 3, 2), (3, 1, 1), (5, 8, 7)])
def test_equals_plain_alone(shape):
    level, window, guesses = shape
    method = create("lookahead", level=level, window=window, guesses=guesses, pool_from_prompt=False)
    assert_lossless(method, "llama", together=False)


def test_the_window_alone_finds_ngrams():
    """The cycling model predicts rightly from any token, so once the pool has filled each step accepts N - 1."""
    row = cycle_row(create("lookahead", pool_from_prompt=False), CYCLE)
    assert row.spans[0] == 1 and max(row.spans) == LEVEL and tau(row) > 3


def test_the_prompts_ngrams_are_pooled():
    method = create("lookahead")
    row = Row.of(Request(tuple(CYCLE + CYCLE[:2]), method))
    row.state = method.start(row)
    draft = method.draft([row])[0]
    assert list(draft.tokens) == cycled(2, LEVEL - 1)
    bare = create("lookahead", pool_from_prompt=False)
    row.state = bare.start(row)
    assert bare.draft([row])[0].nodes == 0


def test_each_ngram_of_the_text_is_pooled_once(monkeypatch):
    """Work per step does not depend on the length of the text."""
    added = []
    original = Pool.add
    monkeypatch.setattr(Pool, "add", lambda pool, first, tail: (added.append(first), original(pool, first, tail)))
    row = cycle_row(create("lookahead"), CYCLE * 8, tokens=30)
    text = len(row.tokens) - LEVEL + 1
    windows = (row.forwards + 1) * WIDTH
    assert len(added) <= text + windows


@pytest.mark.parametrize(
    ("options", "named"),
    [({"block_size": 20}, "block_size 20 has no preset"), ({"level": 1}, "level 1"), ({"window": -1}, "window")],
)
def test_bad_options(options, named):
    with pytest.raises(OptionError, match=named):
        create("lookahead", **options)
