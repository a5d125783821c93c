"""What a step costs on this machine: measured once per model, then corrected by the steps themselves."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from multitoken.models.backbone import Backbone
from multitoken.models.cost import measure_cost
from multitoken.storage import cache_dir, write_atomically

SIZES = (1, 2, 4, 8, 16, 32, 64)
CONTEXT = 256
REPEATS = 3
WEIGHT = 0.1  # of the newest step in a running mean
VERSION = 1


@dataclass(slots=True)
class StepCost:
    """Seconds of a step against the slots of its block (all rows together), and the drift of the machine.

    Attributes:
        sizes, seconds: the measured curve, ascending in size.
        drift: running ratio of what steps took to what the curve says.
    """

    sizes: np.ndarray
    seconds: np.ndarray
    drift: float = 1.0

    def __post_init__(self) -> None:
        # Noise may make a larger block look cheaper; a step is never charged less for doing more.
        self.seconds = np.maximum.accumulate(self.seconds)

    def of(self, slots: np.ndarray | int) -> np.ndarray:
        """Expected seconds at ``slots`` slots; beyond the curve, its last slope goes on."""
        slots = np.asarray(slots, dtype=float)
        inside = np.interp(slots, self.sizes, self.seconds)
        slope = (self.seconds[-1] - self.seconds[-2]) / (self.sizes[-1] - self.sizes[-2])
        return self.drift * (inside + np.maximum(slots - self.sizes[-1], 0) * slope)

    def learn(self, slots: int, seconds: float) -> None:
        """Take in a step's own time. Outliers (a busy machine, a paused process) count as twice the expectation."""
        ratio = seconds / float(self.of(slots))
        self.drift *= 1 + WEIGHT * (min(ratio, 2.0) - 1)


def step_cost(backbone: Backbone) -> StepCost:
    """The curve of this model, dtype, device and number of threads, from the cache or measured now (seconds)."""
    path = cost_path(backbone)
    try:
        held = json.loads(path.read_text())
        sizes, seconds = (np.array(held[key], dtype=float) for key in ("sizes", "seconds"))
        if 1 < len(sizes) == len(seconds) and (np.diff(sizes) > 0).all() and (seconds > 0).all():
            return StepCost(sizes, seconds)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    # Missing or damaged: measured again.
    limit = backbone.max_positions
    context = CONTEXT if limit is None else max(min(CONTEXT, limit - SIZES[-1] - 1), 1)
    sizes = [size for size in SIZES if limit is None or context + size < limit]
    points = measure_cost(backbone, sizes, context, repeats=REPEATS)
    content = {"version": VERSION, "sizes": sizes, "seconds": [point.seconds for point in points]}
    write_atomically(path, lambda part: part.write_text(json.dumps(content)))
    return StepCost(np.array(sizes, dtype=float), np.array(content["seconds"], dtype=float))


def cost_path(backbone: Backbone) -> Path:
    """Where the curve is kept."""
    device = backbone.device
    machine = (
        torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    )
    parts = (backbone.fingerprint, backbone.dtype_name, backbone.runtime, device.type, machine)
    threads = torch.get_num_threads() if device.type == "cpu" else 0
    name = "-".join("".join(c if c.isalnum() else "_" for c in part) for part in parts)
    return cache_dir("cost", f"{name}-{threads}-{VERSION}.json")
