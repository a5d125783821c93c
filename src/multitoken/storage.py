"""Files that are whole or absent: what the package makes once and keeps, and journals that grow by whole lines."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError

from multitoken.errors import ModelError

FULL = (errno.ENOSPC, errno.EDQUOT)
T = TypeVar("T")


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


def read_back(path: Path, read: Callable[[Path], T]) -> T:
    """``read(path)``, for a file that `write_atomically` made; whatever is wrong with it is one line."""
    try:
        return read(path)
    except Exception as error:
        raise ModelError(f"{path}: cannot be read ({error}); delete it and it will be made again") from error


def is_full(error: Exception) -> bool:
    """Whether the disk, or the user's share of it, is full. Safetensors tells it in its message only."""
    if isinstance(error, OSError):
        return error.errno in FULL
    return any(f"os error {number})" in str(error) for number in FULL)


class LineFile:
    """A file that grows by whole lines, and can be taken up again after a kill. Raises OSError as the system does.

    Args:
        path: created if absent.
        sync: wait after every append until the disk has it.
    """

    def __init__(self, path: Path, sync: bool = False):
        self._path, self._sync, self._end = path, sync, 0
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)

    def lines(self) -> list[bytes]:
        """All that the file holds; the last line is without its end where a write was cut off."""
        return self._path.read_bytes().splitlines(keepends=True)

    def keep(self, lines: Sequence[bytes]) -> None:
        """Drop what comes after ``lines``, the first ones of the file; further lines go there."""
        self._end = sum(len(line) for line in lines)
        self._rewind()

    def append(self, text: str) -> None:
        """Write ``text``, one or more lines, behind what was kept; if that fails, the file is as it was before."""
        data = text.encode()
        written = 0
        try:
            while written < len(data):
                written += os.write(self._file, data[written:])
            if self._sync:
                os.fsync(self._file)
        except OSError:
            self._rewind()
            raise
        self._end += len(data)

    def close(self) -> None:
        os.close(self._file)

    def _rewind(self) -> None:
        os.ftruncate(self._file, self._end)
        os.lseek(self._file, self._end, os.SEEK_SET)
