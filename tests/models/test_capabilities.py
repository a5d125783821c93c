"""Which models are let in, and with what reason the others are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, PreTrainedModel

from multitoken.errors import ModelError
from multitoken.models import attention
from multitoken.models.backbone import Backbone
from multitoken.models.capabilities import decide, refuse_unsupported
from multitoken.models.loading import wrap
from scripted import Guesses, generate
from support import BASE, GPT, VOCAB, byte_tokenizer, reference, tiny_backbone, tiny_model

UNLISTED: dict[str, dict[str, Any]] = {
    "glm": {},
    "opt": dict(word_embed_proj_dim=64, ffn_dim=96),
    "gptj": dict(**GPT, rotary_dim=8),
    "gpt_bigcode": GPT,
    "cohere2": dict(sliding_window=12),
}


def random_model(family: str, settings: dict[str, Any], implementation: str = attention.NAME) -> PreTrainedModel:
    attention.register()
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**BASE, **settings})
    module = AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
    for parameter in module.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.2)
    return module.eval().requires_grad_(False)


@pytest.mark.parametrize(
    ("family", "settings", "reason"),
    [
        ("t5", {}, "encoder-decoder"),
        ("bart", {}, "encoder-decoder"),
        ("mamba", {}, "cannot be rolled back"),
        ("rwkv", {}, "recurrent state"),
        ("jamba", {}, "cannot be rolled back"),
        ("falcon_h1", {}, "cannot be rolled back"),
        ("recurrent_gemma", {}, "cannot be rolled back"),
        ("qwen3_next", {}, "linear_attention.*cannot be rolled back"),
        ("llama4_text", {}, "chunked_attention.*not known"),
        ("bloom", {}, "ALiBi"),
        ("mpt", {}, "ALiBi"),
        ("falcon", dict(alibi=True), "ALiBi"),
        ("gpt_neo", {}, "local attention"),
    ],
)
def test_refused_by_name_and_reason(family, settings, reason):
    config = AutoConfig.for_model(family, **settings)
    with pytest.raises(ModelError, match=f"some/model: {family}.*{reason}.*; load") as caught:
        refuse_unsupported(config, "some/model")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "mistral", "gpt2", "falcon", "opt"])
def test_attention_models_are_not_refused(family):
    refuse_unsupported(AutoConfig.for_model(family), "some/model")


@pytest.mark.parametrize("family", UNLISTED)
def test_other_families_pass_the_check_and_generate(family):
    """They are tested at load; what passes generates exactly what Transformers does."""
    # Before 5.20 GPT-J looks its attention up in a table of its own.
    module = random_model(family, UNLISTED[family], "eager" if family == "gptj" else attention.NAME)
    loaded = wrap(module, byte_tokenizer())
    assert loaded.capabilities.family == family and not loaded.capabilities.tested
    prompts = [[9, 40, 7], list(range(100, 120))]
    expected = [reference(module, prompt, 10) for prompt in prompts]
    truth = {tuple(p): out for p, out in zip(prompts, expected, strict=True)}
    rows = generate(loaded.backbone, prompts, Guesses(VOCAB, loaded.backbone.width, truth), max_new_tokens=10, chunk=9)
    assert [row.output for row in rows] == expected
    assert len({token for output in expected for token in output}) > 3


def test_facts():
    found = decide(tiny_backbone("gemma3_text"), "x")
    assert (found.family, found.max_positions, found.windows, found.tested) == ("gemma3_text", 256, (None, 12), True)
    assert decide(tiny_backbone("llama"), "x").windows == (None,)


def ignores_masks(module: nn.Module, query, key, value, attention_mask, scaling=None, **kwargs):
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    causal = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril(key.shape[2] - query.shape[2])
    output = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=causal, scale=scaling)
    return output.transpose(1, 2).contiguous(), None


def test_a_model_that_ignores_masks_is_refused():
    """Its ordinary forwards are right; only a tree shows what is wrong."""
    module = random_model("glm", {})
    AttentionInterface.register(attention.NAME, ignores_masks)
    try:
        with pytest.raises(ModelError, match="x: glm gives other logits for a tree block"):
            wrap(module, byte_tokenizer(), name="x")
    finally:
        attention.register()
    wrap(module, byte_tokenizer(), name="x")


def test_a_model_that_looks_both_ways_is_refused():
    with pytest.raises(ModelError, match="bert gives other logits"):
        wrap(random_model("bert", {}), byte_tokenizer(), name="x")


def test_a_model_whose_code_takes_no_block_is_refused():
    with pytest.raises(ModelError, match=r"x: openai-gpt does not run a block.*; use Transformers"):
        wrap(random_model("openai-gpt", GPT), byte_tokenizer(), name="x")


def test_other_attention_kernels_are_refused():
    module = random_model("llama", {}, "flex_attention")
    with pytest.raises(ModelError, match=r"flex_attention.*attn_implementation='sdpa' or 'eager'"):
        wrap(module, byte_tokenizer(), name="x")


def test_end_tokens_are_a_union():
    loaded = wrap(tiny_model(), byte_tokenizer())
    assert loaded.eos == {2}
    module = random_model("llama", {"eos_token_id": [5, 6]})
    assert module.generation_config is not None
    module.generation_config.eos_token_id = 7
    assert wrap(module, byte_tokenizer()).eos == {2, 5, 6, 7}


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_other_implementations_give_the_same_text(implementation):
    module, prompts = random_model("llama", {}, implementation), [[9, 40, 7], list(range(100, 120))]
    rows = generate(Backbone(module), prompts, Guesses(VOCAB, 64), max_new_tokens=10)
    assert [row.output for row in rows] == [reference(module, prompt, 10) for prompt in prompts]
