"""Projections of one input, computed as one product: query, key and value; gate and up.

The layers keep their places and their names, so no model code changes: the first one computes all and the others hand
out their parts.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

JOINED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
Make = Callable[[Tensor, Tensor | None], nn.Module]


class _Joined:
    """The joint product and the last input that it was computed for."""

    def __init__(self, layers: list[nn.Linear], make: Make):
        weight = torch.cat([layer.weight.detach() for layer in layers])
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        self.layer = make(weight, torch.cat(biases) if biases else None)
        self._sizes = [layer.out_features for layer in layers]
        self._input: Tensor | None = None
        self._parts: tuple[Tensor, ...] = ()

    def part(self, index: int, x: Tensor) -> Tensor:
        if x is not self._input:
            self._input, self._parts = x, torch.split_with_sizes(self.layer(x), self._sizes, -1)
        part = self._parts[index]
        if index == len(self._sizes) - 1:  # models ask in order; nothing is kept alive between two layers
            self._input, self._parts = None, ()
        return part


class JoinedPart(nn.Module):
    """Stands where one of the joined layers stood."""

    def __init__(self, joined: _Joined, index: int, layer: nn.Linear):
        super().__init__()
        self._joined, self._index = joined, index
        self.in_features, self.out_features = layer.in_features, layer.out_features

    @property
    def whole(self) -> nn.Module:
        """The layer that computes all parts."""
        return self._joined.layer

    def forward(self, x: Tensor) -> Tensor:
        return self._joined.part(self._index, x)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, part {self._index} of a joint product"


def join(parent: nn.Module, make: Make) -> dict[str, nn.Module]:
    """Replacements for the layers of ``parent`` that can be joined: name -> module. Empty where there are none."""
    replacements: dict[str, nn.Module] = {}
    for names in JOINED:
        layers = [getattr(parent, name, None) for name in names]
        if not all(type(layer) is nn.Linear for layer in layers):
            continue
        alike = {(layer.in_features, layer.bias is None, layer.weight.dtype) for layer in layers}  # type: ignore[union-attr]
        if len(alike) == 1:
            joined = _Joined(layers, make)  # type: ignore[arg-type]
            replacements |= {
                name: JoinedPart(joined, index, layer)  # type: ignore[arg-type]
                for index, (name, layer) in enumerate(zip(names, layers, strict=True))
            }
    return replacements
