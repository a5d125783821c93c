"""Entries of the cache are whole or absent."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from multitoken.errors import ModelError
from multitoken.models import store


def fill(folder: Path, scratch: Path) -> None:
    (scratch / "waste").write_text("waste")
    (folder / "a").write_text("first")
    (folder / "b").write_text("second")


def never(_folder: Path, _scratch: Path) -> None:
    raise AssertionError("built again")


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    return store.build(tmp_path / "cache" / "entry", 1, fill)


def test_entry_has_its_files_and_nothing_lies_beside_it(entry: Path) -> None:
    assert {path.name for path in entry.iterdir()} == {"a", "b", store.MANIFEST}
    assert {path.name for path in entry.parent.iterdir()} == {"entry", "entry.lock"}


def test_intact_entry_is_not_built_again(entry: Path) -> None:
    assert store.build(entry, 1, never) == entry


def test_touched_entry_is_hashed_once_and_kept(entry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.utime(entry / "a", (1, 1))
    assert store.intact(entry, 1)
    monkeypatch.setattr(store, "sha256", lambda path: pytest.fail("hashed twice"))
    assert store.intact(entry, 1)


@pytest.mark.parametrize("damage", ["truncated", "changed", "missing", "no manifest", "bad manifest", "old revision"])
def test_damaged_entry_is_replaced(entry: Path, damage: str) -> None:
    match damage:
        case "truncated":
            (entry / "a").write_text("fir")
        case "changed":
            (entry / "a").write_text("FIRST")
        case "missing":
            (entry / "a").unlink()
        case "no manifest":
            (entry / store.MANIFEST).unlink()
        case "bad manifest":
            (entry / store.MANIFEST).write_text('{"revision": 1, "files": [')
    revision = 2 if damage == "old revision" else 1
    assert not store.intact(entry, revision)
    store.build(entry, revision, fill)
    assert (entry / "a").read_text() == "first"
    assert store.intact(entry, revision)
    assert {path.name for path in entry.parent.iterdir()} == {"entry", "entry.lock"}


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    leftover = tmp_path / ".entry~abc"
    leftover.mkdir()
    (leftover / "half").write_text("half")
    other = tmp_path / ".entry-two~abc"
    other.mkdir()
    store.build(tmp_path / "entry", 1, fill)
    assert not leftover.exists()
    assert other.exists()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("I/O error: No space left on device (os error 28)"),
    ],
)
def test_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, error: Exception) -> None:
    def fill_up(folder: Path, scratch: Path) -> None:
        fill(folder, scratch)
        raise error

    with pytest.raises(ModelError) as caught:
        store.build(tmp_path / "cache" / "entry", 1, fill_up)
    message = str(caught.value)
    assert "no space left" in message
    assert str(tmp_path / "cache") in message
    assert store.ENV in message
    assert "\n" not in message
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["entry.lock"]


def test_full_disk_keeps_nothing_of_a_damaged_entry_as_if_whole(entry: Path) -> None:
    (entry / "a").unlink()
    with pytest.raises(ModelError, match="no space"):
        store.build(entry, 1, lambda folder, scratch: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    assert not store.intact(entry, 1)


def test_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelError, match=store.ENV) as caught:
        store.build(tmp_path / "file" / "entry", 1, fill)
    assert "\n" not in str(caught.value)


def test_other_errors_pass_through_and_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="built again"):
        store.build(tmp_path / "entry", 1, never)
    assert [path.name for path in tmp_path.iterdir()] == ["entry.lock"]


def test_two_processes_build_once(tmp_path: Path) -> None:
    program = """
import sys, time
from pathlib import Path
from multitoken.models import store
def fill(folder, scratch):
    with open(sys.argv[2], "a") as log:
        log.write("built\\n")
    time.sleep(1.5)
    (folder / "a").write_text("first")
store.build(Path(sys.argv[1]), 1, fill)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "entry"), str(tmp_path / "log")]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    notes = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], notes
    assert (tmp_path / "log").read_text() == "built\n"
    assert store.intact(tmp_path / "entry", 1)


def test_manifest_names_size_and_hash(entry: Path) -> None:
    manifest = json.loads((entry / store.MANIFEST).read_text())
    assert manifest["files"]["b"]["size"] == 6
    assert manifest["files"]["b"]["sha256"] == store.sha256(entry / "b")
