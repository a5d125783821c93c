"""Small models and a byte tokenizer for tests: everything runs in milliseconds, without files."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from multitoken.models import attention
from multitoken.models.backbone import Backbone

VOCAB = 262
SPECIALS = ["<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>"]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|user|>{{ m['role'] }}: {{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
BASE: dict[str, Any] = dict(
    vocab_size=VOCAB,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=256,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    tie_word_embeddings=False,  # tied random weights repeat their input forever
)
GPT: dict[str, Any] = dict(n_embd=64, n_layer=3, n_head=4, n_positions=256)
MOE: dict[str, Any] = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
SLIDING_MIX = ["sliding_attention", "full_attention", "sliding_attention"]
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": dict(sliding_window=12),
    "qwen2": {},
    "qwen3": {},
    "gemma2": dict(sliding_window=12),
    "gemma3_text": dict(sliding_window=12, layer_types=SLIDING_MIX),
    "phi": {},
    "phi3": dict(sliding_window=12),
    "olmo": {},
    "olmo2": {},
    "gpt_neox": {},
    "gpt2": GPT,
    "mixtral": dict(num_local_experts=4),
    "qwen2_moe": dict(**MOE, shared_expert_intermediate_size=32),
    "qwen3_moe": MOE,
    "granite": dict(logits_scaling=3.0),
    "cohere": {},
    "stablelm": {},
    "starcoder2": {},
    "smollm3": {},
}


@cache
def tiny_model(family: str = "llama", seed: int = 0) -> PreTrainedModel:
    """A random-weight model of a family, 3 layers of width 64, float32, with weights large enough to vary its text."""
    attention.register()
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **{**BASE, **FAMILIES[family]})
    implementation = "eager" if family == "gemma2" else attention.NAME
    module = AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        if parameter.dim() > 1:
            scale = 1.0 if "embed" in name or "wte" in name else 0.2
            parameter.data.normal_(0, scale, generator=generator)
    return module.requires_grad_(False)


@cache
def tiny_backbone(family: str = "llama", seed: int = 0) -> Backbone:
    return Backbone(tiny_model(family, seed))


def reference(module: PreTrainedModel, prompt: list[int], tokens: int, **options: Any) -> list[int]:
    """What Transformers' own greedy ``generate`` writes after ``prompt``, end-of-sequence ignored."""
    held = module.config._attn_implementation or "eager"
    module.set_attn_implementation("eager")
    options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, **options}
    output = module.generate(torch.tensor([prompt]), max_new_tokens=tokens, **options)  # type: ignore[operator]
    module.set_attn_implementation(held)
    return output[0, len(prompt) :].tolist()


@cache
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One id per byte (6 to 261) behind six special tokens; any text round-trips, characters may span ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate(SPECIALS + alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=SPECIALS[3:],
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast
