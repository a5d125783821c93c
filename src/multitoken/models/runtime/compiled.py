"""The decoder's forward as one compiled function: what lies between the matrix products, fused.

The model is traced as it is, once, with its slots flattened into one row of any length. Products, cache and attention
stay operators (`opaque`); norms, rotary embeddings, activations, residuals and the rounding of 8-bit inputs become
loops of C++. The code is kept in the cache folder, so a model is compiled once per version, precision and machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from multitoken.errors import MultitokenError, OptionError
from multitoken.models import attention, store
from multitoken.models.backbone import Backbone
from multitoken.models.block import Block
from multitoken.models.cache import KVCache
from multitoken.models.progress import Progress
from multitoken.models.runtime import opaque
from multitoken.models.runtime.joined import JoinedPart
from multitoken.models.runtime.linear import PackedLinear, QuantisedLinear
from multitoken.storage import cache_dir

REVISION = 1  # raise it when what is compiled changes
CODE = "forward.pt2"
SAMPLE_SLOTS, MOST_SLOTS = 11, 1 << 24
# Tensors that stay in the graph (norms, biases) are copied into the code.
MOST_BYTES = 64 << 20


class Compiled:
    """A compiled decoder; computes what `Backbone` would by the modules.

    Args:
        backbone: whose layers are packed.
        path: the code.
        made: it was compiled just now.
    """

    def __init__(self, backbone: Backbone, path: Path, made: bool = False):
        self.path, self.made = path, made
        self._layers = packed_layers(backbone.decoder)
        self._attention = _attention(backbone)
        self._call: Any = torch._inductor.aoti_load_package(str(path))

    def __call__(self, embeds: Tensor, block: Block, cache: KVCache, masks: Sequence[Tensor]) -> Tensor:
        """Hidden states after the final norm, [B, Q, d], of the block that ``cache`` has begun.

        Args:
            embeds: [B, Q, d].
            masks: one per kind of layer.
        """
        flat, positions = embeds.reshape(1, -1, embeds.shape[-1]), block.positions.reshape(1, -1)
        with opaque.flying(opaque.Flight(self._layers, cache, masks, block.rows, self._attention)):
            return self._call(flat.contiguous(), positions.contiguous()).view(embeds.shape)


def compile_forward(backbone: Backbone) -> Compiled:
    """The compiled decoder of ``backbone``, from the cache folder or made now, which takes a minute.

    Raises:
        OptionError: there is no compiler, or the model cannot be compiled.
        ModelError: the cache folder cannot be written.
    """
    entry = code_entry(backbone)
    made = not store.intact(entry, REVISION)
    if made:
        _check(backbone)
        with Progress(backbone.progress, f"compiling {backbone.config.model_type}, once", 2) as bar:

            def fill(folder: Path, scratch: Path) -> None:
                program = _trace(backbone)
                bar.advance(1)
                _compile(program, folder / CODE)
                bar.advance(1)

            store.build(entry, REVISION, fill)
    return _loaded(backbone, entry, made)


def cached_forward(backbone: Backbone) -> Compiled | None:
    """The compiled decoder if its code is in the cache folder."""
    entry = code_entry(backbone)
    return _loaded(backbone, entry) if store.intact(entry, REVISION) else None


def code_entry(backbone: Backbone) -> Path:
    """Where the code is kept: by model, precision, versions and processor."""
    digest = hashlib.sha256()
    layers = packed_layers(backbone.decoder)
    kinds = [type(layer).__name__ for layer in layers]
    parts = (torch.__version__, transformers.__version__, backbone.dtype_name, kinds, _processor())
    digest.update(repr(parts).encode())
    for name, tensor in _constants(backbone, layers):
        digest.update(name.encode() + tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return cache_dir("compiled", f"{backbone.fingerprint}-{digest.hexdigest()[:16]}")


def packed_layers(parent: nn.Module) -> list[Any]:
    """The packed and quantised layers inside a module, in a fixed order."""
    found: dict[int, Any] = {}
    for module in parent.modules():
        layer = module.whole if isinstance(module, JoinedPart) else module
        if isinstance(layer, (PackedLinear, QuantisedLinear)):
            found[id(layer)] = layer
    return list(found.values())


# -- internals ------------------------------------------------------------------------------------------------------


class _Forward(nn.Module):
    """The function that is traced: embeddings [1, N, d] and positions [1, N] -> hidden states [1, N, d]."""

    def __init__(self, decoder: nn.Module, kinds: Sequence[str]):
        super().__init__()
        self.decoder, self._kinds = decoder, kinds

    def forward(self, embeds: Tensor, positions: Tensor) -> Tensor:
        # Only their widths matter: they tell the operators which mask a layer uses.
        signs = {kind: embeds.new_zeros(1, 1, 1, number + 1) for number, kind in enumerate(self._kinds)}
        masks = signs if len(signs) > 1 else next(iter(signs.values()))
        output = self.decoder(inputs_embeds=embeds, attention_mask=masks, position_ids=positions, use_cache=False)
        return output.last_hidden_state


def _loaded(backbone: Backbone, entry: Path, made: bool = False) -> Compiled:
    try:
        return Compiled(backbone, entry / CODE, made)
    except Exception as error:
        raise _refusal(f"its code in {entry} cannot be loaded ({_first_line(error)}); delete that folder") from error


def _check(backbone: Backbone) -> None:
    """Refuse what can be told before any work."""
    _attention(backbone)
    size = sum(tensor.nbytes for _, tensor in _constants(backbone, packed_layers(backbone.decoder)))
    if size > MOST_BYTES:
        raise _refusal(f"{size >> 20} MB of its weights lie outside of linear layers")
    try:
        from torch._inductor.cpp_builder import get_cpp_compiler

        get_cpp_compiler()
    except Exception as error:
        raise _refusal("no C++ compiler was found; install g++ or clang++") from error


def _trace(backbone: Backbone) -> Any:
    layers = packed_layers(backbone.decoder)
    implementation: Any = backbone.module.config._attn_implementation
    AttentionInterface.register(opaque.TRACED, opaque.traced_attention)
    AttentionMaskInterface.register(opaque.TRACED, sdpa_mask)
    slots = torch.export.Dim("slots", min=1, max=MOST_SLOTS)
    embeds = torch.zeros(1, SAMPLE_SLOTS, backbone.width, dtype=backbone.dtype)
    positions = torch.arange(SAMPLE_SLOTS)[None]
    try:
        backbone.module.set_attn_implementation(opaque.TRACED)
        with opaque.tracing(layers), torch.no_grad(), _silence():
            program = torch.export.export(
                _Forward(backbone.decoder, backbone.kinds),
                (embeds, positions),
                dynamic_shapes=({1: slots}, {1: slots}),
                strict=False,
            )
    except MultitokenError:
        raise
    except Exception as error:
        raise _refusal(_first_line(error)) from error
    finally:
        backbone.module.set_attn_implementation(implementation)
    attended = {node.args[3] for node in program.graph.nodes if node.target is torch.ops.multitoken.attend.default}
    if attended != set(range(backbone.layers)):
        raise _refusal("it has attention code of its own")
    return program


def _compile(program: Any, path: Path) -> None:
    from torch._inductor import utils
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    fresh = getattr(utils, "fresh_cache", None) or utils.fresh_inductor_cache
    # A folder that the user chose is used; PyTorch itself sets the variable to its default.
    kept = os.environ.get("TORCHINDUCTOR_CACHE_DIR") not in (None, default_cache_dir())
    try:
        with contextlib.nullcontext() if kept else fresh(), torch.no_grad(), _silence():
            torch._inductor.aoti_compile_and_package(
                program, package_path=str(path), inductor_configs={"cpp.dynamic_threads": True}
            )
    except Exception as error:
        raise _refusal(_first_line(error)) from error


def _attention(backbone: Backbone) -> opaque.Attention:
    """The function that the operators call for this model's attention."""
    implementation = backbone.module.config._attn_implementation
    if getattr(backbone.config, "attn_logit_softcapping", None) is not None:
        return attention.capped_attention
    functions = {attention.NAME: attention.grouped_attention, attention.EXACT: attention.exact_attention}
    if implementation not in functions:
        raise _refusal(f"attention {implementation!r} is not compiled")
    return functions[implementation]


def _constants(backbone: Backbone, layers: Sequence[Any]) -> list[tuple[str, Tensor]]:
    """What becomes part of the code: weights that are neither packed nor embeddings."""
    embedding = backbone.module.get_input_embeddings()
    weights = {id(weight) for weight in embedding.parameters()}
    held = [*backbone.decoder.named_parameters(), *backbone.decoder.named_buffers()]
    biases = [(f"bias {n}", layer._bias) for n, layer in enumerate(layers) if isinstance(layer, QuantisedLinear)]
    return [(name, t) for name, t in [*held, *biases] if t is not None and id(t) not in weights]


@cache
def _processor() -> tuple[str, ...]:
    """What machine code depends on: the compiler builds for the processor it runs on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        flags = platform.processor()
    return platform.system(), platform.machine(), flags


def _refusal(reason: str) -> OptionError:
    return OptionError("runtime", "compiled", f"{reason}; use packed")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:160]}"


@contextlib.contextmanager
def _silence():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
