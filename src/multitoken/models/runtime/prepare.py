"""Choosing a runtime for a loaded model, and proof that it computes the same function."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from multitoken.errors import ModelError, OptionError
from multitoken.models.backbone import Backbone
from multitoken.models.block import causal_block
from multitoken.models.runtime.compiled import cached_forward, compile_forward
from multitoken.models.runtime.joined import Make, join
from multitoken.models.runtime.linear import PackedLinear, QuantisedLinear, can_pack, can_quantise

RUNTIMES = ("auto", "eager", "packed", "compiled")
QUANTIZE = ("none", "int8")
COMPILED = {"packed": "compiled", "int8": "int8-compiled"}  # what compiling makes of a runtime
CHECK_TOKENS = 24
TOLERANCE = {torch.float32: 1e-3}
HALF_TOLERANCE = 0.1
INT8_AGREEMENT = 0.98  # cosine of the logits before and after; a broken kernel gives noise


def check_options(runtime: str, quantize: str) -> None:
    """Raise `OptionError` for a runtime or a quantisation that does not exist."""
    if runtime not in RUNTIMES:
        raise OptionError("runtime", runtime, f"use one of {', '.join(RUNTIMES)}")
    if quantize not in QUANTIZE:
        raise OptionError("quantize", quantize, f"use one of {', '.join(QUANTIZE)}")
    if quantize != "none" and runtime == "eager":
        raise OptionError("quantize", quantize, "has no eager runtime; use runtime auto")


def prepare(backbone: Backbone, runtime: str, quantize: str) -> None:
    """Give ``backbone`` its runtime, in place; it then says which in ``backbone.runtime``.

    ``auto`` packs on a CPU whose kernels allow it, runs compiled code where that is in the cache already, and leaves
    everything else as it is. Layers that are not plain ``nn.Linear`` (or GPT-2's ``Conv1D``) stay untouched.

    Raises:
        OptionError: the options cannot be had on this device or with this model.
        ModelError: the quantised model gives other answers altogether.
    """
    check_options(runtime, quantize)
    if runtime == "eager":
        return
    backbone.fingerprint  # noqa: B018 - of the weights as they were loaded
    usable = backbone.device.type == "cpu" and (can_quantise() if quantize != "none" else can_pack())
    if not usable:
        if quantize != "none" or runtime != "auto":
            option, value = ("quantize", quantize) if quantize != "none" else ("runtime", runtime)
            raise OptionError(option, value, f"has no kernels on {backbone.device} in this build; leave it out")
        return
    make = QuantisedLinear if quantize != "none" else PackedLinear
    before = _sample(backbone)
    undo = _replace(backbone, make)
    complaint = _complaint(before, backbone, quantize)
    if complaint is None:
        backbone.runtime = quantize if quantize != "none" else "packed"
        undo.clear()  # or the module's own weights would stay in memory beside the packed ones
        if runtime in ("auto", "compiled"):
            _compile(backbone, before, runtime, quantize)
        return
    for parent, name, layer in undo:
        setattr(parent, name, layer)
    backbone.refresh()
    if quantize != "none" or runtime != "auto":
        option = f"quantize={quantize}" if quantize != "none" else f"runtime={runtime}"
        raise ModelError(f"{backbone.config.model_type} does not run with {option}: {complaint}; leave it out")


def uncompile(backbone: Backbone) -> None:
    """Go back to the packed or quantised modules."""
    backbone.compiled = None
    backbone.runtime = next((name for name, made in COMPILED.items() if made == backbone.runtime), backbone.runtime)


def _compile(backbone: Backbone, before: Tensor, runtime: str, quantize: str) -> None:
    """Put compiled code before the packed modules; ``auto`` takes what the cache folder holds, if it is in order."""
    try:
        backbone.compiled = compile_forward(backbone) if runtime == "compiled" else cached_forward(backbone)
    except OptionError:
        if runtime == "compiled":
            raise
    if backbone.compiled is None:
        return
    complaint = _complaint(before, backbone, quantize)
    if complaint is None:
        backbone.runtime = COMPILED[backbone.runtime]
        return
    uncompile(backbone)
    if runtime == "compiled":
        raise ModelError(f"{backbone.config.model_type} does not run with runtime=compiled: {complaint}; use packed")


def _replace(backbone: Backbone, make: Make) -> list[tuple[nn.Module, str, nn.Module]]:
    """Replace what can be replaced; returns what stood where."""
    undo: list[tuple[nn.Module, str, nn.Module]] = []

    def put(parent: nn.Module, name: str, layer: nn.Module) -> None:
        undo.append((parent, name, getattr(parent, name)))
        setattr(parent, name, layer)

    for parent in list(backbone.module.modules()):
        for name, layer in join(parent, make).items():
            put(parent, name, layer)
        for name, layer in list(parent.named_children()):
            if type(layer) is nn.Linear:
                put(parent, name, make(layer.weight, layer.bias))
            elif type(layer) is Conv1D:  # GPT-2's linear layer, which holds its weight the other way round
                put(parent, name, make(layer.weight.t(), layer.bias))
    backbone.refresh()
    return undo


@torch.inference_mode()
def _sample(backbone: Backbone) -> Tensor:
    """Logits of a short text, [T, V]."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, backbone.vocab_size, (1, CHECK_TOKENS), generator=generator)
    cache = backbone.new_cache(1)
    cache.add_row()
    return backbone.project(backbone.forward(causal_block(ids, torch.zeros(1, dtype=torch.int64)), cache))[0]


def _complaint(before: Tensor, backbone: Backbone, quantize: str) -> str | None:
    """Why the replaced layers cannot stay; None if all is well."""
    try:
        after = _sample(backbone)
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0][:160]
        return f"{type(error).__name__}: {first}"
    if quantize != "none":
        agreement = nn.functional.cosine_similarity(before, after, dim=-1).median().item()
        return None if agreement >= INT8_AGREEMENT else f"its logits change direction (cosine {agreement:.3f})"
    gap = ((after - before).abs().max() / before.abs().max().clamp(min=1.0)).item()
    limit = TOLERANCE.get(backbone.dtype, HALF_TOLERANCE)
    return None if gap <= limit else f"its logits change (relative gap {gap:.1e})"
