"""Compiled forwards: the modules' own results for blocks of any shape, compiled once, refused with a reason."""

from __future__ import annotations

import copy
import os
import random

import pytest
import torch
from torch import nn
from torch._inductor import config as inductor

from multitoken.engine.engine import Engine
from multitoken.engine.row import Request
from multitoken.engine.sampling import Sampling
from multitoken.errors import ModelError, OptionError
from multitoken.methods import create
from multitoken.models.adapter import Adapter
from multitoken.models.backbone import Backbone
from multitoken.models.block import Block, causal_block
from multitoken.models.loading import prove_exact
from multitoken.models.runtime import compiled
from multitoken.models.runtime.compiled import Compiled, code_entry
from multitoken.models.runtime.exact import check_exact
from multitoken.models.runtime.prepare import prepare
from scripted import run
from support import FAMILIES, VOCAB, tiny_model


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULTITOKEN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def prepared(family="llama", runtime="compiled", quantize="none", dtype=torch.float32, exact=False) -> Backbone:
    module = copy.deepcopy(tiny_model(family))
    module.to(dtype)  # type: ignore[arg-type]
    if exact:
        module.set_attn_implementation("multitoken_exact")
    backbone = Backbone(module)
    backbone.progress = False
    prepare(backbone, runtime, quantize)
    return backbone


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return prepared()


def logits(backbone: Backbone, rows: int, size: int, probe: bool = False) -> torch.Tensor:
    """Of a block with branches, behind prefixes of different length: [rows, size, V]."""
    generator = torch.Generator().manual_seed(rows * 100 + size)
    cache = backbone.new_cache(rows)
    for row in range(rows):
        cache.add_row()
        prefix = torch.randint(3, VOCAB, (1, 3 + 5 * row), generator=generator)
        backbone.forward(causal_block(prefix, torch.zeros(1, dtype=torch.int64), row), cache)
        cache.commit(row, prefix.shape[1], [])
    visible = torch.tril(torch.ones(size, size, dtype=torch.bool))
    visible[size // 2 :, 1 : size // 2] = False
    depth = visible.sum(1) - 1
    block = Block(
        tokens=torch.randint(3, VOCAB, (rows, size), generator=generator),
        positions=torch.tensor(cache.lengths)[:, None] + depth,
        visible=visible.expand(rows, size, size),
        vectors=torch.randn(1, backbone.width, generator=generator) if probe else None,
        vector_index=torch.tensor([rows * size - 1]) if probe else None,
    )
    return backbone.project(backbone.forward(block, cache))


def assert_equal_modules(backbone: Backbone, rows: int, size: int, **options) -> None:
    ours = logits(backbone, rows, size, **options)
    with backbone.by_modules():
        theirs = logits(backbone, rows, size, **options)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)
    assert (ours.argmax(-1) == theirs.argmax(-1)).all()


def outputs(backbone: Backbone, method: str, together: bool) -> list:
    """What is written after four prompts of different length, greedy and sampled, in one batch or one by one."""
    rng = random.Random(7)
    requests = []
    for length, sampling in (
        (2, Sampling()),
        (9, Sampling(temperature=0.8, seed=4)),
        (15, Sampling()),
        (26, Sampling()),
    ):
        prompt = tuple(rng.randrange(3, VOCAB) for _ in range(length)) * 2
        requests.append(Request(prompt, create(method), sampling, max_new_tokens=24, eos=frozenset()))
    rows = []
    for group in [requests] if together else [[request] for request in requests]:
        engine = Engine(backbone, prefill_chunk=8)
        rows += [engine.add(request) for request in group]
        run(engine)
    return [row.output for row in rows]


def test_one_code_serves_blocks_of_every_shape(backbone, monkeypatch):
    assert backbone.runtime == "compiled" and backbone.quantize == "none"
    monkeypatch.setattr(compiled, "_trace", None)  # nothing is compiled from here on
    assert not torch._dynamo.utils.counters["frames"], "no frame is left to a compiler that may run at any step"
    for rows, size in [(1, 1), (1, 2), (1, 7), (1, 64), (2, 1), (3, 5), (16, 1), (16, 3)]:
        assert_equal_modules(backbone, rows, size)
    assert_equal_modules(backbone, 1, 4, probe=True)


@pytest.mark.parametrize("method", ["probe", "auto"])
def test_methods_equal_plain(backbone, method):
    plain = outputs(backbone, "plain", together=False)
    with backbone.by_modules():
        assert plain == outputs(backbone, "plain", together=True)
    for together in (True, False):
        assert outputs(backbone, method, together) == plain


def test_a_later_start_finds_the_code(backbone, monkeypatch):
    monkeypatch.setattr(compiled, "_trace", None)
    for runtime, kept in (("compiled", "compiled"), ("auto", "compiled"), ("packed", "packed")):
        later = prepared(runtime=runtime)
        assert later.runtime == kept and (later.compiled is not None) == (kept == "compiled")
        assert kept == "packed" or not later.compiled.made
        assert kept == "packed" or torch.equal(logits(later, 2, 3), logits(backbone, 2, 3))
    exact = prepared(runtime="auto", exact=True)
    assert exact.runtime == "compiled"
    check_exact(exact, "llama")


