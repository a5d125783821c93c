"""Low-rank adapters that act on chosen slots of a block.

An adapter adds ``scale * B A x`` to what a linear layer makes of its input ``x`` (Hu et al., LoRA, arXiv 2106.09685),
but only at the slots that the block in flight names for it. Everywhere else the layer's output is untouched, bit for
bit, and one forward can serve rows with different adapters. It works by hooks: modules, weights and fingerprint of the
model stay as they are. On disk it is the format of the `peft` library.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from multitoken.errors import ModelError, OptionError
from multitoken.storage import write_atomically

if TYPE_CHECKING:
    from multitoken.models.backbone import Backbone

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # of every key in peft's files
ROUTED = ("experts", "router")  # see a part of the slots only
ROUTER = "gate"


class Adapter(nn.Module):
    """Low-rank updates of a model's linear layers.

    Args:
        shapes: layer name -> (inputs, outputs).
        rank: r.
        alpha: the update is scaled by alpha / r.
        gated: act on probe slots only; else on every slot of a row.
        transposed: the layers keep their weights as [in, out] (GPT-2).
        seed: of A's first values; B starts at zero, so that a new adapter changes nothing.
    """

    def __init__(
        self,
        shapes: dict[str, tuple[int, int]],
        rank: int,
        alpha: float,
        gated: bool = True,
        transposed: bool = False,
        seed: int = 0,
    ):
        super().__init__()
        self.shapes, self.rank, self.alpha, self.gated, self.transposed = shapes, rank, alpha, gated, transposed
        generator = torch.Generator().manual_seed(seed)
        self.down, self.up = nn.ParameterDict(), nn.ParameterDict()
        for name, (inputs, outputs) in shapes.items():
            bound = 1 / math.sqrt(inputs)
            first = torch.empty(rank, inputs).uniform_(-bound, bound, generator=generator)
            self.down[_key(name)] = nn.Parameter(first)
            self.up[_key(name)] = nn.Parameter(torch.zeros(outputs, rank))
        self._handles: list[Any] = []

    @classmethod
    def of(
        cls, backbone: Backbone, rank: int, alpha: float, gated: bool, targets: Sequence[str] = (), seed: int = 0
    ) -> Adapter:
        """A new adapter of the decoder's linear layers, or of those whose last name is among ``targets``."""
        layers = linear_layers(backbone)
        chosen = {name: layer for name, layer in layers.items() if not targets or name.split(".")[-1] in targets}
        if unknown := set(targets) - {name.split(".")[-1] for name in layers}:
            known = sorted({name.split(".")[-1] for name in layers})
            raise OptionError("targets", sorted(unknown)[0], f"name linear layers of this model: {', '.join(known)}")
        shapes = {name: shape for name, layer in chosen.items() if (shape := features(layer)) is not None}
        transposed = any(not hasattr(layer, "in_features") for layer in chosen.values())
        return cls(shapes, rank, alpha, gated, transposed, seed).to(backbone.device)

    def attach(self, backbone: Backbone) -> None:
        """Let the adapter act in the forwards of ``backbone``, where a block names slots for it."""
        layers = linear_layers(backbone)
        for name, shape in self.shapes.items():
            if name not in layers or features(layers[name]) != shape:
                raise ModelError(f"the adapter is for a layer {name} of shape {shape}, which this model has not")
            self._handles.append(layers[name].register_forward_hook(self._hook(backbone, _key(name))))

    def detach(self) -> None:
        """Undo `attach`."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _hook(self, backbone: Backbone, key: str):
        scale = self.alpha / self.rank

        def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            slots = None if backbone.block is None else backbone.block.adapted.get(self)
            if slots is None:
                return None
            down, up = self.down[key], self.up[key]
            x = inputs[0].reshape(-1, inputs[0].shape[-1])[slots].to(down.dtype)
            update = nn.functional.linear(nn.functional.linear(x, down), up) * scale
            flat = output.reshape(-1, output.shape[-1])
            return flat.index_add(0, slots, update.to(flat.dtype)).view_as(output)

        return hook

    # -- storage ----------------------------------------------------------------------------------------------------

    def save(self, folder: Path, base: str = "", dtype: torch.dtype = torch.float32) -> None:
        """Write ``adapter_config.json`` and ``adapter_model.safetensors``, which `peft` reads too."""
        tensors = {}
        for name in self.shapes:
            for part, parameters in (("lora_A", self.down), ("lora_B", self.up)):
                tensors[f"{PREFIX}{name}.{part}.weight"] = parameters[_key(name)].detach().to("cpu", dtype).contiguous()
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base,
            "r": self.rank,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": self.transposed,
            "inference_mode": True,
            "target_modules": sorted(self.shapes),
        }
        write_atomically(folder / WEIGHTS, lambda part: save_file(tensors, str(part), metadata={"format": "pt"}))
        text = json.dumps(config, indent=2) + "\n"
        write_atomically(folder / CONFIG, lambda part: part.write_text(text, "utf-8"))

    @classmethod
    def load(cls, folder: Path, gated: bool, dtype: torch.dtype, device: torch.device) -> Adapter:
        """Read what `save`, or `peft`, wrote."""
        try:
            config = json.loads((folder / CONFIG).read_text("utf-8"))
            tensors = load_file(str(folder / WEIGHTS))
            rank, alpha, transposed = config["r"], config["lora_alpha"], config.get("fan_in_fan_out", False)
        except Exception as error:
            raise ModelError(f"{folder}: its adapter cannot be read ({error}); copy or train it again") from error
        names = [key.removeprefix(PREFIX).removesuffix(".lora_A.weight") for key in tensors if ".lora_A." in key]
        pairs = {name: [tensors.get(f"{PREFIX}{name}.lora_{part}.weight") for part in "AB"] for name in names}
        if not names or any(part is None for pair in pairs.values() for part in pair):
            raise ModelError(f"{folder}: its adapter lacks weights; copy or train it again")
        shapes = {name: (down.shape[1], up.shape[0]) for name, (down, up) in pairs.items()}  # type: ignore[union-attr]
        made = cls(shapes, rank, alpha, gated, transposed)
        with torch.no_grad():
            for name, (down, up) in pairs.items():
                made.down[_key(name)].copy_(down)  # type: ignore[arg-type]
                made.up[_key(name)].copy_(up)  # type: ignore[arg-type]
        return made.to(device, dtype).requires_grad_(False)


def linear_layers(backbone: Backbone) -> dict[str, nn.Module]:
    """The decoder's linear layers by name in the module, those of mixtures of experts left out."""
    found = {}
    decoder = {id(module) for module in backbone.decoder.modules()}
    for name, module in backbone.module.named_modules():
        parts = name.split(".")
        routed = parts[-1] == ROUTER or any(part in ROUTED for part in parts)
        if id(module) in decoder and not routed and features(module) is not None:
            found[name] = module
    return found


def features(layer: nn.Module) -> tuple[int, int] | None:
    """(inputs, outputs) of a linear layer; None for any other."""
    if hasattr(layer, "in_features") and hasattr(layer, "out_features"):
        return int(layer.in_features), int(layer.out_features)  # type: ignore[arg-type]
    if type(layer).__name__ == "Conv1D":  # GPT-2's linear layer
        inputs, outputs = layer.weight.shape  # type: ignore[misc]
        return int(inputs), int(outputs)
    return None


def _key(name: str) -> str:
    """Parameter names cannot hold dots."""
    return name.replace(".", "/")
