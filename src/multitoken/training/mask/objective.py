"""The student-forced objective: masks learn from how the model itself judges what they wrote.

Source: Kirchenbauer, Hans, Bartoldson, Goldblum, Panda, Goldstein, "Multi-Token Prediction via Self-Distillation",
arXiv 2602.06019. One forward of the student is one roll-out: its best tokens at the owner and at the masks. The frozen
teacher reads prefix and roll-out, and says what it would have written at each place; the student is trained toward
that. The paper's alternatives (labels from the text, a fixed k, masks that see each other, a loss on the text itself)
are switches. Vectors alone are trained on labels from the text.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from multitoken.training.mask.student import Student
from multitoken.training.regions import IGNORED, Regions, Text, lay_out, spread_owners

TOP = 14  # a hit: the true token is among so many of a mask's best
SURE = 0.9  # ConfAdapt's threshold in the held-out figures
EVALUATION_BATCH = 4


@dataclass(frozen=True, slots=True)
class MaskSettings:
    """What the objective asks.

    Attributes:
        k_max: largest number of tokens that a forward predicts (the model's own and ``k_max - 1`` masks).
        fixed_k: ask for ``k_max`` tokens in every step instead of 2 to ``k_max`` at random.
        labels: ``student`` (its own roll-out, judged by the teacher) or ``truth`` (the text goes on as it did).
        teacher: ``hard`` (its best token) or ``soft`` (its distribution).
        bidirectional: masks of a region see each other.
        prefix_loss: the student's next-token predictions along the text are trained too.
        regions: regions per text.
        longest: tokens of a text.
        judged: held-out texts that are looked at.
    """

    k_max: int = 8
    fixed_k: bool = False
    labels: Literal["student", "truth"] = "student"
    teacher: Literal["hard", "soft"] = "hard"
    bidirectional: bool = False
    prefix_loss: bool = False
    regions: int = 8
    longest: int = 192
    judged: int = 16


@dataclass(slots=True)
class Judged:
    """Predictions and what they should have been.

    Attributes:
        logits: the student's, [C, n, V]: at the masks, and before them at the owner where that is trained too.
        targets: token ids [C, n], `IGNORED` where nothing is asked, or distributions [C, n, V].
        asked: which predictions count, bool [C, n].
    """

    logits: Tensor
    targets: Tensor
    asked: Tensor

    def loss(self) -> Tensor:
        """Mean cross-entropy of what is asked."""
        logits, targets = self.logits[self.asked], self.targets[self.asked]
        return cross_entropy(logits, targets) if len(logits) else self.logits.sum() * 0.0


class MaskObjective:
    """An objective of the training loop.

    Args:
        student: what is trained.
        texts, held_out: texts to learn from and to judge by.
        ends: token ids that end a text.
        provenance: what a checkpoint must agree with (model, data).
    """

    def __init__(
        self,
        student: Student,
        texts: Sequence[Text],
        held_out: Sequence[Text],
        settings: MaskSettings,
        ends: frozenset[int],
        provenance: Mapping[str, Any],
    ):
        self.module = self.student = student
        self._texts, self._held_out, self._settings = texts, held_out[: settings.judged], settings
        self._ends = torch.tensor(sorted(ends), dtype=torch.int64, device=student.base.device)
        self.size = len(texts)
        self.key = {**provenance, **asdict(settings), "kind": student.kind}

    def loss(self, items: Sequence[int], step: int) -> Tensor:
        rng = random.Random(int(torch.randint(2**62, ())))
        settings = self._settings
        k = settings.k_max if settings.fixed_k else rng.randint(2, settings.k_max)
        texts = [self._texts[item] for item in items]
        owners = [spread_owners(text, settings.regions, rng) for text in texts]
        judged, along = self._judge(self._regions(texts, owners, k - 1))
        return judged.loss() if along is None else judged.loss() + along.loss()

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Held-out figures: ``loss``; ``tau``, tokens per forward if each forward's chain of masks is verified;
        ``confadapt``, tokens per forward at threshold 0.9; and for each mask the share of true tokens among its best
        14."""
        length = self._settings.k_max - 1
        sums: dict[str, float] = {}
        counts: dict[str, int] = {}

        def add(name: str, values: Tensor) -> None:
            sums[name] = sums.get(name, 0.0) + float(values.float().sum())
            counts[name] = counts.get(name, 0) + values.numel()

        for first in range(0, len(self._held_out), EVALUATION_BATCH):
            texts = self._held_out[first : first + EVALUATION_BATCH]
            owners = [spread_owners(text, self._settings.regions, random.Random(0)) for text in texts]
            regions = self._regions(texts, owners, length)
            judged, _ = self._judge(regions)
            asked = int(judged.asked.sum())
            sums["loss"] = sums.get("loss", 0.0) + float(judged.loss()) * asked
            counts["loss"] = counts.get("loss", 0) + asked
            masks, truth = judged.logits[:, -length:], regions.targets[:, 1:]
            best = masks.softmax(-1).max(-1)
            add("tau", 1 + (best.indices == truth).long().cumprod(1).sum(1))
            add("confadapt", 1 + (best.values > SURE).long().cumprod(1).sum(1))
            hits = (masks.topk(min(TOP, masks.shape[-1])).indices == truth[..., None]).any(-1)
            for mask in range(length):
                add(f"hits {mask + 1}", hits[:, mask][truth[:, mask] != IGNORED])
        return {name: total / max(counts[name], 1) for name, total in sums.items()}

    # -- student and teacher ------------------------------------------------------------------------------------------

    def _regions(self, texts: Sequence[Text], owners: Sequence[Sequence[int]], length: int) -> Regions:
        return lay_out(texts, owners, length, self.student.base, self._settings.bidirectional)

    def _judge(self, regions: Regions) -> tuple[Judged, Judged | None]:
        """One roll-out of the student in every region, and with ``prefix_loss`` its predictions along the texts."""
        student, base, settings = self.student, self.student.base, self._settings
        text_hidden, text = base.read(regions.text_block())
        logits, along = student(regions, text, settings.prefix_loss)
        with torch.no_grad():
            if settings.labels == "truth":
                targets, asked = self._truth(regions, text_hidden)
            else:
                owners = base.logits(regions.owner_states(text_hidden))[:, None]
                rolled = logits.argmax(-1)
                if student.keeps_text:
                    rolled = torch.cat([owners.argmax(-1), rolled], 1)
                judging = regions.states(base.trace(regions.region_block(rolled[:, :-1]), text))
                targets, asked = self._student_forced(torch.cat([owners, base.logits(judging)], 1), rolled)
        # With the text kept, the owner's own prediction is the base's, and needs no lesson.
        last = logits.shape[1]
        judged = Judged(logits, targets[:, -last:], asked[:, -last:])
        return judged, None if along is None else self._along(regions, along, text_hidden)

    def _student_forced(self, teacher: Tensor, rolled: Tensor) -> tuple[Tensor, Tensor]:
        """The teacher's opinion, logits [C, n, V], on a roll-out [C, n]; behind its end the end is repeated."""
        ended = torch.isin(rolled, self._ends).long().cumsum(1) - torch.isin(rolled, self._ends).long() > 0
        if self._settings.teacher == "soft":
            return teacher.softmax(-1), ~ended
        ends = rolled.gather(1, torch.isin(rolled, self._ends).long().argmax(1, keepdim=True))
        return torch.where(ended, ends, teacher.argmax(-1)), torch.ones_like(ended)

    def _truth(self, regions: Regions, text_hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The text itself, or with a soft teacher what the base thought there."""
        asked = regions.targets != IGNORED
        if self._settings.teacher == "hard":
            return regions.targets, asked
        chains = regions.chains
        columns = chains.owners[:, None] + torch.arange(regions.length + 1, device=chains.owners.device)
        following = (columns + 1).clamp(max=chains.width - 1)
        # Where the text has ended there is nothing that the base thought.
        inside = chains.text_mask[chains.row[:, None], following] & (columns + 1 < chains.width)
        columns = columns.clamp(max=chains.width - 1)
        return self.student.base.logits(text_hidden[chains.row[:, None], columns]).softmax(-1), asked & inside

    def _along(self, regions: Regions, logits: Tensor, text_hidden: Tensor) -> Judged:
        """Next-token predictions at every text slot, [B, T, V], against the base's."""
        with torch.no_grad():
            teacher = self.student.base.logits(text_hidden)
            targets = teacher.softmax(-1) if self._settings.teacher == "soft" else teacher.argmax(-1)
        return Judged(logits, targets, regions.chains.text_mask)
