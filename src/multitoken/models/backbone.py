"""The backbone: one forward of a Hugging Face causal LM over a block, and the projection to logits.

The decoder stack and the vocabulary projection are called apart, so that only the needed slots are projected.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from multitoken.models import attention
from multitoken.models.adapter import Adapter
from multitoken.models.block import Block, causal_block
from multitoken.models.cache import KVCache, LayerShape
from multitoken.models.compat import cache_argument

SINGLE_KIND = "single"
UNIDENTIFYING = {"_name_or_path", "transformers_version", "dtype", "torch_dtype"}


class Backbone:
    """A causal LM seen as two functions: block -> hidden states, hidden states -> logits.

    Args:
        module: the Hugging Face model, in eval mode, loaded with one of the attention implementations
            ``multitoken``, ``sdpa`` or ``eager``.
    """

    def __init__(self, module: PreTrainedModel):
        self.module = module
        self.runtime = "eager"  # what `multitoken.models.runtime.prepare` made of it
        self.compiled: Any = None  # a `multitoken.models.runtime.compiled.Compiled`, in place of the decoder's modules
        self.progress = True  # methods may draw bars while they prepare for it
        self.refresh()
        self.config = module.config.get_text_config()
        self._embedding: nn.Module = module.get_input_embeddings()
        self._cache_argument = cache_argument(self.decoder)
        self._kinds = layer_windows(self.config)
        self._softcap = getattr(self.config, "final_logit_softcapping", None)
        self._scale = logit_scale(self.config)
        self.block: Block | None = None  # the block in flight, for adapters that act on some of its slots
        self.adapters: dict[str, Adapter] = {}  # those attached, by where they were read from
        self._groups = 1
        self._shapes = self._probe_shapes()
        self._groups = self._mask_groups()

    def refresh(self) -> None:
        """Look the parts up again after layers of the module were replaced."""
        self.decoder: nn.Module = self.module.get_decoder()
        head = self.module.get_output_embeddings()
        if head is None:
            raise TypeError(f"{type(self.module).__name__} has no output embeddings")
        self.head: nn.Module = head

    @property
    def device(self) -> torch.device:
        return self._embedding.weight.device  # type: ignore[union-attr]

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding.weight.dtype  # type: ignore[union-attr]

    @property
    def dtype_name(self) -> str:
        """As users write it: ``float32``, ``bfloat16``."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def width(self) -> int:
        """Width d of hidden states and embeddings."""
        return self._embedding.weight.shape[1]  # type: ignore[union-attr]

    @property
    def vocab_size(self) -> int:
        return self._embedding.weight.shape[0]  # type: ignore[union-attr]

    @property
    def layers(self) -> int:
        """Layers that keep keys and values."""
        return len(self._shapes)

    @property
    def kinds(self) -> list[str]:
        """Kinds of attention of its layers, each with a mask of its own."""
        return list(self._kinds)

    @property
    def quantize(self) -> str:
        """How its weights are quantised: ``none`` or ``int8``."""
        return "int8" if self.runtime.startswith("int8") else "none"

    @property
    def bos(self) -> int | None:
        """Id that begins a text, where the config names one."""
        return getattr(self.config, "bos_token_id", None)

    @cached_property
    def fingerprint(self) -> str:
        """Short hash of configuration and weights (a sample of every tensor), to key what is made once per model.

        The same for every dtype that the model is loaded in.
        """
        config = {key: value for key, value in self.config.to_dict().items() if key not in UNIDENTIFYING}
        digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
        for name, tensor in sorted(self.module.state_dict().items()):
            flat = tensor.detach().flatten()
            sample = flat[:: max(1, flat.numel() // 64)][:64]
            digest.update(f"{name}{tuple(tensor.shape)}".encode())
            digest.update(sample.bfloat16().float().cpu().numpy().tobytes())
        return f"{self.config.model_type}-{digest.hexdigest()[:16]}"

    @property
    def max_positions(self) -> int | None:
        """Positions that the model was made for; None where the config sets no limit."""
        return getattr(self.config, "max_position_embeddings", None)

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings as the model sees them (some models scale them): int64 [...] -> [..., d]."""
        return self._embedding(tokens)

    def new_cache(self, rows: int = 1) -> KVCache:
        """An empty cache with room for ``rows`` rows."""
        return KVCache(self._shapes, self.dtype, self.device, rows)

    @torch.inference_mode()
    def forward(self, block: Block, cache: KVCache) -> Tensor:
        """Run ``block`` and write it into ``cache`` behind the committed prefixes.

        Returns the hidden states after the final norm, [B, Q, d].
        """
        span = cache.begin(block.first_row, block.rows, block.size)
        lengths = cache.lengths[block.first_row : block.first_row + block.rows]
        masks = self._masks(block, lengths, span)
        # Adapters hook into the modules.
        if self.compiled is None or self.adapters or block.adapted:
            return self._run(block, cache, masks)
        each = [masks] if isinstance(masks, Tensor) else [masks[kind] for kind in self.kinds]
        return self.compiled(self._inputs(block), block, cache, each)

    @contextmanager
    def by_modules(self) -> Iterator[None]:
        """While open, forwards go through the modules, hooks included, even where a compiled function is there."""
        held, self.compiled = self.compiled, None
        try:
            yield
        finally:
            self.compiled = held

    def read(self, block: Block) -> tuple[Tensor, ReadText]:
        """Hidden states of a block without a prefix, [B, Q, d], and what `trace` needs of it. No gradients."""
        text = ReadText(block.positions)
        with torch.no_grad():
            return self._run(block, text, self._masks(block, [0] * block.rows, block.size)), text

    def trace(self, block: Block, text: ReadText | None = None) -> Tensor:
        """Hidden states of a block, [B, Q, d], with gradients and without a cache.

        Args:
            text: what is in front of the block. ``block.visible``, [B, Q, T + Q], then says who sees what of it.
        """
        if text is None:
            return self._run(block, None, self._masks(block, [0] * block.rows, block.size))
        keys = torch.cat([text.positions, block.positions], 1)
        windows = set(self._kinds.values())
        masks = attention.additive_masks(block.visible, block.positions, keys, self.dtype, self._groups, windows)
        return self._run(block, text, self._by_kind(masks))

    @torch.inference_mode()
    def project(self, hidden: Tensor) -> Tensor:
        """Logits of hidden states: [..., d] -> float32 [..., V]."""
        return self.logits(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """The same with gradients."""
        return self.finish(self.head(hidden))

    def finish(self, logits: Tensor) -> Tensor:
        """What the model does to the products with its head, whole or in part: float32, of the same shape."""
        if self._scale != 1.0:
            logits = logits * self._scale
        if self._softcap is not None:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits.float()

    @torch.inference_mode()
    def head_rows(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The head's weight and bias for ``tokens`` (int64 [S]) only: [S, d] and [S], whatever layout it is kept in."""
        weight, bias = getattr(self.head, "weight", None), getattr(self.head, "bias", None)
        if isinstance(weight, Tensor):
            rows = weight[tokens]
            return rows, rows.new_zeros(len(rows)) if bias is None else bias[tokens]
        # A packed head shows its weights by what it makes of unit vectors.
        offset = self.head(torch.zeros(1, self.width, dtype=self.dtype, device=self.device))[0, tokens]
        units = torch.eye(self.width, dtype=self.dtype, device=self.device).split(64)
        return torch.cat([self.head(part)[:, tokens] - offset for part in units]).T.contiguous(), offset

    # -- internals --------------------------------------------------------------------------------------------------

    def _run(self, block: Block, cache: KVCache | None, masks: Tensor | dict[str, Tensor]) -> Tensor:
        self.block = block
        output = self.decoder(
            inputs_embeds=self._inputs(block),
            attention_mask=masks,
            position_ids=block.positions,
            use_cache=cache is not None,
            **{self._cache_argument: cache},
        )
        self.block = None
        return output.last_hidden_state

    def _inputs(self, block: Block) -> Tensor:
        embeds = self.embed(block.tokens)
        if block.vectors is not None and block.vector_index is not None:
            flat = embeds.view(-1, embeds.shape[-1])
            flat[block.vector_index] = block.vectors.to(flat.dtype)
        return embeds

    def _masks(self, block: Block, lengths: list[int], span: int) -> Tensor | dict[str, Tensor]:
        windows = set(self._kinds.values())
        return self._by_kind(attention.block_masks(block, lengths, span, self.dtype, self._groups, windows))

    def _by_kind(self, masks: dict[int | None, Tensor]) -> Tensor | dict[str, Tensor]:
        """The masks as the decoder takes them: one, or one per kind of layer."""
        if len(self._kinds) == 1:
            return next(iter(masks.values()))
        return {kind: masks[window] for kind, window in self._kinds.items()}

    def _mask_groups(self) -> int:
        """Query heads per key head that the masks are repeated for; 1 where the attention does not fold heads."""
        key_heads = {shape.heads for shape in self._shapes}
        if self.module.config._attn_implementation not in attention.OURS or len(key_heads) != 1:
            return 1
        return self.config.num_attention_heads // key_heads.pop()

    def _probe_shapes(self) -> list[LayerShape]:
        """Learn each layer's cache shape from a forward of one token, since configs name it in many ways."""
        token = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        _, text = self.read(causal_block(token, token[:, 0]))
        pairs = [(text.keys[layer], text.values[layer]) for layer in range(len(text.keys))]
        return [LayerShape(keys.shape[1], keys.shape[-1], values.shape[-1]) for keys, values in pairs]


class ReadText(KVCache):
    """Keys and values of a block that was read once, for traces of blocks behind it.

    Attributes:
        positions: of its slots, int64 [B, T].
        keys, values: per layer, [B, H, T, D].
    """

    def __init__(self, positions: Tensor):
        self.positions = positions
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        super().__init__([], torch.float32, positions.device)

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        if layer_idx not in self.keys:
            self.keys[layer_idx], self.values[layer_idx] = key_states, value_states
            return key_states, value_states
        keys = torch.cat([self.keys[layer_idx], key_states], 2)
        return keys, torch.cat([self.values[layer_idx], value_states], 2)


def layer_windows(config) -> dict[str, int | None]:
    """Attention kinds of a model's layers: kind -> sliding window (None: full attention).

    A model with one kind of layer is given under the key ``single``.
    """
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    kinds = set(getattr(config, "layer_types", None) or [])
    if not kinds:
        return {SINGLE_KIND: window}
    named = {kind: window if kind == "sliding_attention" else None for kind in sorted(kinds)}
    return named if len(named) > 1 else {SINGLE_KIND: next(iter(named.values()))}


def logit_scale(config) -> float:
    """Factor that the model applies to its logits after the projection (Granite divides, Cohere multiplies)."""
    if (divisor := getattr(config, "logits_scaling", None)) is not None:
        return 1.0 / divisor
    return getattr(config, "logit_scale", None) or 1.0
