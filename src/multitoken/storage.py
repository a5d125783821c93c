"""Where the package keeps what it makes once: fetched models, tables, calibrations."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from multitoken.errors import ModelError


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
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)
        raise ModelError(
            f"cannot write {path}: {reason}; free some space or set MULTITOKEN_CACHE to another folder"
        ) from error
    finally:
        part.unlink(missing_ok=True)
