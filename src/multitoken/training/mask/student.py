"""What is trained: mask vectors, and with them nothing, an adapter, or a whole model."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from multitoken.methods.probe.learned import ADAPTERS, Kind
from multitoken.methods.probe.vectors import EmbeddingStatistics
from multitoken.models.adapter import Adapter
from multitoken.models.backbone import Backbone, ReadText
from multitoken.models.block import Block
from multitoken.training.processes import gathered
from multitoken.training.regions import Regions


class Student(nn.Module):
    """Vectors [k, d] and what is trained beside them.

    Args:
        backbone: the base. It stays as it is, except that an adapter is attached to it.
        kind: ``probes`` (vectors alone), ``gated-lora``, ``lora``, or ``full`` (a copy of the base is trained).
        masks: number of vectors k.
        vectors: where they start, [n, d]; what is missing is like the last of them (default: the mean of the embedding
            table).
        rank, alpha, targets: of the adapter.
        seed: of its first values.
    """

    def __init__(
        self,
        backbone: Backbone,
        kind: Kind,
        masks: int,
        vectors: Tensor | None = None,
        rank: int = 8,
        alpha: float = 16.0,
        targets: tuple[str, ...] = (),
        seed: int = 0,
    ):
        super().__init__()
        self.kind, self.base = kind, backbone
        given = EmbeddingStatistics.of(backbone).mean[None] if vectors is None else vectors.to(backbone.device)
        missing = max(masks - len(given), 0)
        self.vectors = nn.Parameter(torch.cat([given[:masks], given[-1:].repeat(missing, 1)]).float().clone())
        self.adapter: Adapter | None = None
        self.trained: nn.Module | None = None
        self.backbone = backbone
        if kind in ADAPTERS:
            self.adapter = Adapter.of(backbone, rank, alpha, kind == "gated-lora", targets, seed)
            self.adapter.attach(backbone)
        elif kind == "full":
            self.trained = copy.deepcopy(backbone.module).requires_grad_(True)
            self.backbone = Backbone(self.trained)  # type: ignore[arg-type]

    @property
    def keeps_text(self) -> bool:
        """Text slots are the base's own, so they need no gradient, and teacher and student share them."""
        return self.trained is None and (self.adapter is None or self.adapter.gated)

    def forward(self, regions: Regions, text: ReadText, along: bool = False) -> tuple[Tensor, Tensor | None]:
        """Logits of the predictions in every region, and with ``along`` those of every text slot.

        Args:
            text: the texts as the base reads them.

        Returns:
            [C, length, V] where the text is the base's own; else [C, 1 + length, V], the owner's prediction first.
            And None, or [B, T, V].
        """
        masks = self.vectors[: regions.length]
        if self.keeps_text:
            hidden = self.base.trace(self._adapted(regions.region_block(masks), regions), text)
            return self.base.logits(regions.states(hidden)), None
        hidden = self.backbone.trace(self._adapted(regions.whole_block(masks), regions))
        states = torch.cat([regions.owner_states(hidden)[:, None], regions.states(hidden)], 1)
        texts = self.backbone.logits(hidden[:, : regions.chains.width]) if along else None
        return self.backbone.logits(states), texts

    def layers(self) -> list[nn.Module]:
        """The layers of a model that is trained whole; their weights can be spread over processes one by one."""
        count = self.base.config.num_hidden_layers
        lists = [m for m in self.backbone.decoder.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
        return list(lists[0]) if lists else []

    def whole(self) -> PreTrainedModel | None:
        """A copy of the model that was trained, its weights gathered from all processes, which must all call this."""
        if self.trained is None:
            return None
        made = copy.deepcopy(self.base.module)
        for name, parameter in self.trained.named_parameters():
            made.get_parameter(name).data.copy_(gathered(parameter))
        return made

    def _adapted(self, block: Block, regions: Regions) -> Block:
        """``block`` with the slots named that the adapter acts on."""
        if self.adapter is not None:
            everything = torch.arange(block.rows * block.size, device=block.tokens.device)
            block.adapted = {self.adapter: regions.slots(block) if self.adapter.gated else everything}
        return block
