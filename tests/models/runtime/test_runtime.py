"""Packed, joined and quantised layers: the same function, row by row, and every method equal to plain on it."""

import copy

import pytest
import torch
from torch import nn

from multitoken.errors import ModelError, OptionError
from multitoken.models.backbone import Backbone
from multitoken.models.runtime import prepare as module
from multitoken.models.runtime.joined import JoinedPart, join
from multitoken.models.runtime.linear import PackedLinear, QuantisedLinear
from multitoken.models.runtime.prepare import _sample, check_options, prepare
from support import FAMILIES, tiny_model

SIZES = [1, 2, 3, 5, 8, 17, 31, 60]


def layer_and_input(bias=True, dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Linear(96, 160, bias=bias).to(dtype), torch.randn(64, 96, dtype=dtype)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_layer_is_the_layer(bias, dtype):
    layer, x = layer_and_input(bias, dtype)
    packed = PackedLinear(layer.weight, layer.bias)
    ours, theirs = packed(x), layer(x)
    assert ours.dtype == dtype
    torch.testing.assert_close(ours, theirs, rtol=2e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [PackedLinear, QuantisedLinear])
def test_a_row_has_the_same_bits_beside_any_other_rows(make):
    layer, x = layer_and_input()
    fast = make(layer.weight, layer.bias)
    whole = fast(x)
    for size in SIZES:
        assert torch.equal(fast(x[:size]), whole[:size])
        assert torch.equal(fast(x[-size:] * 1.0), whole[-size:])


def test_quantised_layer_is_close_and_its_sums_are_exact():
    layer, x = layer_and_input()
    quantised = QuantisedLinear(layer.weight, layer.bias)
    gap = (quantised(x) - layer(x)).norm() / layer(x).norm()
    assert 0 < gap < 0.03
    # Sums that saturate would not grow with their input.
    torch.testing.assert_close(quantised(x * 4.0) - layer.bias, (quantised(x) - layer.bias) * 4.0, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [PackedLinear, QuantisedLinear])
def test_training_through_it_is_refused(make):
    layer, x = layer_and_input()
    with pytest.raises(ModelError, match="runtime='eager'"):
        make(layer.weight, layer.bias)(x.requires_grad_(True))


def test_joined_parts_do_not_depend_on_the_order_of_calls():
    parent = nn.Module()
    for name, out in (("q_proj", 32), ("k_proj", 16), ("v_proj", 16)):
        setattr(parent, name, nn.Linear(24, out))
    parts = join(parent, PackedLinear)
    assert set(parts) == {"q_proj", "k_proj", "v_proj"} and all(isinstance(part, JoinedPart) for part in parts.values())
    x, other = torch.randn(5, 24), torch.randn(5, 24)
    with torch.inference_mode():
        for order in (["q_proj", "k_proj", "v_proj"], ["v_proj", "q_proj"], ["k_proj"]):
            for name in order:
                torch.testing.assert_close(parts[name](x), getattr(parent, name)(x))
                torch.testing.assert_close(parts[name](other), getattr(parent, name)(other))


def test_layers_of_unlike_input_are_not_joined():
    parent = nn.Module()
    parent.gate_proj, parent.up_proj = nn.Linear(24, 32), nn.Linear(24, 32, bias=False)
    assert join(parent, PackedLinear) == {}


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_packs_and_keeps_its_logits(family):
    eager = Backbone(tiny_model(family))
    fast = Backbone(copy.deepcopy(tiny_model(family)))
    prepare(fast, "auto", "none")
    assert fast.runtime == "packed" and fast.fingerprint == eager.fingerprint
    torch.testing.assert_close(_sample(fast), _sample(eager), rtol=1e-4, atol=1e-3)


def test_eager_stays_as_it_is():
    module = copy.deepcopy(tiny_model())
    before = [type(part) for part in module.modules()]
    backbone = Backbone(module)
    prepare(backbone, "eager", "none")
    assert backbone.runtime == "eager" and [type(part) for part in module.modules()] == before


def test_a_runtime_that_computes_something_else_is_taken_back(monkeypatch):
    class Wrong(PackedLinear):
        def forward(self, x):
            return super().forward(x) * 1.5

    backbone = Backbone(copy.deepcopy(tiny_model()))
    expected = _sample(backbone)
    monkeypatch.setattr(module, "PackedLinear", Wrong)
    prepare(backbone, "auto", "none")
    assert backbone.runtime == "eager"
    assert torch.equal(_sample(backbone), expected)
    with pytest.raises(ModelError, match="runtime=packed"):
        prepare(backbone, "packed", "none")


@pytest.mark.parametrize("options", [("fast", "none"), ("auto", "int2"), ("eager", "int8")])
def test_options_that_do_not_exist_are_named(options):
    with pytest.raises(OptionError, match="runtime|quantize"):
        check_options(*options)
