"""The public Python API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from multitoken.models.loading import load_model
from multitoken.session.language_model import LanguageModel
from multitoken.session.output import Result
from multitoken.session.prompts import Prompt
from multitoken.session.session import Chunk

DEFAULT_MODEL = "smollm2-135m"


def load(
    name: str = DEFAULT_MODEL,
    *,
    dtype: str = "float32",
    device: str = "auto",
    attn: str = "auto",
    runtime: str = "auto",
    quantize: str = "none",
    exact: bool = False,
    trust_remote_code: bool = False,
    progress: bool = True,
) -> LanguageModel:
    """Load a model by bundled name, checkpoint folder, ``.gguf`` file or hub id.

    Arguments and errors are those of `multitoken.models.loading.load_model`.
    """
    loaded = load_model(
        name,
        dtype=dtype,
        device=device,
        attn=attn,
        runtime=runtime,
        quantize=quantize,
        exact=exact,
        trust_remote_code=trust_remote_code,
        progress=progress,
    )
    return LanguageModel(loaded)


@cache
def _default_model() -> LanguageModel:
    return load()


def generate(prompt: Prompt | Sequence[Prompt], method: str = "auto", **options: Any) -> Result | list[Result]:
    """`LanguageModel.generate` on the default model, which is loaded at the first call."""
    return _default_model().generate(prompt, method, **options)


def stream(prompt: Prompt, method: str = "auto", **options: Any) -> Iterator[Chunk]:
    """`LanguageModel.stream` on the default model, which is loaded at the first call."""
    return _default_model().stream(prompt, method, **options)
