"""Speculative decoding with a draft model: its cache follows the target's, and its output is plain decoding's."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from lossless import CYCLE, assert_lossless, cycle_row, cycling_backbone, outputs, requests, tau

from multitoken.engine.engine import Engine
from multitoken.engine.row import Request
from multitoken.engine.sampling import Sampling
from multitoken.errors import OptionError
from multitoken.methods import create
from multitoken.methods.draft import DraftModel, DraftModelOptions, common_length
from multitoken.models.backbone import Backbone
from scripted import run
from support import tiny_backbone, tiny_model


def nearly(family: str) -> Backbone:
    """A model that mostly agrees with the tiny one: the same with noise in its head."""
    module: Any = copy.deepcopy(tiny_model(family))
    torch.manual_seed(1)
    head = module.get_output_embeddings().weight
    head.data += 0.15 * head.std() * torch.randn_like(head)
    return Backbone(module)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3_text", "gpt2"])
def test_equals_plain(family):
    assert_lossless(DraftModel(backbone=nearly(family)), family)


@pytest.mark.parametrize("options", [{"schedule": "heuristic"}, {"confidence": 0.3, "num_tokens": 3}])
def test_equals_plain_alone(options):
    assert_lossless(DraftModel(DraftModelOptions(**options), nearly("llama")), "llama", together=False)


def test_the_target_itself_drafts_without_a_miss():
    """Also sampled: the draft draws with the row's own random numbers, so it draws the same tokens."""
    method = DraftModel(backbone=tiny_backbone("llama"))
    for row in outputs(tiny_backbone("llama"), requests(method), together=True):
        assert row.accepted == row.drafted and row.spans == [6, 6, 6]


def test_a_partial_agreement_accepts_some():
    method = DraftModel(backbone=nearly("llama"))
    rows = outputs(tiny_backbone("llama"), requests(method), together=True)
    accepted, drafted = (sum(sum(getattr(row, name)) for row in rows) for name in ("accepted", "drafted"))
    assert 0.2 * drafted < accepted < drafted


def test_draft_cache_holds_exactly_the_rows_text():
    method = DraftModel(backbone=nearly("llama"))
    engine = Engine(tiny_backbone("llama"))
    rows = [engine.add(request) for request in requests(method)]
    for _ in range(7):
        engine.step()
    assert sorted(row.state.slot for row in rows if row.state.slot is not None) == list(
        range(len(method.cache.lengths))
    )
    for row in engine.rows:
        if row.state.slot is not None:
            assert method.cache.lengths[row.state.slot] == len(row.state.fed)
            assert row.state.fed[: row.state.settled] == row.tokens[: row.state.settled]
    run(engine)


def test_leaving_rows_give_their_cache_back():
    method = DraftModel(backbone=tiny_backbone("llama", 1))
    engine = Engine(tiny_backbone("llama"))
    rows = [engine.add(replace(request, max_new_tokens=40)) for request in requests(method)]
    for _ in range(8):
        engine.step()
    assert len(method.cache.lengths) == 4
    engine.remove(rows[1])
    assert rows[1].state.slot is None and len(method.cache.lengths) == 3
    engine.finish(rows[0], "cancelled")
    run(engine)
    assert method.cache.lengths == []
    assert [row.output for row in rows[2:]] == [
        row.output
        for row in outputs(
            tiny_backbone("llama"),
            [replace(r, max_new_tokens=40, method=create("plain")) for r in requests(method)[2:]],
            True,
        )
    ]


def test_processors_see_true_histories_only():
    """The user's processor may count its calls: the draft model leaves it alone."""
    seen = []

    def processor(ids, scores):
        seen.append(ids.shape[1])
        return scores

    method = DraftModel(backbone=tiny_backbone("llama"))
    request = Request((5, 6, 7), method, Sampling(processors=(processor,)), max_new_tokens=12)
    outputs(tiny_backbone("llama"), [request], together=True)
    assert seen == list(range(3, 15))


def test_heuristic_schedule_grows_and_shrinks():
    method = DraftModel(
        DraftModelOptions.model_validate(dict(num_tokens=2, schedule="heuristic", max_tokens=6)), cycling_backbone()
    )
    row = cycle_row(method, CYCLE, tokens=34)
    assert row.spans[:4] == [3, 5, 7, 7]
    misses = DraftModel(
        DraftModelOptions.model_validate(dict(num_tokens=3, schedule="heuristic")), tiny_backbone("llama", 1)
    )
    row = cycle_row(misses, CYCLE, tokens=12)
    assert row.blocks[:4] == [3, 2, 2, 2]


def test_confidence_ends_a_chain():
    method = DraftModel(DraftModelOptions.model_validate(dict(confidence=0.99)), tiny_backbone("llama"))
    row = outputs(tiny_backbone("llama"), [Request((3, 4, 5), method, max_new_tokens=20)], True)[0]
    assert max(row.blocks) < 6 and tau(row) > 1.5


def test_a_chain_ends_where_the_draft_models_positions_end():
    short: Any = copy.deepcopy(tiny_model("gpt2"))
    short.config.n_positions = 16  # this family's max_position_embeddings
    short.transformer.wpe.weight = torch.nn.Parameter(short.transformer.wpe.weight[:16].clone(), requires_grad=False)
    method = DraftModel(backbone=Backbone(short))
    requested = [Request(tuple(range(3, 3 + n)), method, max_new_tokens=24) for n in (4, 12, 20)]
    rows = outputs(tiny_backbone("gpt2"), requested, together=True)
    assert [row.finish_reason for row in rows] == ["length"] * 3 and sum(rows[2].drafted) == 0 < sum(rows[0].drafted)


def test_common_length():
    assert common_length([1, 2, 3], [1, 2, 4], 0) == 2
    assert common_length([1, 2], [1, 2, 4], 1) == 2
    assert common_length([], [1], 0) == 0


def test_another_vocabulary_is_refused():
    module: Any = copy.deepcopy(tiny_model("llama"))
    module.resize_token_embeddings(300)
    method = DraftModel(backbone=Backbone(module))
    with pytest.raises(OptionError, match="300 entries and the target's 262"):
        Engine(tiny_backbone("llama")).add(Request((3, 4), method))


def test_a_draft_model_is_needed():
    with pytest.raises(OptionError, match="draft_model"):
        create("draft")
    with pytest.raises(OptionError, match="num_tokens"):
        create("draft", draft_model="x", num_tokens=0)
