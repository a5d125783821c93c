"""Masks: verified output is the base model's, lossy output is the paper's decoding, and what a checkpoint must be."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest
import torch
from lossless import assert_lossless, outputs, requests
from mask_support import VECTORS, checkpoint, confadapt, predictions

from multitoken.engine.engine import Engine
from multitoken.engine.row import Request
from multitoken.engine.sampling import Sampling
from multitoken.errors import ModelError, OptionError
from multitoken.methods import create
from multitoken.methods.plain import Plain
from multitoken.methods.probe.learned import FACTS, load_learned
from multitoken.methods.probe.learned import VECTORS as VECTORS_FILE
from multitoken.models.adapter import WEIGHTS
from scripted import generate, run
from support import VOCAB, tiny_backbone

PROMPT = [9, 40, 41, 7, 200, 13]
FAMILIES = ["llama", "qwen3", "gemma3_text", "mistral", "gpt2", "phi3", "qwen2_moe", "gemma2"]


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULTITOKEN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    @cache
    def made(family: str, kind: str = "gated-lora"):
        return checkpoint(tmp_path_factory.mktemp("masks"), tiny_backbone(family), kind)  # type: ignore[arg-type]

    return made


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("options", [{}, {"tree": "chain", "k": 3, "rescore": 0.0}])
def test_verified_equals_plain(folder, family, options):
    """Rows of different length together, greedy and sampled, with penalties."""
    assert_lossless(create("mask", checkpoint=folder(family), **options), family)


@pytest.mark.parametrize("kind", ["probes", "gated-lora"])
def test_other_methods_take_learned_probes(folder, kind):
    for name in ("probe", "fused", "auto"):
        assert_lossless(create(name, init="learned", checkpoint=folder("llama", kind), probes=2), "llama")


@pytest.mark.parametrize(
    ("family", "threshold", "longest"),
    [("llama", 0.02, 4), ("llama", 0.15, 2), ("gemma3_text", 0.02, 4), ("gpt2", 0.02, 2)],
)
def test_confadapt_is_the_papers(folder, family, threshold, longest):
    backbone = tiny_backbone(family)
    learned = load_learned(folder(family), backbone)
    method = create("mask", checkpoint=folder(family), acceptance="confadapt", threshold=threshold)
    rows = generate(backbone, [PROMPT, PROMPT[:2]], method, max_new_tokens=24)
    for row, prompt in zip(rows, (PROMPT, PROMPT[:2]), strict=True):
        assert row.output == confadapt(backbone, prompt, learned.vectors, learned.adapter, threshold, 24)
    assert max(max(row.spans) for row in rows) >= longest
    assert not method.lossless


def test_static_commits_k_each_step(folder, backbone):
    learned = load_learned(folder("llama"), backbone)
    method = create("mask", checkpoint=folder("llama"), acceptance="static", k=3)
    row = generate(backbone, [PROMPT], method, max_new_tokens=12)[0]
    assert row.spans == [3, 3, 3, 3]
    expected = predictions(backbone, PROMPT, learned.vectors[:2], learned.adapter).argmax(-1).tolist()
    assert row.output[:3] == expected
    # A block: the newly committed tokens and the masks.
    assert row.blocks == [5, 5, 5]


@pytest.mark.parametrize("options", [{"acceptance": "confadapt", "threshold": 1.0}, {"acceptance": "static", "k": 1}])
def test_without_predictions_it_is_plain(folder, options):
    assert_lossless(create("mask", checkpoint=folder("llama"), **options), "llama")


def test_a_stop_token_inside_a_span_ends_there(folder, backbone):
    method = create("mask", checkpoint=folder("llama"), acceptance="static", k=4)
    free = generate(backbone, [PROMPT], method, max_new_tokens=12)[0].output
    place = next(i for i in (5, 6, 9, 10) if free.index(free[i]) == i)  # inside a span of four
    stop = frozenset({free[place]})
    asked = Request(tuple(PROMPT), method, max_new_tokens=12)
    for request in (replace(asked, eos=stop), replace(asked, stop_tokens=stop)):
        engine = Engine(backbone)
        row = engine.add(request)
        run(engine)
        assert row.output == free[: place + 1] and row.finish_reason == "stop"
    engine = Engine(backbone)
    ends = frozenset({free[1]})
    row = engine.add(Request(tuple(PROMPT), method, max_new_tokens=12, min_tokens=6, eos=ends))
    run(engine)
    assert not ends & set(row.output[:6])


def test_rows_of_different_span_length_share_a_forward(folder, backbone):
    """Each row of a mixed batch writes what it writes alone."""
    methods = [
        Plain(),
        create("mask", checkpoint=folder("llama"), acceptance="confadapt", threshold=0.02),
        create("mask", checkpoint=folder("llama")),
        create("probe"),
        create("mask", checkpoint=folder("llama"), acceptance="static", k=4),
        create("mask", checkpoint=folder("llama", "lora"), acceptance="static", k=2),
    ]
    asked = [requests(method)[i % 4] for i, method in enumerate(methods)]
    alone = outputs(backbone, asked, together=False)
    together = outputs(backbone, asked, together=True)
    assert [row.output for row in together] == [row.output for row in alone]


def test_an_ungated_adapter_acts_on_the_whole_row(folder, backbone):
    """Its plain path is another model's, the same in short and long prefill chunks; nobody else notices."""
    path = folder("llama", "lora")
    method = create("mask", checkpoint=path, acceptance="static", k=1)
    row = generate(backbone, [PROMPT * 3], method, max_new_tokens=10)[0]
    learned = load_learned(path, backbone)
    text = PROMPT * 3
    for token in row.output:
        assert int(predictions(backbone, text, learned.vectors[:0], learned.adapter)[0].argmax()) == token
        text.append(token)
    chunked = Engine(backbone, prefill_chunk=4)
    again = chunked.add(Request(tuple(PROMPT * 3), method, max_new_tokens=10))
    run(chunked)
    plain = generate(backbone, [PROMPT * 3], Plain(), max_new_tokens=10)[0]
    assert again.output == row.output != plain.output
    verified = create("mask", checkpoint=path)
    assert generate(backbone, [PROMPT * 3], verified, max_new_tokens=10)[0].output == row.output
    assert not verified.lossless


