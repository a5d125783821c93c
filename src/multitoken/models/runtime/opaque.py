"""What a compiled forward leaves alone: products with packed weights, the cache, attention.

They are operators, `multitoken::product` and `multitoken::attend`, which the compiler calls without looking
inside. A compiled function holds numbers only; the weights, the cache and the masks that they stand for are those of
the forward in flight in this thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from multitoken.models.attention import refuse_changes
from multitoken.models.cache import KVCache

TRACED = "multitoken_traced"  # the attention of a model while it is traced
Attention = Callable[..., tuple[Tensor, None]]


class Packed(Protocol):
    """A layer whose weights the compiler must not see."""

    def product(self, x: Tensor) -> Tensor: ...


@dataclass(slots=True)
class Flight:
    """What the operators of one forward work on.

    Attributes:
        layers: the packed layers, by number.
        cache: it has begun the block.
        masks: by kind of layer, as the attention takes them.
        rows: rows of the block, whose slots are flattened in the compiled function.
        attention: of the model, with the arguments of Transformers' attention functions.
    """

    layers: Sequence[Packed]
    cache: KVCache
    masks: Sequence[Tensor]
    rows: int
    attention: Attention


class _Here(threading.local):
    flight: Flight | None = None
    numbers: dict[int, int] | None = None  # id of a packed layer -> its number, while tracing


_here = _Here()


@contextmanager
def flying(flight: Flight) -> Iterator[None]:
    """The operators of this thread work on ``flight``."""
    held, _here.flight = _here.flight, flight
    try:
        yield
    finally:
        _here.flight = held


@contextmanager
def tracing(layers: Sequence[Packed]) -> Iterator[None]:
    """Packed layers show themselves as operators, by their number in ``layers``."""
    _here.numbers = {id(layer): number for number, layer in enumerate(layers)}
    try:
        yield
    finally:
        _here.numbers = None


def product(layer: Packed, x: Tensor, features: int) -> Tensor:
    """``layer.product(x)``, [..., in] -> [..., features]; while tracing, the operator that will compute it."""
    if _here.numbers is None:
        return layer.product(x)
    return _operators.product(x, _here.numbers[id(layer)], features)


def traced_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function of a model being traced: one operator. The width of the mask says which one is meant."""
    refuse_changes(kwargs)
    layer, mask = int(module.layer_idx), attention_mask.shape[-1] - 1  # type: ignore[arg-type]
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return _operators.attend(query, key, value, layer, mask, scaling, softcap or 0.0), None


def _product(x: Tensor, layer: int, features: int) -> Tensor:
    return _here.flight.layers[layer].product(x)  # type: ignore[union-attr]


def _attend(query: Tensor, key: Tensor, value: Tensor, layer: int, mask: int, scaling: float, softcap: float) -> Tensor:
    """One layer's attention over the cache: [1, H, B * Q, D] -> [1, B * Q, H, D]."""
    flight: Flight = _here.flight  # type: ignore[assignment]
    if flight.rows > 1:
        query, key, value = (_by_row(states, flight.rows) for states in (query, key, value))
    keys, values = flight.cache.update(key, value, layer)
    changes = {"softcap": softcap} if softcap else {}
    output, _ = flight.attention(None, query, keys, values, flight.masks[mask], scaling, **changes)
    return output if flight.rows == 1 else output.reshape(1, -1, *output.shape[2:])


def _by_row(states: Tensor, rows: int) -> Tensor:
    """[1, H, B * Q, D] -> [B, H, Q, D]."""
    _, heads, slots, width = states.shape
    return states.reshape(heads, rows, slots // rows, width).transpose(0, 1)


def _product_shape(x: Tensor, layer: int, features: int) -> Tensor:
    return x.new_empty(*x.shape[:-1], features)


def _attend_shape(query: Tensor, key: Tensor, value: Tensor, *numbers: float) -> Tensor:
    return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[-1])


_library = torch.library.Library("multitoken", "DEF")
_library.define("product(Tensor x, int layer, int features) -> Tensor")
_library.define(
    "attend(Tensor query, Tensor key, Tensor value, int layer, int mask, float scaling, float softcap) -> Tensor"
)
for _name, _compute, _shape in (("product", _product, _product_shape), ("attend", _attend, _attend_shape)):
    _library.impl(_name, _compute, "CPU")
    _library.impl(_name, _shape, "Meta")
_operators: Any = torch.ops.multitoken
