"""One tiny model and one server for all tests that do not need a server of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the server's packages are not installed (pip install 'multitoken[server]')")
pytest.importorskip("httpx", reason="httpx is not installed (pip install 'multitoken[dev]')")

from serving import Running, load_tiny, running, save_tiny

from multitoken.models.loading import LoadedModel


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> LoadedModel:
    return load_tiny(tiny_folder)


@pytest.fixture(scope="session")
def server(tiny: LoadedModel) -> Iterator[Running]:
    with running(tiny, max_rows=8, max_queue=32) as made:
        yield made
