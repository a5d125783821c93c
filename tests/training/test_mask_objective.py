"""The student-forced objective: targets against separate forwards, the switches, and learning."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy

from multitoken.methods.probe.learned import Kind
from multitoken.models.backbone import Backbone
from multitoken.models.block import causal_block
from multitoken.training.mask import MaskObjective, MaskSettings, Student
from multitoken.training.regions import Text, lay_out
from support import tiny_model

ENDS = frozenset({2})
TEXTS = [Text([(7 * i + j) % 250 + 5 for i in range(20)], 4) for j in (0, 3, 9)]


def student_of(kind: Kind, masks: int = 3) -> Student:
    student = Student(Backbone(copy.deepcopy(tiny_model())), kind, masks, rank=4)
    generator = torch.Generator().manual_seed(0)
    student.vectors.data += torch.randn(student.vectors.shape, generator=generator)
    if student.adapter is not None:
        for parameter in student.adapter.up.values():
            parameter.data.normal_(0, 0.2, generator=generator)
    if student.trained is not None:
        for parameter in student.trained.parameters():
            parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    return student


def objective_of(student: Student, texts=TEXTS, **settings) -> MaskObjective:
    chosen = MaskSettings(**{"k_max": 4, "regions": 3, "longest": 20, **settings})
    return MaskObjective(student, texts, texts, chosen, ENDS, {"model": "tiny"})


def alone(backbone: Backbone, tokens: list[int], masks: torch.Tensor | None = None, adapted=None) -> torch.Tensor:
    """Logits of every slot of one text with masks behind it."""
    count = 0 if masks is None else len(masks)
    block = causal_block(torch.tensor([[*tokens, *[0] * count]]), torch.tensor([0]))
    if masks is not None:
        block.vectors, block.vector_index = masks, torch.arange(len(tokens), len(tokens) + count)
    if adapted is not None:
        first = len(tokens) if adapted.gated else 0
        block.adapted = {adapted: torch.arange(first, len(tokens) + count)}
    return backbone.logits(backbone.trace(block))[0]


@pytest.mark.parametrize("kind", ["probes", "gated-lora", "lora", "full"])
@pytest.mark.parametrize("teacher", ["hard", "soft"])
def test_loss_is_the_teachers_opinion_on_the_students_roll_out(kind, teacher):
    student = student_of(kind)
    objective = objective_of(student, teacher=teacher)
    owners = [[4, 9, 15], [6], [18]]
    regions = lay_out(TEXTS, owners, 3, student.base)
    judged, _ = objective._judge(regions)
    first = 0 if kind in ("lora", "full") else 1
    losses = []
    with torch.no_grad():
        for text, places in zip(TEXTS, owners, strict=True):
            for place in places:
                prefix = list(text.tokens[: place + 1])
                own = alone(student.backbone, prefix, student.vectors, student.adapter)[place:]
                written = own.argmax(-1).tolist()
                opinion = alone(student.base, prefix + written[:-1])[place:]
                targets = opinion.softmax(-1) if teacher == "soft" else opinion.argmax(-1)
                assert 2 not in written
                losses += [cross_entropy(own[i], targets[i]) for i in range(first, 4)]
    torch.testing.assert_close(judged.loss(), torch.stack(losses).mean(), atol=1e-4, rtol=1e-4)


def test_behind_an_end_the_end_is_repeated():
    objective = objective_of(student_of("probes"))
    teacher = torch.zeros(2, 4, 262)
    teacher[:, :, 9] = 1
    rolled = torch.tensor([[5, 2, 7, 8], [5, 6, 7, 2]])
    targets, asked = objective._student_forced(teacher, rolled)
    assert targets.tolist() == [[9, 9, 2, 2], [9, 9, 9, 9]] and asked.all()
    soft = objective_of(student_of("probes"), teacher="soft")
    assert soft._student_forced(teacher, rolled)[1].tolist() == [[True, True, False, False], [True] * 4]


def test_labels_from_the_text():
    student = student_of("probes")
    text = Text([5, 6, 7, 8, 9, 2], 1, end=True)
    regions = lay_out([text], [[1, 3]], 3, student.base)
    judged, _ = objective_of(student, [text], labels="truth")._judge(regions)
    assert judged.targets.tolist() == [[8, 9, 2], [2, 2, 2]] and judged.asked.all()
    judged, _ = objective_of(student, [text], labels="truth", teacher="soft")._judge(regions)
    expected = alone(student.base, list(text.tokens)).softmax(-1)
    torch.testing.assert_close(judged.targets[0], expected[2:5], atol=1e-5, rtol=1e-4)
    assert judged.asked.tolist() == [[True, True, True], [True, False, False]]
    cut = Text(text.tokens, 1)
    judged, _ = objective_of(student, [cut], labels="truth")._judge(lay_out([cut], [[3]], 3, student.base))
    assert judged.asked.tolist() == [[True, False, False]]


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_prefix_loss_covers_the_text_and_no_padding(kind):
    student = student_of(kind)
    texts = [TEXTS[0], Text(TEXTS[1].tokens[:12], 4)]
    regions = lay_out(texts, [[5], [6]], 2, student.base)
    judged, along = objective_of(student, prefix_loss=True)._judge(regions)
    assert along is not None and int(along.asked.sum()) == 32 and judged is not None
    expected = []
    for text in texts:
        own = alone(student.backbone, list(text.tokens), student.vectors[:0], student.adapter)
        expected.append(cross_entropy(own, alone(student.base, list(text.tokens)).argmax(-1), reduction="none"))
    torch.testing.assert_close(along.loss(), torch.cat(expected).mean(), atol=1e-4, rtol=1e-4)


def test_k_is_drawn_or_fixed(monkeypatch):
    student = student_of("probes")
    for fixed, expected in ((False, {1, 2, 3}), (True, {3})):
        objective = objective_of(student, fixed_k=fixed)
        judge, seen = objective._judge, []

        def watched(regions, judge=judge, seen=seen):
            seen.append(regions.length)
            return judge(regions)

        monkeypatch.setattr(objective, "_judge", watched)
        for step in range(12):
            torch.manual_seed(step)
            objective.loss([0], step)
        assert set(seen) == expected


@pytest.mark.parametrize("kind", ["probes", "gated-lora", "lora", "full"])
def test_it_learns(kind):
    """Sixty steps on three texts: the loss falls, masks hit more often, the base stays as it was."""
    student = student_of(kind)
    before = {name: tensor.clone() for name, tensor in student.base.module.state_dict().items()}
    objective = objective_of(student, labels="truth", fixed_k=True)
    start = objective.evaluate()
    parameters = [p for p in student.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=0.03 if kind != "full" else 0.003)
    for step in range(60):
        torch.manual_seed(step)
        optimizer.zero_grad()
        objective.loss([0, 1, 2], step).backward()
        optimizer.step()
    end = objective.evaluate()
    assert objective.evaluate() == end
    assert end["loss"] < (0.9 if kind == "probes" else 0.7) * start["loss"]
    assert kind == "probes" or end["hits 1"] > start["hits 1"]
    assert all(torch.equal(before[name], tensor) for name, tensor in student.base.module.state_dict().items())
