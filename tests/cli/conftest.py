"""A tiny model on disk, and the command line run in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cli_support import Outcome

from multitoken.cli import main
from support import byte_tokenizer, tiny_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    """Folder of a tiny Llama with a byte tokenizer and a chat template."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    tiny_model("llama").save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def run(capfd, monkeypatch) -> Callable[..., Outcome]:
    """Runs ``multitoken ARGS``: exit code, standard output and standard error."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def call(*argv: object) -> Outcome:
        code = main([str(arg) for arg in argv])
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call
