"""Exact loading: bits do not depend on the block, so drafting changes nothing in bfloat16 either."""

import copy
import random

import pytest
import torch

from multitoken.engine.engine import Engine
from multitoken.engine.row import Request, Row
from multitoken.engine.sampling import Sampling
from multitoken.errors import OptionError
from multitoken.methods import create
from multitoken.methods.plain import Plain
from multitoken.models.backbone import Backbone
from multitoken.models.loading import load_model
from multitoken.models.runtime.compiled import packed_layers
from multitoken.models.runtime.exact import check_exact, pair_rows
from multitoken.models.runtime.prepare import prepare
from scripted import run
from support import VOCAB, byte_tokenizer, tiny_model

FAMILIES = ["llama", "gemma3_text", "qwen3", "phi3", "gpt2", "gpt_neox", "cohere", "olmo2", "stablelm"]


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULTITOKEN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def exact_backbone(family, dtype=torch.bfloat16, quantize="none"):
    module = copy.deepcopy(tiny_model(family))
    module.to(dtype)  # type: ignore[arg-type]
    module.set_attn_implementation("multitoken_exact")
    backbone = Backbone(module)
    prepare(backbone, "auto", quantize)
    return backbone


@pytest.mark.parametrize("quantize", ["none", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_families_are_exact(family, dtype, quantize):
    check_exact(exact_backbone(family, dtype, quantize), family)


def test_what_is_not_exact_is_refused():
    backbone = exact_backbone("llama")
    backbone.module.set_attn_implementation("multitoken")
    with pytest.raises(OptionError, match="depend on the size of the block"):
        check_exact(backbone, "llama")
    with pytest.raises(OptionError, match="no packed runtime"):
        check_exact(Backbone(tiny_model()), "llama")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_paired_row_has_the_bits_it_has_among_others(dtype):
    backbone = exact_backbone("llama", dtype)
    pair_rows(backbone)
    for layer in packed_layers(backbone.module):
        rows = torch.randn(1, 5, layer.in_features, dtype=dtype)
        alone = layer(rows[:, :1])
        assert alone.shape == (1, 1, layer.out_features)
        assert torch.equal(alone, layer(rows)[:, :1])


def outputs(backbone, method, together) -> list[Row]:
    rng = random.Random(5)
    prompts = [[rng.randrange(3, VOCAB) for _ in range(length)] * 2 for length in (3, 9, 14)]
    samplings = [Sampling(), Sampling(temperature=0.8, seed=4), Sampling(repetition_penalty=1.2)]
    requests = [
        Request(tuple(prompt), method, sampling, max_new_tokens=40, eos=frozenset())
        for prompt, sampling in zip(prompts, samplings, strict=True)
    ]
    rows = []
    for group in [requests] if together else [[request] for request in requests]:
        engine = Engine(backbone)
        rows += [engine.add(request) for request in group]
        run(engine)
    return rows


@pytest.mark.parametrize("method", ["probe", "fused", "pld", "lookahead"])
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2"])
def test_half_precision_output_is_plains(family, method):
    backbone = exact_backbone(family)
    plain = [row.output for row in outputs(backbone, Plain(), together=False)]
    for together in (False, True):
        rows = outputs(backbone, create(method), together)
        assert [row.output for row in rows] == plain
    if method != "lookahead":
        assert any(max(row.spans) > 1 for row in rows)  # something was drafted and accepted


def test_loading(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), dtype="bfloat16", device="cpu", exact=True)
    assert loaded.backbone.module.config._attn_implementation == "multitoken_exact"
    for attn, runtime in (("sdpa", "auto"), ("auto", "eager")):
        with pytest.raises(OptionError, match="exact"):
            load_model(str(tmp_path), device="cpu", exact=True, attn=attn, runtime=runtime)
