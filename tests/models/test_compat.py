"""The shim over Transformers releases."""

from __future__ import annotations

import pytest
from torch import nn

from multitoken.models.compat import cache_argument
from support import FAMILIES, tiny_model


class Newer(nn.Module):
    def forward(self, inputs_embeds=None, cache=None, past_key_values=None): ...


class Older(nn.Module):
    def forward(self, inputs_embeds=None, past_key_values=None): ...


def test_the_argument_is_read_from_the_model():
    assert cache_argument(Newer()) == "cache"
    assert cache_argument(Older()) == "past_key_values"
    with pytest.raises(TypeError, match="Linear"):
        cache_argument(nn.Linear(1, 1))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_one(family):
    assert cache_argument(tiny_model(family).get_decoder()) in ("cache", "past_key_values")
