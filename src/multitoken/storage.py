"""Where the package keeps what it makes once: fetched models, tables, calibrations."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from multitoken.errors import ModelError

FULL = (errno.ENOSPC, errno.EDQUOT)


def cache_dir(*parts: str) -> Path:
    """Folder under ``MULTITOKEN_CACHE`` (default ``~/.cache/multitoken``); not created."""
    root = os.environ.get("MULTITOKEN_CACHE") or "~/.cache/multitoken"
    return Path(root).expanduser().joinpath(*parts)


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file, then move it to ``path``; on failure nothing is left behind."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(part)
        os.replace(part, path)
    except (OSError, SafetensorError) as error:
        reason = "the disk is full" if is_full(error) else getattr(error, "strerror", None) or str(error)
        raise ModelError(
            f"cannot write {path}: {reason}; free some space or set MULTITOKEN_CACHE to another folder"
        ) from error
    finally:
        part.unlink(missing_ok=True)


def is_full(error: Exception) -> bool:
    """Whether the disk, or the user's share of it, is full. Safetensors tells it in its message only."""
    if isinstance(error, OSError):
        return error.errno in FULL
    return any(f"os error {number})" in str(error) for number in FULL)