def test_code_is_of_one_model(backbone):
    other = Backbone(copy.deepcopy(tiny_model(seed=1)))
    prepare(other, "auto", "none")
    assert other.runtime == "packed"
    norm = next(weight for name, weight in other.module.named_parameters() if "norm" in name)
    entry = code_entry(other)
    norm.data[1] += 1e-3  # the fingerprint's sample may miss it, the code may not
    assert code_entry(other) != entry


def test_damaged_code_is_not_used(backbone):
    path = backbone.compiled.path
    content = path.read_bytes()
    try:
        path.write_bytes(content[: len(content) // 2])
        assert prepared(runtime="auto").runtime == "packed"
    finally:
        path.write_bytes(content)


def test_code_that_computes_something_else_is_not_used(backbone, monkeypatch):
    right = Compiled.__call__
    monkeypatch.setattr(Compiled, "__call__", lambda *args: right(*args).flip(-1))
    assert prepared(runtime="auto").runtime == "packed"
    with pytest.raises(ModelError, match="runtime=compiled: its logits change .* use packed"):
        prepared()


def test_code_whose_bits_depend_on_the_block_is_not_exact(backbone, monkeypatch):
    right = Compiled.__call__
    monkeypatch.setattr(Compiled, "__call__", lambda *args: right(*args) * (1 + 1e-6 * args[2].size))
    exact = prepared(runtime="auto", exact=True)
    assert exact.runtime == "compiled"
    with pytest.raises(OptionError, match="exact=True: .* use runtime packed"):
        prove_exact(exact, "llama", "compiled")
    prove_exact(exact, "llama", "auto")
    assert exact.runtime == "packed" and exact.compiled is None


def test_adapters_and_training_go_through_the_modules(backbone, monkeypatch):
    adapter = Adapter.of(backbone, rank=2, alpha=4, gated=True)
    for up in adapter.up.values():
        nn.init.ones_(up)
    block = causal_block(torch.tensor([[5, 6, 7]]), torch.zeros(1, dtype=torch.int64))
    plain = backbone.forward(block, one_row(backbone))
    adapter.attach(backbone)
    try:
        block.adapted = {adapter: torch.tensor([2])}
        changed = backbone.forward(block, one_row(backbone))
    finally:
        adapter.detach()
    torch.testing.assert_close(changed[:, :2], plain[:, :2])
    assert not torch.allclose(changed[:, 2], plain[:, 2], atol=1e-2)
    vectors = torch.randn(1, backbone.width, requires_grad=True)
    block = Block(block.tokens, block.positions, block.visible, vectors=vectors, vector_index=torch.tensor([1]))
    with pytest.raises(ModelError, match="no gradient"):
        backbone.trace(block)


def one_row(backbone):
    cache = backbone.new_cache()
    cache.add_row()
    return cache


def test_refusals(monkeypatch):
    with inductor.patch({"cpp.cxx": ("no-such-compiler",)}):
        with pytest.raises(OptionError, match="runtime='compiled': no C\\+\\+ compiler was found; .* use packed"):
            prepared("qwen2")
        assert prepared("qwen2", runtime="auto").runtime == "packed"
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "MOST_BYTES", 0)
        with pytest.raises(OptionError, match="of its weights lie outside"):
            prepared("qwen2")
    module = copy.deepcopy(tiny_model("qwen2"))
    module.set_attn_implementation("sdpa")
    with pytest.raises(OptionError, match="attention 'sdpa' is not compiled"):
        prepare(Backbone(module), "compiled", "none")
    assert module.config._attn_implementation == "sdpa"


def test_what_cannot_be_traced_is_refused_and_left_as_it_was():
    module = copy.deepcopy(tiny_model("qwen2"))
    rotary = module.model.rotary_emb  # type: ignore[union-attr]
    forward = rotary.forward

    def branching(x, position_ids):
        return forward(x, position_ids) if position_ids.max() >= 0 else None

    rotary.forward = branching
    backbone = Backbone(module)
    backbone.progress = False
    with pytest.raises(OptionError, match="runtime='compiled': .*; use packed") as caught:
        prepare(backbone, "compiled", "none")
    assert "\n" not in str(caught.value)
    assert module.config._attn_implementation == "multitoken" and backbone.compiled is None
    assert not list(code_entry(backbone).parent.glob(f"*{code_entry(backbone).name}")), "nothing is left behind"


def test_the_environment_is_left_alone(backbone):
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ or "multitoken" not in os.environ["TORCHINDUCTOR_CACHE_DIR"]


@pytest.mark.slow
@pytest.mark.parametrize("quantize", ["none", "int8"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family(family, quantize):
    backbone = prepared(family, quantize=quantize)
    assert backbone.runtime == {"none": "compiled", "int8": "int8-compiled"}[quantize]
    if quantize == "none":
        for rows, size in ((1, 1), (3, 5)):
            assert_equal_modules(backbone, rows, size)
    plain = outputs(backbone, "plain", together=False)
    for together in (True, False):
        assert outputs(backbone, "probe", together) == plain


@pytest.mark.slow
@pytest.mark.parametrize("quantize", ["none", "int8"])
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3", "phi3", "gpt2", "gpt_neox", "cohere", "olmo2"])
def test_families_are_exact(family, quantize):
    check_exact(prepared(family, quantize=quantize, dtype=torch.bfloat16, exact=True), family)
