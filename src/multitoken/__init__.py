"""multitoken: several tokens per forward pass from any Hugging Face causal LM, its answers unchanged.

    import multitoken
    model = multitoken.load("smollm2-135m")
    print(model.generate("Why is the sky blue?").text)

Names are resolved at first use, so that importing the package does not import PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multitoken.api import generate, load, stream
    from multitoken.engine.draft import Draft
    from multitoken.engine.method import Method, Step
    from multitoken.errors import DataError, ModelError, MultitokenError, OptionError
    from multitoken.session.language_model import LanguageModel
    from multitoken.session.output import Result

__version__ = "0.1.0"

_HOMES = {
    "load": "multitoken.api",
    "generate": "multitoken.api",
    "stream": "multitoken.api",
    "Draft": "multitoken.engine.draft",
    "Method": "multitoken.engine.method",
    "Step": "multitoken.engine.method",
    "LanguageModel": "multitoken.session.language_model",
    "Result": "multitoken.session.output",
    "MultitokenError": "multitoken.errors",
    "ModelError": "multitoken.errors",
    "OptionError": "multitoken.errors",
    "DataError": "multitoken.errors",
}

__all__ = [
    "DataError",
    "Draft",
    "LanguageModel",
    "Method",
    "ModelError",
    "MultitokenError",
    "OptionError",
    "Result",
    "Step",
    "__version__",
    "generate",
    "load",
    "stream",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
