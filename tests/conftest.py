"""Shared fixtures. Helpers that take arguments are in `support`."""

from __future__ import annotations

import pytest
import torch

from multitoken.models.backbone import Backbone
from support import byte_tokenizer, tiny_backbone


@pytest.fixture(autouse=True, scope="session")
def _two_threads() -> None:
    torch.set_num_threads(min(torch.get_num_threads(), 2))


@pytest.fixture(scope="session")
def backbone() -> Backbone:
    """A tiny Llama."""
    return tiny_backbone("llama")


@pytest.fixture(scope="session")
def tokenizer():
    return byte_tokenizer()
