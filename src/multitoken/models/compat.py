"""The differences between Transformers releases, in one place.

Release 5.17 renamed the forward argument ``past_key_values`` to ``cache`` model by model, so the name is read from the
signature of the model at hand rather than from the version.
"""

from __future__ import annotations

import inspect

from torch import nn

OLDEST = "5.16.1"


def cache_argument(decoder: nn.Module) -> str:
    """Name of the forward argument that takes the cache: ``cache`` or ``past_key_values``."""
    parameters = inspect.signature(type(decoder).forward).parameters
    for name in ("cache", "past_key_values"):
        if name in parameters:
            return name
    raise TypeError(f"{type(decoder).__name__}.forward takes neither 'cache' nor 'past_key_values'")
