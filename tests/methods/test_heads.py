"""The heads method: verified equals plain decoding; the lossy ways commit what the heads say, deterministically."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from heads_support import KINDS, always, knowing, random_heads, write
from lossless import CYCLE, SETTINGS, assert_lossless, cycle_row, cycling_backbone, outputs, requests, tau

from multitoken.engine.engine import Engine
from multitoken.engine.row import Request
from multitoken.engine.sampling import Sampling
from multitoken.errors import ModelError, OptionError
from multitoken.methods import create
from multitoken.methods.heads.checkpoint import load_heads, ready, save_heads
from multitoken.methods.heads.modules import GATE_PARAMETERS, Gate
from multitoken.methods.heads.tree import chains, trees
from multitoken.methods.plain import Plain
from scripted import generate, run
from support import FAMILIES, tiny_backbone

LOSSY = ("predicted", "fixed", "confidence", "gate")


@pytest.fixture
def saved(tmp_path):
    """Writes random heads for a family's tiny model."""

    def make(family: str = "llama", **kind) -> Path:
        return write(tmp_path / "heads", random_heads(**kind), tiny_backbone(family))

    return make


# -- verified ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_verified_equals_plain_in_every_family(saved, family):
    assert_lossless(create("heads", checkpoint=saved(family), span_from="full"), family)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", ["chain", "tree"])
@pytest.mark.parametrize("span_from", ["predictor", "full"])
@pytest.mark.parametrize("together", [True, False])
def test_verified_equals_plain_with_every_kind(saved, kind, shape, span_from, together):
    options = {"shape": shape, "span_from": span_from, "block_size": 7}
    assert_lossless(create("heads", checkpoint=saved(kind=kind, shared=together), **options), "llama", together)


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_heads_that_know_the_text_commit_all_they_draft(shape):
    method = create("heads", shape=shape, least=0.0) if shape == "tree" else create("heads", shape=shape)
    method.use(ready(knowing(cycling_backbone()), cycling_backbone()))  # type: ignore[attr-defined]
    method._backbone = cycling_backbone()  # type: ignore[attr-defined]
    row = cycle_row(method, CYCLE[:3])
    assert tau(row) > 3.5


def test_the_span_predictor_sets_the_depth_of_a_draft():
    backbone = cycling_backbone()
    for span in (0, 1, 3):
        method = create("heads", shape="chain")
        method.use(ready(always(knowing(backbone), span), backbone))  # type: ignore[attr-defined]
        method._backbone = backbone  # type: ignore[attr-defined]
        row = cycle_row(method, CYCLE[:3])
        assert set(row.blocks[:-2]) == {1 + span} and set(row.spans[1:-2]) == {1 + span}


@pytest.mark.parametrize("kind", KINDS)
def test_trees_keep_to_their_budget_and_hold_the_chain(kind):
    backbone = tiny_backbone()
    trained = ready(random_heads(kind), backbone)
    hidden = torch.randn(2, backbone.width, generator=torch.Generator().manual_seed(0))
    first = 1 - trained.heads.shape.offset
    chain = chains(trained, hidden, [3, 8], [3, 3])
    found = trees(trained, hidden, [3, 8], [3 - first, 1], 12)
    for row, tree in enumerate(found):
        assert len(tree) == 12
        assert tree.scores == sorted(tree.scores, reverse=True)
        assert all(parent < node for node, parent in enumerate(tree.parents))
        assert tree.tokens[0] == chain[row].tokens[first]
        assert tree.scores[0] == pytest.approx(torch.tensor(chain[row].probabilities[first]).log().item(), abs=1e-5)
        assert all(token % 5 for token in tree.tokens)
    assert set(found[1].parents) == {-1}
    alone = trees(trained, hidden[:1], [3], [3 - first], 12)[0]
    assert (alone.tokens, alone.parents) == (found[0].tokens, found[0].parents)
    pruned = trees(trained, hidden[:1], [3], [3 - first], 12, least=0.02)[0]
    assert pruned.tokens == alone.tokens[: len(pruned)] and min(pruned.scores, default=0) >= torch.tensor(0.02).log()


def test_sequential_heads_follow_the_path_above_them():
    """A node's children are what the heads say after its own token, not after the best one."""
    backbone = tiny_backbone()
    trained = ready(random_heads("sequential", heads=2), backbone)
    hidden = torch.randn(1, backbone.width, generator=torch.Generator().manual_seed(1))
    tree = trees(trained, hidden, [3], [2], 200)[0]
    assert trained.reader is not None
    for parent in (0, 1, 2):
        state = trained.heads.advance(0, hidden, hidden, trained.reader.embed(torch.tensor([3])))
        token = torch.tensor([tree.tokens[tree.parents.index(-1)] if parent == 0 else tree.tokens[parent]])
        node = 0 if parent == 0 else parent
        if tree.parents[node] != -1:
            continue
        state = trained.heads.advance(1, hidden, state, trained.reader.embed(token))
        best = int(trained.heads.vocabulary[trained.reader.logits(state).argmax()])
        children = [tree.tokens[i] for i, p in enumerate(tree.parents) if p == node]
        assert not children or children[0] == best


