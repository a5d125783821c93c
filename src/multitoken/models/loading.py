"""Loading a model by hub id, local folder, GGUF file, or bundled name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from multitoken.errors import ModelError, OptionError
from multitoken.models import attention
from multitoken.models.backbone import Backbone
from multitoken.models.bundled import bundled_names, ensure_bundled
from multitoken.models.capabilities import Capabilities, cannot_run, decide, refuse_unsupported
from multitoken.models.gguf import convert_gguf
from multitoken.models.runtime.exact import check_exact, pair_rows
from multitoken.models.runtime.prepare import check_options, prepare, uncompile

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ATTENTION = ("auto", attention.NAME, "sdpa", "eager")


@dataclass(slots=True)
class LoadedModel:
    """A model ready for the engine.

    Attributes:
        name: what the user asked for.
        path: hub id or folder that it was read from.
        eos: every token id that ends a text, from tokenizer, config and generation config.
    """

    name: str
    path: str
    backbone: Backbone
    tokenizer: PreTrainedTokenizerBase
    capabilities: Capabilities
    eos: frozenset[int]

    @property
    def dtype(self) -> str:
        return self.backbone.dtype_name


def load_model(
    name: str,
    *,
    dtype: str = "float32",
    device: str = "auto",
    attn: str = "auto",
    runtime: str = "auto",
    quantize: str = "none",
    exact: bool = False,
    trust_remote_code: bool = False,
    progress: bool = True,
) -> LoadedModel:
    """Load tokenizer and weights and decide what the model can do.

    Args:
        name: bundled name, ``.gguf`` file, local folder, or hub id.
        dtype: ``float32``, ``bfloat16``, ``float16``, or ``auto`` (the checkpoint's own).
        device: ``auto`` (CUDA where there is one, else CPU), or a torch device.
        attn: ``auto``, ``multitoken``, ``sdpa`` or ``eager``.
        runtime: ``auto``, ``packed`` (weights laid out for the CPU's matrix kernels: faster, not trainable),
            ``compiled`` (packed, and what lies between the products compiled to fewer operations: faster still; takes
            a minute once) or ``eager`` (the module as Transformers made it). ``auto`` never compiles, but uses
            compiled code that is there.
        quantize: ``none``, or ``int8``: 8-bit weights and activations. Output is lossless with respect to that model.
        exact: give each slot the same bits in any block, so that drafting changes no token in any precision. Needs a
            packed or quantised runtime.
        trust_remote_code: run Python code that comes with a hub model.
        progress: show progress bars, those of methods that prepare for the model included.

    Raises:
        ModelError: the model cannot be found or used; the message says why.
        OptionError: an option has an unknown value.
    """
    target = _torch_device(device)
    torch_dtype = _torch_dtype(dtype)
    if attn not in ATTENTION:
        raise OptionError("attn", attn, f"use one of {', '.join(ATTENTION)}")
    check_options(runtime, quantize)
    path = resolve(name, progress=progress)
    with _reading(name), quiet():
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    refuse_unsupported(config, name)
    implementation = _implementation(attn, config, exact)
    attention.register()
    with _reading(name), quiet():
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)

    def read(implementation: str) -> LoadedModel:
        with _reading(name), quiet():
            module = _weights(name, path, torch_dtype, implementation, trust_remote_code)
        loaded = wrap(module.to(target), tokenizer, name=name, path=path)  # type: ignore[arg-type]
        loaded.backbone.progress = progress
        prepare(loaded.backbone, runtime, quantize)
        if exact:
            prove_exact(loaded.backbone, name, runtime)
        return loaded

    try:
        return read(implementation)
    except ModelError:
        if attn != "auto" or exact or implementation == "eager":
            raise
    # Families with attention code of their own run it as "eager" only. What is broken fails again, with its reason.
    return read("eager")


def prove_exact(backbone: Backbone, name: str, runtime: str) -> None:
    """`check_exact`; where ``auto`` found compiled code that is not exact, the modules take over."""
    pair_rows(backbone)
    try:
        check_exact(backbone, name)
    except OptionError:
        if backbone.compiled is None or runtime != "auto":
            raise
        uncompile(backbone)
        check_exact(backbone, name)


def _weights(
    name: str, path: str, dtype: torch.dtype | str, implementation: str, trust_remote_code: bool
) -> PreTrainedModel:
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        path,
        dtype=dtype,
        attn_implementation=implementation,
        trust_remote_code=trust_remote_code,
        use_safetensors=True,
        output_loading_info=True,
    )
    module, found = loaded
    # Transformers would fill these with random numbers and go on.
    if absent := sorted(found["missing_keys"]) or sorted(map(str, found["mismatched_keys"])):
        raise ModelError(f"{name}: the checkpoint lacks {len(absent)} weights ({absent[0]}, ...); fetch it again")
    return module


def wrap(module: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, name: str = "", path: str = "") -> LoadedModel:
    """Make a Hugging Face model that is already in memory ready for the engine; its layers stay as they are."""
    name = name or getattr(module.config, "name_or_path", "") or type(module).__name__
    refuse_unsupported(module.config, name)
    implementation = module.config._attn_implementation
    if implementation not in (*ATTENTION, attention.EXACT):
        raise ModelError(
            f"{name}: its attention is {implementation!r}, which takes no mask of a tree; "
            "load it with attn_implementation='sdpa' or 'eager'"
        )
    module.eval().requires_grad_(False)
    try:
        backbone = Backbone(module)
    except ModelError:
        raise
    except Exception as error:
        raise cannot_run(module.config.model_type, name, error) from error
    capabilities = decide(backbone, name)
    return LoadedModel(name, path or name, backbone, tokenizer, capabilities, eos_ids(module, tokenizer))


def resolve(name: str, *, progress: bool = True) -> str:
    """Folder or hub id that ``name`` stands for; bundled and GGUF models are fetched and converted at need."""
    if name in bundled_names():
        return str(ensure_bundled(name, progress=progress))
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelError(f"{name}: no such file; give the path of a .gguf file")
        return str(convert_gguf(path, progress=progress))
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"{name}: the folder has no config.json; give the folder of a Transformers checkpoint")
        return str(path)
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ModelError(f"{name}: no such folder; give a checkpoint folder, a .gguf file, or a hub id")
    return name


def eos_ids(module: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Union of the end-of-sequence ids of tokenizer, config and generation config."""
    found: set[int] = set()
    generation = getattr(module, "generation_config", None)
    for holder in (tokenizer, module.config.get_text_config(), generation):
        ids = getattr(holder, "eos_token_id", None)
        if ids is not None:
            found.update(ids if isinstance(ids, (list, tuple)) else [ids])
    return frozenset(int(token) for token in found)


def _implementation(attn: str, config: PretrainedConfig, exact: bool) -> str:
    text = config.get_text_config()
    # Soft-capped scores are known to these families' own eager code only.
    own_scores = getattr(text, "attn_logit_softcapping", None) is not None
    if exact and (own_scores or attn not in ("auto", attention.NAME)):
        why = f"{text.model_type} soft-caps its scores" if own_scores else f"attn={attn} sums in another order"
        raise OptionError("exact", True, f"{why}; leave it out")
    if exact:
        return attention.EXACT
    if attn == "auto":
        return "eager" if own_scores else attention.NAME
    if own_scores and attn != "eager":
        raise OptionError("attn", attn, f"{text.model_type} soft-caps its attention scores; use auto or eager")
    return attn


def _torch_device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise OptionError("device", device, "use auto, cpu, cuda, cuda:N, or mps") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise OptionError("device", device, "no CUDA device is available here; use cpu")
    return found


def _torch_dtype(dtype: str) -> torch.dtype | str:
    if dtype == "auto":
        return "auto"
    if dtype not in DTYPES:
        raise OptionError("dtype", dtype, f"use one of auto, {', '.join(DTYPES)}")
    return DTYPES[dtype]


@contextlib.contextmanager
def _reading(name: str) -> Iterator[None]:
    """Turn what Transformers raises for a missing or broken checkpoint into one line."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if Path(name).is_dir():
            raise ModelError(f"cannot load model {name!r}: {first[:200]}; copy or download its files again") from error
        bundled = ", ".join(bundled_names())
        raise ModelError(
            f"cannot load model {name!r}: {first[:200]}; use a bundled name ({bundled}), a checkpoint folder, "
            "a .gguf file, or a hub id that can be reached"
        ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence Transformers' own progress bars and warnings; errors still come through."""
    level = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
