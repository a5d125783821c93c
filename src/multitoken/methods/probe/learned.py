"""Learned probes: a folder with vectors, and an adapter where one was trained with them.

``mask.json`` says what it is and where it comes from, ``mask.safetensors`` holds ``vectors`` [k, d]. An adapter lies
beside them in the format of the `peft` library.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from multitoken.errors import ModelError, OptionError
from multitoken.models.adapter import Adapter
from multitoken.models.backbone import Backbone
from multitoken.storage import write_atomically

SCHEMA = "multitoken.mask/1"
FACTS, VECTORS = "mask.json", "mask.safetensors"
SHIPPED = Path(__file__).parents[2] / "artefacts"
Kind = Literal["probes", "gated-lora", "lora", "full"]
ADAPTERS = ("gated-lora", "lora")
# Tokens that an anchor's probes add to the next step, by what was trained: how a block's slots are shared out.
GAIN: dict[str, float] = {"probes": 0.4, "gated-lora": 1.0, "lora": 1.0, "full": 1.0}


@dataclass(frozen=True, slots=True)
class Learned:
    """What training left.

    Attributes:
        kind: vectors alone, with an adapter that is gated or not, or for a model all of whose weights were trained.
        vectors: float32 [k, d].
        facts: ``mask.json``.
    """

    kind: Kind
    vectors: Tensor
    facts: dict[str, Any]
    adapter: Adapter | None = None

    @property
    def lossless(self) -> bool:
        """What is verified with it is the output of the model as it was loaded."""
        return self.adapter is None or self.adapter.gated


def shipped_folder(room: str, backbone: Backbone) -> Path:
    """Where the package holds what was trained for this model; ``room``: ``probes`` or ``mask``."""
    return SHIPPED / room / backbone.fingerprint


def save_learned(
    folder: Path,
    kind: Kind,
    vectors: Tensor,
    fingerprint: str,
    provenance: dict[str, Any],
    adapter: Adapter | None = None,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write a folder that `load_learned` reads. ``dtype``: of the adapter on disk."""
    facts = {"schema": SCHEMA, "kind": kind, "fingerprint": fingerprint, "probes": len(vectors), **provenance}
    if adapter is not None:
        adapter.save(folder, str(provenance.get("model", "")), dtype)
    kept = {"vectors": vectors.detach().float().cpu().contiguous()}
    write_atomically(folder / VECTORS, lambda part: save_file(kept, str(part)))
    text = json.dumps(facts, indent=2) + "\n"
    write_atomically(folder / FACTS, lambda part: part.write_text(text, "utf-8"))


def read_facts(folder: Path) -> dict[str, Any]:
    """``mask.json`` of a folder."""
    try:
        facts = json.loads((folder / FACTS).read_text("utf-8"))
    except OSError:
        raise OptionError(
            "checkpoint", str(folder), f"has no {FACTS}; name a folder made by multitoken train"
        ) from None
    except ValueError as error:
        raise ModelError(f"{folder / FACTS}: {error}; copy or train it again") from None
    if not isinstance(facts, dict) or facts.get("schema") != SCHEMA or facts.get("kind") not in GAIN:
        raise ModelError(f"{folder / FACTS}: is not of schema {SCHEMA}; train it again with this version")
    return facts


def load_learned(checkpoint: Path | None, backbone: Backbone, room: str = "probes") -> Learned:
    """Read a folder, and attach its adapter to ``backbone``, once.

    Args:
        checkpoint: the folder; by default what the package ships for this model in ``room``.

    Raises:
        OptionError: there is no such folder, or none is shipped.
        ModelError: it was trained for another model, or is damaged.
    """
    folder = checkpoint if checkpoint is not None else shipped_folder(room, backbone)
    if checkpoint is None and not folder.is_dir():
        raise OptionError(
            "checkpoint", None, f"none is shipped for this model; make one with multitoken train {room} and name it"
        )
    facts = read_facts(folder)
    if facts["fingerprint"] != backbone.fingerprint:
        raise ModelError(
            f"{folder}: was trained for {facts.get('model', 'another model')} ({facts['fingerprint']}), not for this "
            f"model ({backbone.fingerprint})"
        )
    try:
        vectors = load_file(str(folder / VECTORS))["vectors"].to(backbone.device)
    except Exception as error:
        raise ModelError(f"{folder / VECTORS}: cannot be read ({error}); copy or train it again") from error
    return Learned(facts["kind"], vectors, facts, _adapter(folder, facts["kind"], backbone))


def _adapter(folder: Path, kind: Kind, backbone: Backbone) -> Adapter | None:
    if kind not in ADAPTERS:
        return None
    # Methods with other options share the adapter: each one attached costs a little in every forward.
    key = f"{folder.resolve()} {(folder / FACTS).stat().st_mtime_ns}"
    if key not in backbone.adapters:
        adapter = Adapter.load(folder, kind == "gated-lora", backbone.dtype, backbone.device)
        adapter.attach(backbone)
        backbone.adapters[key] = adapter
    return backbone.adapters[key]
