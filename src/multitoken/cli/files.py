"""Reading and writing the user's files, with errors that name the file and the remedy."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from multitoken import storage
from multitoken.errors import DataError

FULL = {*storage.FULL, errno.EFBIG}


def read_text(path: Path) -> str:
    """Contents of a UTF-8 file, without a byte order mark."""
    return decode(read_bytes(path), str(path))


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; check the path") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a folder; give a file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); check the path and its rights") from error


def decode(data: bytes, source: str) -> str:
    """UTF-8 text of ``data``; ``source`` is named in the error."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{source}: not UTF-8 text (byte 0x{data[error.start]:02x} at offset {error.start}); "
            "convert it, for example with: iconv -t UTF-8"
        ) from None


def write_whole(path: Path, data: bytes) -> None:
    """Write a file in one piece: it is complete or as it was before."""
    part = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            part = Path(file.name)
            file.write(data)
        os.chmod(part, 0o666 & ~current_umask())
        os.replace(part, path)
    except OSError as error:
        raise write_error(path, error) from error
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


def write_error(path: object, error: OSError) -> DataError:
    """What went wrong with writing ``path``, in one line."""
    if error.errno in FULL:
        return DataError(f"cannot write {path}: no space left; free some or choose a path on another disk")
    return DataError(f"cannot write {path}: {error.strerror or error}; choose a path that can be written")


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
