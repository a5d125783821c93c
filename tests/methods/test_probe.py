"""Probing: vectors, candidates, trees, the shared block, the table, and what the options refuse."""

from __future__ import annotations

import math

import pytest
import torch
from lossless import assert_lossless

from multitoken.engine.draft import ROOT
from multitoken.engine.layout import layout
from multitoken.engine.row import Request, Row
from multitoken.errors import ModelError, OptionError
from multitoken.methods import create
from multitoken.methods.probe import Probe, ProbeOptions
from multitoken.methods.probe.calibration import calibrate, calibrated_vector, calibration_path
from multitoken.methods.probe.survey import probe_hidden
from multitoken.methods.probe.vectors import EmbeddingStatistics, follow, initial_vectors
from scripted import generate
from support import VOCAB

PROMPT = [9, 40, 41, 7, 200, 13]


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULTITOKEN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def embeddings(backbone):
    return backbone.embed(torch.arange(VOCAB))


def bound(backbone, **options) -> Probe:
    method = Probe(ProbeOptions(**options))
    method.bind(backbone)
    return method


def started(method, prompt=PROMPT) -> Row:
    row = Row.of(Request(tuple(prompt), method))
    row.state = method.start(row)
    return row


# -- vectors ----------------------------------------------------------------------------------------------------------


def test_inits_are_as_defined(backbone, embeddings):
    def vectors(init, probes=3, prompt=PROMPT, **options):
        return initial_vectors(init, probes, prompt, backbone, EmbeddingStatistics.of(backbone, chunk=100), **options)

    mean, deviation = embeddings.mean(0), embeddings.std(0, correction=0)
    of_prompt = embeddings[PROMPT]
    torch.testing.assert_close(vectors("vocab"), mean.repeat(3, 1))
    torch.testing.assert_close(vectors("mean"), of_prompt.mean(0).repeat(3, 1))
    torch.testing.assert_close(vectors("last"), of_prompt[-3:])
    torch.testing.assert_close(vectors("last", prompt=[5, 6]), embeddings[[5, 5, 6]])
    torch.testing.assert_close(vectors("offset", offset_scale=10.0), (mean + 10 * deviation).repeat(3, 1))
    with pytest.raises(ValueError, match="unknown init"):
        vectors("median")


def test_sampled_init_has_the_moments_of_the_table(backbone, embeddings):
    statistics = EmbeddingStatistics.of(backbone)
    drawn = initial_vectors("sample", 4000, PROMPT, backbone, statistics, seed=3)
    mean, deviation = embeddings.mean(0), embeddings.std(0, correction=0)
    assert ((drawn.mean(0) - mean).abs() < 5 * deviation / math.sqrt(4000)).all()
    torch.testing.assert_close(drawn.std(0), deviation, rtol=0.1, atol=0)
    again, other = (initial_vectors("sample", 2, PROMPT, backbone, statistics, seed=seed) for seed in (3, 4))
    assert not torch.equal(again, other) and not torch.equal(again[0], again[1])


def test_running_update(backbone, embeddings):
    """m <- m + lambda (e - m), once per token in order; lambda is 0.1 for the paper's inits and 0 for vocab."""
    start = torch.randn(2, backbone.width)
    expected = start.clone()
    for token in (4, 5):
        expected += 0.25 * (embeddings[token] - expected)
    torch.testing.assert_close(follow(start, embeddings[[4, 5]], 0.25), expected)
    for init, mixing in (("mean", 0.1), ("vocab", 0.0)):
        method = bound(backbone, init=init, rescore=0)
        state = method.start(started(method))
        before = state.vectors
        method.learn(state, torch.zeros(0, VOCAB), [8])
        torch.testing.assert_close(state.vectors, before + mixing * (embeddings[8] - before))
        assert state.levels == []


def test_calibration_keeps_the_candidate_with_the_most_hits(backbone):
    statistics = EmbeddingStatistics.of(backbone)
    found = calibrate(backbone, statistics, texts=1, progress=False)
    assert {"mean", "zero", "bos", "eos", "pad"} <= found.hits.keys()
    assert found.hits[found.winner] == max(found.hits.values()) and all(0 <= hit <= 1 for hit in found.hits.values())
    path = calibration_path(backbone)
    kept = calibrated_vector(backbone, statistics)
    torch.testing.assert_close(calibrated_vector(backbone, statistics), kept)
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(ModelError, match="delete it and it will be made again"):
        calibrated_vector(backbone, statistics)
    path.unlink()


