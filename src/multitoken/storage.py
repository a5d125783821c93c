"""Where the package keeps what it makes once: fetched models, tables, calibrations."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir(*parts: str) -> Path:
    """Folder under ``MULTITOKEN_CACHE`` (default ``~/.cache/multitoken``); not created."""
    root = os.environ.get("MULTITOKEN_CACHE") or "~/.cache/multitoken"
    return Path(root).expanduser().joinpath(*parts)
