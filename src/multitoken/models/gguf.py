"""GGUF file -> plain checkpoint folder with the de-quantised weights, kept in the cache.

The weights are stored in float32, so that every dtype a user asks for is derived from the same values.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import functools
import importlib.metadata
import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from multitoken.errors import ModelError
from multitoken.models import store
from multitoken.models.gguf_tokenizer import read_tokenizer
from multitoken.models.progress import Progress
from multitoken.storage import cache_dir

REVISION = 1  # raise it when a change here makes checkpoints of an earlier version wrong
PROVENANCE = "provenance.json"


def convert_gguf(path: str | os.PathLike[str], *, progress: bool = True) -> Path:
    """Convert a ``.gguf`` file once and return the checkpoint folder.

    The folder is found again by the hash of the file's content, so a moved or renamed file is not converted twice.

    Raises:
        ModelError: the file is missing, not GGUF, damaged, or of an architecture that Transformers cannot read.
    """
    source = Path(path).expanduser().resolve()
    check_gguf(source)
    with Progress(progress, f"checking {source.name}", source.stat().st_size) as bar:
        digest = store.sha256(source, bar.advance)
    entry = cache_dir("gguf", digest[:32])
    origin = {"source": "file", "file": source.name, "gguf_sha256": digest}

    def fill(folder: Path, _scratch: Path) -> None:
        write_checkpoint(source, folder, origin, progress=progress)

    return store.build(entry, REVISION, fill)


def check_gguf(path: Path) -> None:
    """Raise ``ModelError`` unless ``path`` is a file that begins like GGUF."""
    try:
        with open(path, "rb") as file:
            begin = file.read(4)
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}: give the path of a readable .gguf file") from error
    if begin != b"GGUF":
        raise ModelError(f"{path}: not a GGUF file (its first bytes are not 'GGUF'): download it again")


def write_checkpoint(gguf: Path, folder: Path, origin: dict[str, Any], *, progress: bool = True) -> None:
    """Write config, weights, tokenizer and provenance of ``gguf`` into ``folder``.

    Raises:
        ModelError: the file is damaged, incomplete, or of an architecture that Transformers cannot read.
    """
    with Progress(progress, f"unpacking {origin.get('model', gguf.name)}", 3) as bar, _quiet(), _quick_reader():
        try:
            model = _read_model(gguf)
            bar.advance(1)
            tokenizer = read_tokenizer(gguf)
            bar.advance(1)
        except ModelError:
            raise
        except Exception as error:  # the reader fails in many ways on damaged files: all mean the same to the user
            reason = " ".join(str(error).split())[:200]
            raise ModelError(
                f"{gguf.name}: cannot be read as a model ({type(error).__name__}: {reason}): use a complete GGUF file "
                "of an architecture that Transformers supports"
            ) from error
        # GGUF has no length limit for the tokenizer; without one Transformers never warns about overlong input.
        tokenizer.model_max_length = getattr(model.config, "max_position_embeddings", tokenizer.model_max_length)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        bar.advance(1)
    provenance = {**origin, "dtype": "float32", "converted": _now(), "versions": _versions()}
    (folder / PROVENANCE).write_text(json.dumps(provenance, indent=1) + "\n", "utf-8")
    for weights in folder.glob("*.safetensors"):  # written readable by nobody else, which defeats a shared cache
        shutil.copymode(folder / PROVENANCE, weights)


def _read_model(gguf: Path) -> Any:
    from transformers import AutoModelForCausalLM, GenerationConfig

    load: Any = AutoModelForCausalLM.from_pretrained
    loaded, info = load(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, local_files_only=True, output_loading_info=True
    )
    if missing := sorted(info["missing_keys"]):
        # Transformers would fill them with random values: so would one file of a model that is split over several.
        raise ModelError(f"{gguf.name}: lacks the weights {', '.join(missing[:3])}: use a complete, single-file GGUF")
    config = copy.deepcopy(loaded.config)
    # save_pretrained refuses what claims to be quantised, which these weights no longer are; and the file's own name
    # for the model comes out as an unknown key.
    for name in ("quantization_config", "_model_name_or_path"):
        if hasattr(config, name):
            delattr(config, name)
    with torch.device("meta"):
        plain = type(loaded)(config)
    plain.load_state_dict(loaded.state_dict(), assign=True)
    plain.tie_weights()
    # Made afresh: the loaded one is marked as derived from a config and ignored by newer versions of Transformers.
    ids = {name: getattr(config, name, None) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    plain.generation_config = GenerationConfig(**ids)
    return plain


@contextmanager
def _quiet() -> Iterator[None]:
    """No notes and bars but our own."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # one of its bars ignores the switch above
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def _quick_reader() -> Iterator[None]:
    """Spare Transformers most of a minute per file.

    It parses the header anew for config, weights and tokenizer, with half of the time lost in the slicing of
    ``numpy.memmap``, and makes the same table of tensor names for every module of the model.
    """
    import gguf

    reader, name_map = gguf.GGUFReader, gguf.get_tensor_name_map

    class Reader(reader):
        @property
        def data(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleVariableOverride]
            return self._plain

        @data.setter
        def data(self, value: np.ndarray) -> None:
            self._plain = value.view(np.ndarray)

    gguf.GGUFReader = functools.cache(Reader)  # pyright: ignore[reportAttributeAccessIssue]
    gguf.get_tensor_name_map = functools.cache(name_map)
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = reader, name_map


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _versions() -> dict[str, str]:
    names = ("multitoken", "torch", "transformers", "gguf", "tokenizers", "safetensors")
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
