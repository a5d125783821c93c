"""Drafting on packed and quantised models: the words of plain decoding on the same model."""

from __future__ import annotations

import copy
from functools import cache

import pytest
from lossless import outputs, requests

from multitoken.methods import create
from multitoken.methods.plain import Plain
from multitoken.models.backbone import Backbone
from multitoken.models.runtime.prepare import prepare
from support import tiny_model


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULTITOKEN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@cache
def fast_backbone(family: str, quantize: str) -> Backbone:
    backbone = Backbone(copy.deepcopy(tiny_model(family)))
    prepare(backbone, "auto", quantize)
    return backbone


@pytest.mark.parametrize("method", ["probe", "fused", "auto"])
@pytest.mark.parametrize("quantize", ["none", "int8"])
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3", "phi3", "gpt2"])
def test_methods_equal_plain(family, quantize, method):
    backbone = fast_backbone(family, quantize)
    plain = outputs(backbone, requests(Plain()), together=False)
    for together in (True, False):
        rows = outputs(backbone, requests(create(method)), together)
        assert [row.output for row in rows] == [row.output for row in plain]
