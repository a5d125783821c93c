"""Training in several processes: ``accelerate launch --num_processes N -m multitoken train ...``; on CPUs, where that
wants MPI, ``torchrun --nproc_per_node N -m multitoken train ...``.

Gradients are averaged by hand instead of through a wrapped module, since objectives call parts of their modules, and
not every step calls every part. Alone, nothing of `accelerate` is imported.

Under an FSDP configuration of `accelerate`, an objective may spread its weights over the processes with
`Processes.shard`; PyTorch then averages their gradients itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor


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

    @property
    def sharding(self) -> bool:
        """Launched with an FSDP configuration."""
        return self._state is not None and os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true", "yes")

    def shard(self, module: nn.Module, parts: Sequence[nn.Module]) -> None:
        """Spread the weights of ``module`` over the processes: each of ``parts`` on its own, then what is left.

        From then on ``module`` must be called as a whole.
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(self._state.device.type, (self.count,))
        for part in parts:
            fully_shard(part, mesh=mesh)
        fully_shard(module, mesh=mesh)

    def mean_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Replace every gradient by its mean over the processes; a missing one counts as zero."""
        parameters = [parameter for parameter in parameters if not isinstance(parameter, DTensor)]
        if self._state is None or not parameters:
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


def gathered(tensor: Tensor) -> Tensor:
    """All of a tensor that may be spread over the processes, which then must all ask for it."""
    return tensor.full_tensor().detach() if isinstance(tensor, DTensor) else tensor.detach()


def like(tensor: Tensor, target: Tensor) -> Tensor:
    """``tensor`` where ``target`` is: on its device, and spread over the processes as it is."""
    moved = tensor.to(target.device)
    return distribute_tensor(moved, target.device_mesh, target.placements) if isinstance(target, DTensor) else moved
