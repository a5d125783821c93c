"""Checkpoints of heads: a folder with ``heads.safetensors`` and ``heads.json``.

They hold the heads, the span predictor, the gate baseline where it was trained, the vocabulary of the heads, and where
all of it comes from.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from multitoken.errors import ModelError, OptionError
from multitoken.methods.heads.modules import Gate, Heads, HeadShape, Reader, SpanPredictor
from multitoken.models.backbone import Backbone
from multitoken.storage import write_atomically

SCHEMA = "multitoken.heads/1"
FACTS, TENSORS = "heads.json", "heads.safetensors"
SHIPPED = Path(__file__).parents[2] / "artefacts" / "heads"


@dataclass(frozen=True)
class TrainedHeads:
    """Heads with what belongs to them.

    Attributes:
        heads, span, gate: the modules; ``gate`` may be absent.
        reader: the model's side of the heads; None until they are loaded for a model.
        facts: ``heads.json``.
    """

    heads: Heads
    span: SpanPredictor
    gate: Gate | None = None
    reader: Reader | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def shipped_folder(backbone: Backbone) -> Path:
    """Where the package holds heads for this model, if it does."""
    return SHIPPED / backbone.fingerprint


def chosen_heads(choice: str | Path, backbone: Backbone) -> TrainedHeads | None:
    """Heads by an option: ``none``, ``shipped`` (what the package holds for this model, if anything), or a folder."""
    if choice == "none" or (choice == "shipped" and not shipped_folder(backbone).is_dir()):
        return None
    return load_heads(None if choice == "shipped" else Path(choice), backbone)


def save_heads(folder: Path, trained: TrainedHeads, facts: dict[str, Any], dtype: torch.dtype = torch.float16) -> None:
    """Write a folder that `load_heads` reads. ``facts``: base model, its fingerprint, provenance and figures."""
    tensors: dict[str, Tensor] = {"vocabulary": trained.heads.vocabulary.to("cpu", torch.int32)}
    for name, module in _modules(trained).items():
        for key, tensor in module.state_dict().items():
            tensors[f"{name}.{key}"] = tensor.detach().to("cpu", dtype).contiguous()
    text = json.dumps({"schema": SCHEMA, **facts, "shape": trained.heads.shape.facts}, indent=1) + "\n"
    write_atomically(folder / TENSORS, lambda part: save_file(tensors, str(part)))
    write_atomically(folder / FACTS, lambda part: part.write_text(text, "utf-8"))


def load_heads(folder: Path | None, backbone: Backbone) -> TrainedHeads:
    """Heads for ``backbone``, ready to draft.

    Args:
        folder: a checkpoint; None: what the package ships for this model.

    Raises:
        OptionError: there is no such folder, or nothing is shipped for this model.
        ModelError: it is damaged, or was trained for another model.
    """
    if folder is None:
        folder = shipped_folder(backbone)
        if not folder.is_dir():
            raise OptionError(
                "checkpoint", None, "no heads are shipped for this model; make some with multitoken train heads"
            )
    facts = _read_facts(folder)
    if facts.get("fingerprint") != backbone.fingerprint:
        ours = f"{backbone.config.model_type} ({backbone.fingerprint})"
        raise ModelError(
            f"{folder}: was trained for {facts.get('model')} ({facts.get('fingerprint')}), not for this model, {ours}; "
            "make some with multitoken train heads"
        )
    try:
        shape = HeadShape(**{f.name: facts["shape"][f.name] for f in fields(HeadShape)})
        trained = _built(shape, load_file(str(folder / TENSORS)), facts)
    except Exception as error:
        raise ModelError(f"{folder}: cannot be read ({error}); copy or train it again") from error
    return ready(trained, backbone)


def ready(trained: TrainedHeads, backbone: Backbone) -> TrainedHeads:
    """The same heads on the device of ``backbone``, in the precision that is fast there."""
    dtype = torch.float32 if backbone.device.type == "cpu" else backbone.dtype
    for module in _modules(trained).values():
        module.to(backbone.device, dtype).eval().requires_grad_(False)
    reader = Reader(backbone, trained.heads.vocabulary, dtype)
    return TrainedHeads(trained.heads, trained.span, trained.gate, reader, trained.facts)


def _modules(trained: TrainedHeads) -> dict[str, nn.Module]:
    found: dict[str, nn.Module] = {"heads": trained.heads, "span": trained.span}
    if trained.gate is not None:
        found["gate"] = trained.gate
    return found


def _read_facts(folder: Path) -> dict[str, Any]:
    try:
        facts = json.loads((folder / FACTS).read_text("utf-8"))
    except OSError:
        raise OptionError(
            "checkpoint", str(folder), f"has no {FACTS}; name a folder made by multitoken train heads"
        ) from None
    except ValueError as error:
        raise ModelError(f"{folder / FACTS}: {error}; copy or train it again") from None
    if not isinstance(facts, dict) or facts.get("schema") != SCHEMA:
        raise ModelError(f"{folder / FACTS}: is not of schema {SCHEMA}; train it again with this version")
    return facts


def _built(shape: HeadShape, tensors: dict[str, Tensor], facts: dict[str, Any]) -> TrainedHeads:
    vocabulary = tensors.pop("vocabulary").long()
    gate = Gate(shape.width, shape.heads) if any(name.startswith("gate.") for name in tensors) else None
    trained = TrainedHeads(Heads(shape, vocabulary), SpanPredictor(shape.width, shape.heads), gate, None, facts)
    for name, module in _modules(trained).items():
        part = {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
        module.load_state_dict({key: value.float() for key, value in part.items()})
    return trained