# -- lossy ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("together", [True, False])
def test_predicted_with_a_span_of_zero_equals_plain(tmp_path, kind, together):
    path = write(tmp_path, always(random_heads(kind), 0), tiny_backbone())
    method = create("heads", checkpoint=path, acceptance="predicted")
    rows = outputs(tiny_backbone(), requests(method), together)
    plain = outputs(tiny_backbone(), requests(Plain()), together)
    assert [row.output for row in rows] == [row.output for row in plain]
    assert all(span == 1 for row in rows for span in row.spans)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("acceptance", LOSSY)
def test_lossy_modes_are_deterministic(saved, kind, acceptance):
    path = saved(kind=kind)
    runs = []
    for together in (True, True, False):
        method = create("heads", checkpoint=path, acceptance=acceptance)
        assert not method.lossless
        runs.append([row.output for row in outputs(tiny_backbone(), requests(method), together)])
    assert runs[0] == runs[1] == runs[2]


def test_fixed_commits_all_heads_at_every_step(saved):
    method = create("heads", checkpoint=saved(), acceptance="fixed")
    row = generate(tiny_backbone(), [[5, 9, 14]], method, max_new_tokens=21)[0]
    assert row.spans == [4, 4, 4, 4, 4, 1] and set(row.blocks) == {4}


@pytest.mark.parametrize("acceptance", ["predicted", "fixed", "confidence"])
def test_heads_that_know_the_text_write_it_unverified(acceptance):
    backbone = cycling_backbone()
    method = create("heads", acceptance=acceptance)
    method.use(ready(knowing(backbone), backbone))  # type: ignore[attr-defined]
    method._backbone = backbone  # type: ignore[attr-defined]
    row = cycle_row(method, CYCLE[:4])
    assert row.spans[0] == 4 and tau(row) > 3.5


def test_confidence_stops_at_the_first_doubt(saved):
    path = saved()
    backbone = tiny_backbone()
    low = create("heads", checkpoint=path, acceptance="confidence", threshold=1e-6)
    high = create("heads", checkpoint=path, acceptance="confidence", threshold=0.999999)
    assert generate(backbone, [[5, 9]], low, max_new_tokens=13)[0].spans == [4, 4, 4, 1]
    assert set(generate(backbone, [[5, 9]], high, max_new_tokens=13)[0].spans) <= {1, 2, 3, 4}
    assert len(generate(backbone, [[5, 9]], high, max_new_tokens=13)[0].spans) > 4


def test_competing_heads_take_the_place_of_the_models_own_token(tmp_path):
    """With a span of one, every token is the first head's, which here differs from the model's."""
    backbone = tiny_backbone()
    trained = always(random_heads("competing"), 1)
    path = write(tmp_path, trained, backbone)
    method = create("heads", checkpoint=path, acceptance="predicted")
    plain = generate(backbone, [[5, 9, 14]], max_new_tokens=8)[0]
    row = generate(backbone, [[5, 9, 14]], method, max_new_tokens=8)[0]
    assert row.output != plain.output and set(row.spans) == {1}
    assert all(token % 5 for token in row.output)
    held = load_heads(path, backbone)
    assert held.reader is not None
    text = [5, 9, 14]
    for token in row.output:
        from multitoken.models.block import causal_block

        hidden = backbone.trace(causal_block(torch.tensor([text]), torch.zeros(1, dtype=torch.int64)))[0, -1:]
        best = held.reader.logits(held.heads.advance(0, hidden, hidden, hidden)).argmax()
        assert token == int(held.heads.vocabulary[best])
        text.append(token)


@pytest.mark.parametrize("kind", ["sequential", "competing"])
def test_plain_rows_are_left_alone_beside_lossy_ones(saved, kind):
    backbone = tiny_backbone()
    lossy = create("heads", checkpoint=saved(kind=kind), acceptance="fixed")
    alone = generate(backbone, [[5, 9, 14]], max_new_tokens=12)[0].output
    engine = Engine(backbone)
    plain = engine.add(Request((5, 9, 14), Plain(), max_new_tokens=12))
    engine.add(Request((5, 9, 14, 3), lossy, max_new_tokens=12))
    run(engine)
    assert plain.output == alone