# -- blocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("probes", "widths"), [(1, (5,)), (2, (4, 2)), (3, (2, 2, 1))])
def test_block_complexity(backbone, probes, widths):
    """(k + 1) (1 + sum K_i) slots in every decode forward; k probes trail the prompt."""
    size = (probes + 1) * (1 + sum(widths))
    method = create("probe", probes=probes, tree="static", widths=widths, block_size=size, rescore=0)
    row = generate(backbone, [PROMPT], method, max_new_tokens=24)[0]
    assert set(row.blocks[:4]) == {size}
    draft = method.draft([started(method)])[0]
    assert draft.nodes == 0 and list(draft.parents) == list(range(ROOT, probes - 1))


@pytest.mark.parametrize("options", [{}, {"owners": 3}, {"owners": 20}, {"owners": "all"}, {"tree": "dynamic"}])
@pytest.mark.parametrize(("probes", "size"), [(1, 30), (2, 6), (3, 17)])
def test_blocks_stay_within_their_size(backbone, options, probes, size):
    if size == 17 and options.get("owners") == 3:
        size = 11
    row = generate(backbone, [PROMPT], create("probe", probes=probes, block_size=size, **options), max_new_tokens=12)[0]
    assert max(row.blocks) <= size and row.drafted


def test_probes_sit_behind_their_owner_and_see_only_its_path(backbone):
    method = bound(backbone, probes=2, tree="static", widths=(2, 1), block_size=12, rescore=0, prune=False)
    row = started(method)
    row.tokens.append(50)
    row.pending = 1
    logits = torch.zeros(2, VOCAB)
    logits[0, 60], logits[0, 61], logits[1, 62] = 3.0, 2.0, 1.0
    method.learn(row.state, logits, [50])
    draft = method.draft([row])[0]
    assert draft.tokens == [60, 61, 62] and list(draft.parents[:3]) == [ROOT, ROOT, 0]
    plan = layout([row], [draft], 0, torch.device("cpu"))
    visible, positions = plan.block.visible[0], plan.block.positions[0].tolist()
    paths = {0: {0}, 1: {0, 1}, 2: {0, 2}, 3: {0, 1, 3}}  # slots of the block: root 0, nodes 1 to 3
    for owner, path in paths.items():
        chain = [1 + slot for slot in draft.owned(owner - 1)]
        assert len(chain) == 2
        for number, slot in enumerate(chain, start=1):
            assert positions[slot] == positions[owner] + number
            assert set(visible[slot].nonzero().flatten().tolist()) == path | set(chain[:number])
        assert set(visible[owner].nonzero().flatten().tolist()) == path
    assert plan.block.vectors is not None
    torch.testing.assert_close(plan.block.vectors, row.state.vectors.repeat(4, 1))


def test_survey_reads_as_the_decode_loop_does(backbone):
    """A chain under one position of a text equals the same chain behind that prefix alone."""
    vectors = torch.randn(3, 2, backbone.width)
    hidden = probe_hidden(backbone, PROMPT, [1, 4, 4], vectors)
    for chain, owner in enumerate((1, 4, 4)):
        alone = probe_hidden(backbone, PROMPT[: owner + 1], [owner], vectors[chain : chain + 1])
        torch.testing.assert_close(hidden[chain], alone[0], rtol=1e-4, atol=1e-4)


# -- options and whole runs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(tree="static"), "needs widths"),
        (dict(widths=(3,)), "tree=static"),
        (dict(tree="static", widths=(3, 2)), "one per probe"),
        (dict(tree="static", widths=(0,)), "1 or more"),
        (dict(tree="static", widths=(15,)), "block_size must be 32"),
        (dict(tree="static", widths=(29,), owners=1), "block_size must be 31"),
        (dict(tree="static", widths=(5,), depth=1), "leave depth out"),
        (dict(owners=0), "a number from 1"),
        (dict(probes=3, block_size=4), "block_size must be 5"),
        (dict(probes=3, block_size=7, owners="all"), "block_size must be 8"),
        (dict(probes=2, block_size=5, owners=2), "block_size must be 6"),
        (dict(depth=2, rescore=0), "set rescore above 0"),
        (dict(offset_scale=3.0), "init=offset"),
        (dict(probes=0), "greater than or equal to 1"),
        (dict(init="middle"), "calibrated"),
        (dict(bloc_size=9), "unknown option"),
    ],
)
def test_options_are_refused_by_name(options, words):
    with pytest.raises(OptionError, match=words):
        create("probe", **options)


PAPER = dict(rescore=0, init="mean", block_size=12)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {}),
        ("llama", dict(PAPER, probes=2, tree="static", widths=(2, 1))),
        ("gemma3_text", dict(PAPER, tree="dynamic")),
        ("gpt2", dict(probes=2, init="sample", mixing=0.5, owners=3, block_size=20)),
        ("qwen3", dict(init="last", probes=3, rescore=0.5)),
    ],
)
def test_output_is_plain_decodings(family, options):
    assert_lossless(create("probe", **options), family)