def test_sampled_lossy_output_follows_the_seed(folder, backbone):
    method = create("mask", checkpoint=folder("llama"), acceptance="static", k=3)

    def drawn(seed):
        engine = Engine(backbone)
        row = engine.add(Request(tuple(PROMPT), method, Sampling(temperature=1.0, seed=seed), max_new_tokens=12))
        run(engine)
        return row.output

    assert drawn(1) == drawn(1) != drawn(2)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"threshold": 0.5}, "threshold"),
        ({"k": 1}, "k must"),
        ({"block_size": 4}, "block_size"),
        ({"tree": "chain", "block_size": 6}, "block_size"),
        ({"acceptance": "static", "block_size": 9}, "block_size"),
        ({"acceptance": "confadapt", "threshold": 1.5}, "threshold"),
    ],
)
def test_options_that_do_not_go_together(options, named):
    with pytest.raises(OptionError, match=named):
        create("mask", **options)


def test_checkpoints_that_cannot_be_used(folder, backbone, tmp_path):
    def bound(**options):
        create("mask", **options).bind(backbone)

    with pytest.raises(OptionError, match="none is shipped for this model"):
        bound()
    with pytest.raises(OptionError, match="made by multitoken train"):
        bound(checkpoint=tmp_path)
    for acceptance in ("verified", "static"):
        with pytest.raises(OptionError, match=f"k=7.*up to {VECTORS + 1} tokens"):
            bound(checkpoint=folder("llama"), acceptance=acceptance, k=VECTORS + 2)
    with pytest.raises(OptionError, match=f"probes=7.*has {VECTORS}"):
        create("probe", init="learned", checkpoint=folder("llama"), probes=7).bind(backbone)
    with pytest.raises(ModelError, match="not for this"):
        bound(checkpoint=folder("qwen3"))
    broken = checkpoint(tmp_path / "broken", backbone)
    for name in (WEIGHTS, VECTORS_FILE):
        kept = (broken / name).read_bytes()
        (broken / name).write_bytes(kept[:30])
        with pytest.raises(ModelError, match="cannot be read"):
            bound(checkpoint=broken)
        (broken / name).write_bytes(kept)
    facts = json.loads((broken / FACTS).read_text()) | {"schema": "other"}
    (broken / FACTS).write_text(json.dumps(facts))
    with pytest.raises(ModelError, match="not of schema"):
        bound(checkpoint=broken)


def test_one_adapter_serves_all_methods_of_a_checkpoint(folder, backbone):
    first, second = (load_learned(folder("llama"), backbone).adapter for _ in range(2))
    assert first is second


def test_peft_reads_the_adapter(folder):
    peft = pytest.importorskip("peft")
    import copy

    backbone = tiny_backbone("llama")
    learned = load_learned(folder("llama", "lora"), backbone)
    tokens = torch.tensor([PROMPT])
    expected = predictions(backbone, PROMPT, learned.vectors[:0], learned.adapter)
    module = copy.deepcopy(backbone.module)
    for layer in module.modules():
        layer._forward_hooks.clear()
    loaded = peft.PeftModel.from_pretrained(module, str(folder("llama", "lora")))
    torch.testing.assert_close(loaded(tokens).logits[0, -1:], expected, atol=2e-4, rtol=1e-3)
    assert expected.shape == (1, VOCAB)