def test_lossy_tokens_keep_ends_and_budgets(saved):
    backbone = tiny_backbone()
    method = create("heads", checkpoint=saved(), acceptance="fixed")
    free = generate(backbone, [[5, 9, 14]], method, max_new_tokens=12)[0].output
    end = free[2]
    row = generate(backbone, [[5, 9, 14]], method, max_new_tokens=12, eos=frozenset([end]))[0]
    assert row.output == free[: free.index(end) + 1] and row.finish_reason == "stop"
    later = generate(backbone, [[5, 9, 14]], method, max_new_tokens=12, min_tokens=9, eos=frozenset([end]))[0]
    assert later.generated >= 9 and end not in later.output[:8]
    assert generate(backbone, [[5, 9, 14]], method, max_new_tokens=6)[0].generated == 6


def test_lossy_methods_give_no_logprobs(saved):
    method = create("heads", checkpoint=saved(), acceptance="fixed")
    with pytest.raises(OptionError, match="use a lossless method"):
        Engine(tiny_backbone()).add(Request((5, 9), method, logprobs=0))


def test_sampled_verified_text_follows_the_seed(saved):
    backbone = tiny_backbone()
    method = create("heads", checkpoint=saved(), span_from="full")
    for seed in range(3):
        sampling = replace(SETTINGS[2], seed=seed)
        plain = generate(backbone, [[5, 9, 14]], sampling=sampling, max_new_tokens=14)[0]
        assert generate(backbone, [[5, 9, 14]], method, sampling=sampling, max_new_tokens=14)[0].output == plain.output
    assert Sampling() == SETTINGS[0]


# -- checkpoints and options ------------------------------------------------------------------------------------------


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    backbone = tiny_backbone()
    trained = random_heads("sequential", shared=False)
    held = load_heads(write(tmp_path, trained, backbone), backbone)
    assert held.heads.shape == trained.heads.shape and held.facts["model"] == "tiny"
    for name in ("heads", "span", "gate"):
        ours, theirs = getattr(trained, name).state_dict(), getattr(held, name).state_dict()
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert torch.equal(held.heads.vocabulary, trained.heads.vocabulary)


def test_heads_of_another_model_are_refused_with_both_names(saved):
    path = saved("llama")
    with pytest.raises(ModelError, match=r"trained for tiny \(llama-.*not for this model, qwen2 \(qwen2-"):
        load_heads(path, tiny_backbone("qwen2"))


def test_what_is_missing_or_damaged_is_one_line(tmp_path, saved):
    backbone = tiny_backbone()
    with pytest.raises(OptionError, match="no heads are shipped for this model; make some with multitoken train heads"):
        create("heads").bind(backbone)
    with pytest.raises(OptionError, match=r"has no heads\.json"):
        create("heads", checkpoint=tmp_path / "nowhere").bind(backbone)
    path = saved()
    (path / "heads.safetensors").write_bytes(b"x")
    with pytest.raises(ModelError, match="copy or train it again"):
        load_heads(path, backbone)
    (path / "heads.json").write_text("{}")
    with pytest.raises(ModelError, match="is not of schema"):
        load_heads(path, backbone)
    plain = random_heads()
    save_heads(tmp_path / "b", type(plain)(plain.heads, plain.span), {"fingerprint": backbone.fingerprint})
    with pytest.raises(OptionError, match="has no gate"):
        create("heads", checkpoint=tmp_path / "b", acceptance="gate").bind(backbone)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"acceptance": "predicted", "block_size": 8}, "block_size goes with acceptance=verified"),
        ({"acceptance": "fixed", "threshold": 0.3}, "threshold has no part in acceptance=fixed"),
        ({"span_from": "full", "threshold": 0.3}, "threshold goes with span_from=predictor"),
        ({"shape": "chain", "least": 0.3}, "least goes with shape=tree"),
        ({"acceptance": "maybe"}, "acceptance"),
        ({"block_size": 1}, "block_size"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, words):
    with pytest.raises(OptionError, match=words):
        create("heads", **options)


@pytest.mark.parametrize("runtime", ["packed", "int8"])
def test_packed_models_show_the_rows_of_their_head(runtime):
    import copy

    from multitoken.models.backbone import Backbone
    from multitoken.models.runtime.prepare import prepare
    from support import tiny_model

    plain, packed = tiny_backbone(), Backbone(copy.deepcopy(tiny_model()))
    prepare(packed, "auto", "int8" if runtime == "int8" else "none")
    tokens = torch.tensor([3, 200, 17])
    weight, bias = plain.head_rows(tokens)
    ours, offset = packed.head_rows(tokens)
    assert torch.allclose(weight, ours, atol=1e-6 if runtime == "packed" else 0.01)
    assert torch.allclose(bias, offset)


@pytest.mark.parametrize(("width", "heads"), [(576, 4), (1536, 2)])
def test_the_gate_has_about_a_million_parameters(width, heads):
    assert sum(p.numel() for p in Gate(width, heads).parameters()) == pytest.approx(GATE_PARAMETERS, rel=0.01)
