"""Files that are made once."""

from __future__ import annotations

import errno

import pytest
from safetensors import SafetensorError

from multitoken.errors import ModelError
from multitoken.storage import write_atomically


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
