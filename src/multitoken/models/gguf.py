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
from tokenizers import pre_tokenizers

from multitoken.errors import ModelError
from multitoken.models import store
from multitoken.models.progress import Progress

REVISION = 1  # raise it when a change here makes checkpoints of an earlier version wrong
PROVENANCE = "provenance.json"

# Values of "tokenizer.ggml.pre" whose vocabularies were learned on text with every digit split off, which
# Transformers (5.16 to 5.24 at least) does not do for them.
_SPLIT_BY_DIGIT = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}


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
    entry = store.cache_root() / "gguf" / digest[:32]
    origin = {"source": "file", "file": source.name, "gguf_sha256": digest}
    return store.build(entry, REVISION, lambda folder: write_checkpoint(source, folder, origin, progress=progress))


def check_gguf(path: Path) -> None:
    """Raise ``ModelError`` unless ``path`` is a file that begins like GGUF."""
    if not path.is_file():
        raise ModelError(f"{path}: no such file: give the path of a .gguf file")
    with open(path, "rb") as file:
        if file.read(4) != b"GGUF":
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
            tokenizer = _read_tokenizer(gguf)
            bar.advance(1)
        except ModelError:
            raise
        except Exception as error:  # the reader fails in many ways on damaged files: all mean the same to the user
            reason = " ".join(str(error).split())[:200]
            raise ModelError(f"{gguf.name}: cannot be read as a model ({type(error).__name__}: {reason})") from error
        _mend(gguf, model, tokenizer)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        bar.advance(1)
    provenance = {**origin, "dtype": "float32", "converted": _now(), "versions": _versions()}
    (folder / PROVENANCE).write_text(json.dumps(provenance, indent=1) + "\n", "utf-8")
    for weights in folder.glob("*.safetensors"):  # written readable by nobody else, which defeats a shared cache
        shutil.copymode(folder / PROVENANCE, weights)


def _read_model(gguf: Path) -> Any:
    from transformers import AutoModelForCausalLM, GenerationConfig

    loaded, info = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, local_files_only=True, output_loading_info=True
    )
    if missing := sorted(info["missing_keys"]):
        # Transformers would fill them with random values: so would one file of a model that is split over several.
        raise ModelError(f"{gguf.name}: lacks the weights {', '.join(missing[:3])}: use a complete, single-file GGUF")
    config = copy.deepcopy(loaded.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the weights no longer are; with it, save_pretrained refuses
    config.name_or_path = ""  # the file names some training run here
    with torch.device("meta"):
        plain = type(loaded)(config)
    plain.load_state_dict(loaded.state_dict(), assign=True)
    plain.tie_weights()
    # Made afresh: the loaded one is marked as derived from a config and ignored by newer versions of Transformers.
    ids = {name: getattr(config, name, None) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    plain.generation_config = GenerationConfig(**ids)
    return plain


def _read_tokenizer(gguf: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)


def _mend(gguf: Path, model: Any, tokenizer: Any) -> None:
    """Set what Transformers leaves out when it reads a GGUF file."""
    # GGUF has no length limit for the tokenizer; without one Transformers never warns about overlong input.
    if limit := getattr(model.config, "max_position_embeddings", None):
        tokenizer.model_max_length = limit
    # Without this the blanks before a number come out as other tokens than in training: "\n\n1" as "\n", "\n", "1".
    if _pre_tokenizer_name(gguf) in _SPLIT_BY_DIGIT:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    for key in ("is_local", "local_files_only"):  # how the file was read is no property of the tokenizer
        tokenizer.init_kwargs.pop(key, None)


def _pre_tokenizer_name(gguf: Path) -> str | None:
    from gguf import GGUFReader

    field = GGUFReader(str(gguf)).get_field("tokenizer.ggml.pre")
    return str(field.contents()) if field else None


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
