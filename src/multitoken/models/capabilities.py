"""What a model can and cannot do here, decided when it is loaded.

Two questions: does the configuration name something that cannot work (state that cannot be rolled back, biases that
ignore position ids, an encoder), and, for families outside the tested list, does a small tree block give the same
logits as ordinary forwards?
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PretrainedConfig

from multitoken.errors import ModelError
from multitoken.models.backbone import Backbone, layer_windows
from multitoken.models.block import Block, causal_block

# fmt: off
TESTED_FAMILIES = frozenset([
    "llama", "mistral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "mixtral", "gemma2", "gemma3_text", "phi", "phi3",
    "olmo", "olmo2", "gpt_neox", "gpt2", "smollm3", "granite", "cohere", "stablelm", "starcoder2",
])
# fmt: on
ATTENTION_KINDS = {"full_attention", "sliding_attention"}
STATE_KINDS = {"linear_attention", "conv", "mamba", "mamba2", "hybrid", "hybrid_mamba", "recurrent"}
ALIBI_FAMILIES = {"bloom", "mpt"}
SELF_CHECK_TOLERANCE = 2e-3


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Facts about a loaded model that the engine relies on.

    Attributes:
        family: the configuration's ``model_type``.
        max_positions: longest sequence, or None.
        windows: attention windows of its layer kinds (None: full attention).
        tested: the family is in the project's test matrix (others passed the check at load).
    """

    family: str
    max_positions: int | None
    windows: tuple[int | None, ...]
    tested: bool


def refuse_unsupported(config: PretrainedConfig, name: str) -> None:
    """Raise `ModelError` for a configuration that cannot work, naming the reason. Needs no weights."""
    text = config.get_text_config()
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{name}: {config.model_type} is an encoder-decoder model; load a decoder-only causal LM")
    others = set(getattr(text, "layer_types", None) or []) - ATTENTION_KINDS
    if others:
        stateful = others & STATE_KINDS
        why = "whose state cannot be rolled back after a rejected draft" if stateful else "which are not known here"
        raise ModelError(
            f"{name}: {text.model_type} has layers of kind {', '.join(sorted(stateful or others))}, {why}; "
            "load a model whose layers are full or sliding attention"
        )
    if "local" in (getattr(text, "attention_layers", None) or []):
        raise ModelError(
            f"{name}: {text.model_type} has local attention that takes positions from the cache order and so cannot "
            "represent a tree; load a model with sliding-window or full attention"
        )
    stateful = [
        key
        for key in ("ssm_state_size", "state_size", "mamba_d_state", "conv_kernel", "lru_width")
        if hasattr(text, key)
    ]
    if stateful or "rwkv" in text.model_type or "mamba" in text.model_type:
        raise ModelError(
            f"{name}: {text.model_type} keeps a recurrent state ({', '.join(stateful) or 'by design'}) that cannot be "
            "rolled back after a rejected draft; load an attention-only model"
        )
    if text.model_type in ALIBI_FAMILIES or getattr(text, "alibi", False):
        raise ModelError(
            f"{name}: {text.model_type} uses ALiBi biases, which take positions from the cache order and so cannot "
            "represent a tree; load a model with rotary or learned positions"
        )


def decide(backbone: Backbone, name: str) -> Capabilities:
    """Capabilities of a loaded model; raises `ModelError` if a tree block does not reproduce its own forward."""
    config = backbone.config
    tested = config.model_type in TESTED_FAMILIES
    if not tested:
        with torch.inference_mode():
            _check_tree_forward(backbone, name)
    windows = tuple(sorted(set(layer_windows(config).values()), key=lambda w: w or 0))
    return Capabilities(config.model_type, backbone.max_positions, windows, tested)


def _check_tree_forward(backbone: Backbone, name: str) -> None:
    """Compare two-branch blocks behind cached prefixes of different length with ordinary forwards of the model."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, backbone.vocab_size, (9,), generator=generator).to(backbone.device)
    texts, branches = [ids[:5], ids[5:7]], ids[7:9]
    try:
        ours = _branch_logits(backbone, texts, branches)
        theirs = torch.stack(
            [
                backbone.module(input_ids=torch.cat([text, branch[None]])[None]).logits[0, -1].float()
                for text in texts
                for branch in branches
            ]
        )
    except ModelError:
        raise
    except Exception as error:
        raise cannot_run(backbone.config.model_type, name, error) from error
    gap = ((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1.0)).item()
    limit = SELF_CHECK_TOLERANCE if backbone.dtype == torch.float32 else 0.1
    if not gap <= limit:
        raise ModelError(
            f"{name}: {backbone.config.model_type} gives other logits for a tree block than for ordinary forwards "
            f"(relative gap {gap:.1e}), so drafts could not be verified; use Transformers for this model"
        )


@torch.inference_mode()
def _branch_logits(backbone: Backbone, texts: list[Tensor], branches: Tensor) -> Tensor:
    """Logits of ``branches`` [2], laid side by side behind each of ``texts``: float32 [2 * len(texts), V]."""
    cache, device = backbone.new_cache(len(texts)), backbone.device
    for text in texts:
        row, cached = cache.add_row(), len(text) - 1
        prefix = causal_block(text[None, :cached], torch.zeros(1, dtype=torch.int64, device=device), row)
        backbone.forward(prefix, cache)
        cache.commit(row, cached, [])
    visible = torch.eye(3, dtype=torch.bool, device=device)
    visible[:, 0] = True
    lengths = torch.tensor(cache.lengths, device=device)
    block = Block(
        tokens=torch.stack([torch.cat([text[-1:], branches]) for text in texts]),
        positions=lengths[:, None] + torch.tensor([0, 1, 1], device=device),
        visible=visible.expand(len(texts), 3, 3),
    )
    return backbone.project(backbone.forward(block, cache)[:, 1:]).flatten(0, 1)


def cannot_run(family: str, name: str, error: Exception) -> ModelError:
    """The error for a family whose code cannot run a block at all."""
    why = (str(error).strip().splitlines() or [""])[0][:160]
    return ModelError(
        f"{name}: {family} does not run a block with its own mask, positions and cache "
        f"({type(error).__name__}: {why}); use Transformers for this model"
    )
