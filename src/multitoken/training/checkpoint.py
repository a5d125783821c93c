"""Checkpoints that a kill cannot damage, and that training goes on from to the same bits.

A checkpoint is a folder named after its step. It is filled under another name, flushed and renamed, so a folder of that
name is whole. What decides a step (items, random numbers, learning rate) follows from the seed and the step's number,
so weights, optimizer and a few numbers are all that has to be kept.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from multitoken.errors import DataError
from multitoken.storage import is_full
from multitoken.training.processes import gathered, like

SCHEMA = "multitoken.training/1"
PREFIX, TENSORS, FACTS = "step-", "state.safetensors", "state.json"
KEPT = 2


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of ``module`` that are trained, by name."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def save(folder: Path, step: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write the checkpoint of ``step`` under ``folder`` and drop all but the last `KEPT`. Raises `DataError`.

    ``tensors``: what `state` gave.
    """
    target = folder / f"{PREFIX}{step:08d}"
    part = folder / f".{target.name}.part"
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        save_file(tensors, str(part / TENSORS))
        (part / FACTS).write_text(json.dumps({"schema": SCHEMA, "step": step, **facts}, indent=1), "utf-8")
        for path in (part / TENSORS, part / FACTS):
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        if target.exists():
            shutil.rmtree(target)
        os.replace(part, target)
    except Exception as error:
        shutil.rmtree(part, ignore_errors=True)
        if isinstance(error, OSError) or is_full(error):
            raise DataError(f"{target}: cannot be written ({error}); free some space and run the same again") from error
        raise
    for old in _steps(folder)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def restore(folder: Path, module: nn.Module, optimizer: Optimizer, key: dict[str, Any]) -> dict[str, Any] | None:
    """Load the newest checkpoint under ``folder`` in place. Returns its facts, or None if there is none.

    Raises `DataError` if it belongs to a training with other settings: ``key`` must equal the one it was saved with.
    """
    found = _steps(folder)
    if not found:
        return None
    path = found[-1]
    try:
        facts = json.loads((path / FACTS).read_text("utf-8"))
        tensors = load_file(str(path / TENSORS))
    except Exception as error:
        raise DataError(f"{path}: cannot be read ({error}); delete it, and the one before it is used") from error
    if facts.get("schema") != SCHEMA:
        raise DataError(f"{path}: is not of schema {SCHEMA}; delete {folder} to begin again")
    # As they come back from JSON.
    for name, value in json.loads(json.dumps(key)).items():
        if facts["key"].get(name) != value:
            raise DataError(
                f"{folder}: training was begun with {name}={facts['key'].get(name)!r}, not {value!r}; "
                "choose another folder, or delete this one"
            )
    _load(tensors, module, optimizer)
    return facts


def _steps(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{PREFIX}*"))


def state(module: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Weights and optimizer state, gathered from all processes, which must all call this."""
    kept: dict[str, Tensor] = {}
    for name, parameter in trained(module).items():
        kept[f"weight/{name}"] = gathered(parameter)
        for key, value in optimizer.state[parameter].items():
            kept[f"{key}/{name}"] = gathered(value) if isinstance(value, Tensor) else torch.tensor(value)
    return {name: tensor.cpu().contiguous().clone() for name, tensor in kept.items()}


def _load(tensors: dict[str, Tensor], module: nn.Module, optimizer: Optimizer) -> None:
    parameters = trained(module)
    for name, tensor in tensors.items():
        key, _, parameter = name.partition("/")
        target = parameters[parameter]
        if key == "weight":
            target.data.copy_(like(tensor, target.data))
        else:  # AdamW keeps its step count on the CPU
            optimizer.state[target][key] = tensor if key == "step" else like(tensor, target.data)
