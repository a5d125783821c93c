"""Files that are made once."""

from __future__ import annotations

import errno
import os

import pytest
from safetensors import SafetensorError

from multitoken.errors import ModelError
from multitoken.storage import LineFile, write_atomically


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path, error):
    def write(part):
        part.write_bytes(b"half")
        raise error

    with pytest.raises(ModelError, match="disk is full; free some space or set MULTITOKEN_CACHE"):
        write_atomically(tmp_path / "made", write)
    assert list(tmp_path.iterdir()) == []


def test_a_line_file_goes_on_behind_what_was_kept(tmp_path, monkeypatch):
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\nthr")
    file = LineFile(path)
    lines = file.lines()
    assert lines == [b"one\n", b"two\n", b"thr"]
    file.keep(lines[:2])
    write = os.write
    with monkeypatch.context() as patch:

        def full(number: int, data: bytes) -> int:
            if len(data) > 3:
                return write(number, data[:3])
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            file.append("three\n")
    # The file is as it was before the failed line, and the next one leaves no hole.
    assert path.read_bytes() == b"one\ntwo\n"
    file.append("four\n")
    file.close()
    assert path.read_bytes() == b"one\ntwo\nfour\n"
