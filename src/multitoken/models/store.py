"""Entries of the cache folder that are either whole or absent.

An entry is a folder. It is filled in a staging folder beside its final place and moved there in one step, under
a lock, with a manifest of sizes and hashes written last. Knows nothing about models.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from multitoken.errors import ModelError

ENV = "MULTITOKEN_CACHE"
MANIFEST = "manifest.json"
_CHUNK = 1 << 20
_FULL_ERRNOS = {errno.ENOSPC, errno.EDQUOT}


def sha256(path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """Hex digest of a file, read in pieces; ``on_bytes`` hears how many bytes each piece had."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
            if on_bytes:
                on_bytes(len(piece))
    return digest.hexdigest()


def intact(entry: Path, revision: int) -> bool:
    """True if every file of the entry is as its manifest says, and the manifest is of this ``revision``.

    Sizes are always compared. A file whose modification time is not the recorded one (edited, copied, restored)
    is hashed as well, so that the check of an untouched entry costs only a few ``stat`` calls.
    """
    try:
        manifest = json.loads((entry / MANIFEST).read_text("utf-8"))
        if manifest["revision"] != revision:
            return False
        files: dict[str, dict[str, Any]] = manifest["files"]
        touched = False
        for name, wanted in files.items():
            found = (entry / name).stat()
            if found.st_size != wanted["size"]:
                return False
            if found.st_mtime_ns != wanted["mtime_ns"]:
                if sha256(entry / name) != wanted["sha256"]:
                    return False
                wanted["mtime_ns"] = found.st_mtime_ns
                touched = True
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    if touched:
        _remember(entry, manifest)
    return True


def build(entry: Path, revision: int, fill: Callable[[Path, Path], None]) -> Path:
    """Return ``entry``, made by ``fill(folder, scratch)`` unless an intact one is there.

    ``fill`` writes the entry's files into ``folder``; ``scratch`` is a folder on the same disk that is thrown away.
    Safe against other processes that want the same entry, against being killed half-way (the next call clears what
    was left), and against a full disk (nothing is left behind).

    Raises:
        ModelError: the folder cannot be written, or the disk is full.
    """
    if intact(entry, revision):
        return entry
    with disk_errors(entry.parent):
        entry.parent.mkdir(parents=True, exist_ok=True)
        with _lock(entry):
            if not intact(entry, revision):
                _rebuild(entry, revision, fill)
    return entry


@contextmanager
def _lock(entry: Path) -> Iterator[None]:
    lock = FileLock(f"{entry}.lock")  # the system lets go of it when its holder dies
    try:
        lock.acquire(timeout=1)
    except Timeout:
        print(f"waiting for another process that prepares {entry.name}", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _rebuild(entry: Path, revision: int, fill: Callable[[Path, Path], None]) -> None:
    for leftover in entry.parent.glob(f".{entry.name}~*"):
        shutil.rmtree(leftover, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{entry.name}~", dir=entry.parent))
    try:
        folder, scratch = staging / "folder", staging / "scratch"
        folder.mkdir()
        scratch.mkdir()
        fill(folder, scratch)
        _seal(folder, revision)
        if entry.exists():
            os.replace(entry, staging / "old")
        os.replace(folder, entry)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn a full or unwritable disk into one line that names the folder and how to choose another."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        if _is_disk_full(error):
            raise ModelError(
                f"no space left on the disk of {folder}: free some, or set {ENV} to a folder on another disk"
            ) from error
        if isinstance(error, OSError):
            raise ModelError(
                f"cannot write to {folder} ({error.strerror or error}): set {ENV} to a folder that can be written"
            ) from error
        raise


def _is_disk_full(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in _FULL_ERRNOS:
        return True
    # The safetensors writer reports the operating system's errors as text in an exception class of its own.
    return "no space left on device" in str(error).lower() or "disk quota exceeded" in str(error).lower()


def _seal(folder: Path, revision: int) -> None:
    """Flush every file to disk, then write the manifest, so that a manifest never describes unwritten bytes."""
    files: dict[str, dict[str, Any]] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        _flush(path)
        found = path.stat()
        name = path.relative_to(folder).as_posix()
        files[name] = {"size": found.st_size, "mtime_ns": found.st_mtime_ns, "sha256": sha256(path)}
    path = folder / MANIFEST
    path.write_text(json.dumps({"revision": revision, "files": files}, indent=1), "utf-8")
    _flush(path)


def _flush(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _remember(entry: Path, manifest: dict[str, Any]) -> None:
    fresh = entry / f".{MANIFEST}.{os.getpid()}"
    try:
        fresh.write_text(json.dumps(manifest, indent=1), "utf-8")
        os.replace(fresh, entry / MANIFEST)
    except OSError:  # a cache that is read-only, or full, is still a cache
        fresh.unlink(missing_ok=True)
