"""From a corpus to a checkpoint that methods decode with."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from multitoken.errors import DataError, OptionError
from multitoken.methods import create
from multitoken.methods.plain import Plain
from multitoken.methods.probe.learned import FACTS, load_learned
from multitoken.models.loading import LoadedModel, load_model, wrap
from multitoken.training.corpus import Corpus, Sample
from multitoken.training.loop import LoopOptions
from multitoken.training.mask import MaskSettings
from multitoken.training.mask.run import AdapterSettings, train_masks
from scripted import generate
from support import byte_tokenizer, tiny_model

KINDS = ("probes", "gated-lora", "lora", "full")
SETTINGS = MaskSettings(k_max=4, regions=4, longest=24)
ADAPTER = AdapterSettings(rank=2, dtype=torch.float32)


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULTITOKEN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def tiny() -> LoadedModel:
    return wrap(copy.deepcopy(tiny_model()), byte_tokenizer(), name="tiny")


def corpus(model: LoadedModel) -> Corpus:
    rng = random.Random(0)
    samples = [
        Sample([rng.randrange(3, 260) for _ in range(6)], [rng.randrange(3, 260) for _ in range(12)]) for _ in range(24)
    ]
    return Corpus({"fingerprint": model.backbone.fingerprint}, samples)


def written(backbone, method) -> list[list[int]]:
    """What it writes after three prompts, side by side."""
    prompts = [[7, 30, 31, 90], [50], [8, 9, 8, 9, 8, 9, 100, 101]]
    return [row.output for row in generate(backbone, prompts, method, max_new_tokens=16)]


def loop(out: Path, **changes) -> LoopOptions:
    given = {"steps": 6, "batch": 2, "learning_rate": 0.01, "warmup": 2, "checkpoint_every": 3, "evaluate_every": 3}
    return LoopOptions(out, **{**given, **changes})


def trained(out: Path, kind, **changes) -> LoadedModel:
    model = tiny()
    train_masks(model, corpus(model), kind, SETTINGS, loop(out, **changes), ADAPTER, held_out=0.2, command="a test")
    return model


@pytest.mark.parametrize("kind", ["probes", "gated-lora"])
def test_what_is_trained_decodes_losslessly(kind, tmp_path):
    model = trained(tmp_path, kind)
    learned = load_learned(tmp_path, model.backbone)
    assert learned.kind == kind and learned.lossless and learned.vectors.shape == (3, 64)
    assert learned.vectors.std(0).max() > 0  # no longer all the same
    if kind == "gated-lora":
        assert learned.adapter is not None and max(float(p.abs().max()) for p in learned.adapter.up.values()) > 0
    method = create("mask", checkpoint=tmp_path)
    assert written(model.backbone, method) == written(model.backbone, Plain())


def test_masks_can_start_from_learned_probes(tmp_path):
    model = trained(tmp_path / "probes", "probes")
    probes = load_learned(tmp_path / "probes", model.backbone).vectors
    settings = MaskSettings(k_max=6, regions=4, longest=24)
    given = {"held_out": 0.2, "start": tmp_path / "probes"}
    pace = loop(tmp_path / "mask", steps=1, learning_rate=1e-6)
    train_masks(model, corpus(model), "gated-lora", settings, pace, ADAPTER, **given)
    vectors = load_learned(tmp_path / "mask", model.backbone).vectors
    torch.testing.assert_close(vectors, probes[[0, 1, 2, 2, 2]], atol=1e-4, rtol=0)
    with pytest.raises(DataError, match="start"):
        train_masks(model, corpus(model), "gated-lora", settings, pace, ADAPTER, held_out=0.2)


@pytest.mark.parametrize("kind", KINDS)
def test_provenance_and_curve_lie_beside_it(kind, tmp_path):
    model = trained(tmp_path, kind)
    facts = json.loads((tmp_path / FACTS).read_text())
    assert facts["kind"] == kind and facts["model"] == "tiny" and facts["command"] == "a test"
    assert facts["model_fingerprint"] == model.backbone.fingerprint
    assert facts["training"]["steps"] == 6 and facts["training"]["corpus"]["samples"] == 24
    assert facts["training"]["held_out"]["tau"] >= 1 and "torch" in facts["versions"]
    assert len(json.loads((tmp_path / "curve.json").read_text())["points"]) == 3
    assert (facts["fingerprint"] == model.backbone.fingerprint) == (kind != "full")


def test_all_weights_make_a_stock_checkpoint(tmp_path):
    """Transformers' own generate runs it; loaded here, verified and threshold-1 output equal its plain decoding."""
    model = trained(tmp_path, "full", learning_rate=0.002)
    stock: Any = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    prompt = [7, 30, 31, 90]
    text = stock.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False, eos_token_id=None)
    loaded = load_model(str(tmp_path), runtime="eager", progress=False)
    assert not torch.equal(loaded.backbone.module.lm_head.weight, model.backbone.module.lm_head.weight)
    plain = written(loaded.backbone, Plain())
    assert plain[0] == text[0, 4:].tolist()
    for options in ({}, {"acceptance": "confadapt", "threshold": 1.0}):
        assert written(loaded.backbone, create("mask", checkpoint=tmp_path, **options)) == plain


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_training_ends_with_the_same_bits(kind, tmp_path, monkeypatch):
    from multitoken.training.mask import objective

    trained(tmp_path / "whole", kind)
    calls = 0
    loss = objective.MaskObjective.loss

    def dying(self, items, step):
        nonlocal calls
        calls += 1
        if calls == 5:
            raise KeyboardInterrupt
        return loss(self, items, step)

    monkeypatch.setattr(objective.MaskObjective, "loss", dying)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "cut", kind)
    trained(tmp_path / "cut", kind)
    for name in sorted(path.name for path in (tmp_path / "whole").glob("*.safetensors")):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_what_cannot_be_trained_is_said_before(tmp_path):
    model = tiny()
    with pytest.raises(OptionError, match="prefix_loss"):
        train_masks(model, corpus(model), "probes", MaskSettings(prefix_loss=True), loop(tmp_path))
    shape = AdapterSettings(targets=("w_q",))
    with pytest.raises(OptionError, match="targets.*q_proj"):
        train_masks(model, corpus(model), "gated-lora", SETTINGS, loop(tmp_path), shape, held_out=0.2)
    with pytest.raises(DataError, match="raise --longest"):
        train_masks(model, corpus(model), "probes", MaskSettings(longest=7), loop(tmp_path), held_out=0.2)
    trained(tmp_path, "probes")
    with pytest.raises(DataError, match="begun with"):
        trained(tmp_path, "probes", learning_rate=0.5)
