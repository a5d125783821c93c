"""Training in several processes: ``accelerate launch --num_processes N -m multitoken train ...``; on CPUs, where that
wants MPI, ``torchrun --nproc_per_node N -m multitoken train ...``.

Gradients are averaged by hand instead of through a wrapped module, since objectives call parts of their modules, and
not every step calls every part. Alone, nothing of `accelerate` is imported.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Processes:
    """All processes of this training, as one of them sees them.

    Attributes:
        rank: number of this process.
        count: number of processes.
    """

    def __init__(self) -> None:
        self.rank, self.count = 0, int(os.environ.get("WORLD_SIZE", "1"))
        self._state: Any = None
        if self.count > 1:
            from accelerate import PartialState

            self._state = PartialState(cpu=not torch.cuda.is_available())
            self.rank = self._state.process_index

    @property
    def first(self) -> bool:
        """This is the process that writes files and shows progress."""
        return self.rank == 0

    @property
    def device(self) -> str | None:
        """Where this process should load its model; None: wherever it would alone."""
        return str(self._state.device) if self._state is not None and self._state.device.type != "cpu" else None

    def mean_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Replace every gradient by its mean over the processes; a missing one counts as zero."""
        if self._state is None:
            return
        from accelerate.utils import reduce

        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat: Any = reduce(torch.cat([grad.flatten() for grad in grads]), "mean")
        parts = flat.split([grad.numel() for grad in grads])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)

    def agree(self, value: float) -> float:
        """What the first process passed."""
        if self._state is None:
            return value
        from accelerate.utils import broadcast_object_list

        return broadcast_object_list([value])[0]

    def wait(self) -> None:
        """Go on when every process is here."""
        if self._state is not None:
            self._state.wait_for_everyone()
