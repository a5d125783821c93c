"""What a result depends on beside its options: model, data, versions, machine."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from multitoken.bench.schema import Provenance
from multitoken.bench.tasks import TaskData
from multitoken.models.loading import LoadedModel

PACKAGES = ("multitoken", "torch", "transformers", "tokenizers", "numpy")


def provenance(model: LoadedModel, data: TaskData, command: str) -> Provenance:
    return Provenance(
        model=model.name,
        model_hash=model.backbone.fingerprint,
        dtype=model.dtype,
        data=data.source,
        data_sha256=data.sha256,
        versions=versions(),
        machine=machine(model.backbone.device),
        command=command,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def machine(device: torch.device) -> dict[str, str | int]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "device": f"{device.type}: {name}",
    }


def processor() -> str:
    """Model name of the CPU."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
