"""Training of heads: states on disk, what the objective computes, labels, predictors, and the whole of it."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from time import monotonic

import pytest
import torch
from torch import Tensor

from multitoken.errors import DataError
from multitoken.methods import create
from multitoken.methods.heads.checkpoint import load_heads
from multitoken.methods.heads.modules import Gate, Heads, HeadShape, Kind, Reader, SpanPredictor
from multitoken.models.backbone import Backbone
from multitoken.models.block import causal_block
from multitoken.models.capabilities import decide
from multitoken.models.loading import LoadedModel
from multitoken.training.bar import TrainingBar
from multitoken.training.corpus import Corpus, Sample
from multitoken.training.heads.labels import Labels, span_labels
from multitoken.training.heads.objective import HeadLoss, HeadObjective, spread, windows
from multitoken.training.heads.run import HeadTraining, frequent_tokens, train_heads
from multitoken.training.heads.span import SpanObjective, predicted_spans
from multitoken.training.heads.states import SHARD, States, hidden_states, make_states
from multitoken.training.loop import LoopOptions, train
from multitoken.training.processes import Processes
from scripted import generate
from support import VOCAB, byte_tokenizer, tiny_backbone

KEY = {"model": "tiny"}


def samples(count: int, longest: int = 24, backbone: Backbone | None = None) -> list[Sample]:
    """Answers of a tiny model to random prompts; without one, random answers of different length."""
    rng = random.Random(5)
    prompts = [[rng.randrange(6, VOCAB) for _ in range(rng.randint(1, 9))] for _ in range(count)]
    if backbone is None:
        return [Sample(p, [rng.randrange(6, VOCAB) for _ in range(rng.randint(2, longest))]) for p in prompts]
    rows = generate(backbone, prompts, max_new_tokens=longest)
    return [Sample(list(row.request.prompt), row.output) for row in rows]


def loaded(backbone: Backbone) -> LoadedModel:
    return LoadedModel("tiny", "", backbone, byte_tokenizer(), decide(backbone, "tiny"), frozenset([2]))


def reference(backbone: Backbone, sample: Sample) -> Tensor:
    """States of one answer, without batching."""
    text = torch.tensor([sample.prompt + sample.answer])
    hidden = backbone.trace(causal_block(text, torch.zeros(1, dtype=torch.int64)))[0]
    return hidden[len(sample.prompt) - 1 : -1]


def states_of(folder: Path, given: list[Sample], name: str = "train", deadline: float | None = None) -> States:
    return make_states(tiny_backbone(), given, folder, name, KEY, Processes(), deadline)


# -- states -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2"])
def test_states_are_those_of_each_answer_alone(family):
    backbone = tiny_backbone(family)
    given = samples(7)
    for sample, hidden in zip(given, hidden_states(backbone, given), strict=True):
        assert hidden.shape == (len(sample.answer), backbone.width) and hidden.dtype == torch.float16
        assert torch.allclose(hidden.float(), reference(backbone, sample).float(), rtol=2e-3, atol=2e-3)


def test_a_state_is_the_one_that_wrote_its_token():
    backbone = tiny_backbone()
    for sample in samples(3, backbone=backbone):
        written = backbone.project(reference(backbone, sample)).argmax(-1).tolist()
        assert written == sample.answer


def test_states_come_from_disk_in_any_window(tmp_path):
    given = samples(SHARD + 5)
    states = states_of(tmp_path, given)
    assert len(list(tmp_path.glob("train-*.safetensors"))) == 2
    assert states.lengths == [len(sample.answer) for sample in given]
    for answer in (0, SHARD - 1, SHARD, SHARD + 4):
        length = len(given[answer].answer)
        whole = states.window(answer, 0, 1000)
        assert whole.tokens.tolist() == given[answer].answer
        part = states.window(answer, length - 1, 4)
        assert torch.equal(part.hidden, whole.hidden[-1:]) and part.tokens.tolist() == given[answer].answer[-1:]


def test_a_pass_that_was_cut_off_goes_on(tmp_path, monkeypatch):
    given = samples(2 * SHARD)
    states_of(tmp_path, given)
    shards = sorted(tmp_path.glob("train-*.safetensors"))
    before = shards[0].stat().st_mtime_ns
    shards[1].unlink()
    assert len(states_of(tmp_path, given)) == 2 * SHARD
    assert shards[0].stat().st_mtime_ns == before
    shards[1].write_bytes(b"x")
    with pytest.raises(DataError, match="delete it and it is made again"):
        states_of(tmp_path, given)


def test_states_under_a_deadline_stay_as_they_are(tmp_path):
    given = samples(3 * SHARD)
    assert len(states_of(tmp_path, given, deadline=0.0)) == SHARD
    assert len(states_of(tmp_path, given, deadline=monotonic() + 1000)) == SHARD
    assert len(states_of(tmp_path, given)) == 3 * SHARD


def test_states_of_something_else_are_refused(tmp_path):
    states_of(tmp_path, samples(2))
    with pytest.raises(DataError, match="holds states with model='tiny', not 'other'"):
        make_states(tiny_backbone(), samples(2), tmp_path, "train", {"model": "other"}, Processes())


# -- objective --------------------------------------------------------------------------------------------------------


def objective(
    folder: Path, kind: Kind = "sequential", k: int = 2, vocabulary: Tensor | None = None, **loss
) -> HeadObjective:
    given = samples(9)
    heads = Heads(HeadShape(kind, k, 64, rank=16), torch.arange(VOCAB) if vocabulary is None else vocabulary)
    generator = torch.Generator().manual_seed(2)
    for parameter in heads.parameters():
        parameter.data.normal_(0, 0.3, generator=generator)
    reader = Reader(tiny_backbone(), heads.vocabulary, torch.float32)
    states = states_of(folder, given)
    return HeadObjective(heads, reader, states, states, HeadLoss(**{"window": 4, **loss}), KEY, VOCAB)


def by_hand(task: HeadObjective, states: States, answer: int, place: int) -> list[tuple[Tensor, int, int]]:
    """(log-probabilities, target, place of the target) of each head with a target at one place, one token at a time."""
    reader, heads = task._reader, task.heads
    whole = states.window(answer, 0, 1000)
    anchor = state = whole.hidden[place : place + 1]
    found = []
    for level in range(heads.shape.heads):
        target = place + level + heads.shape.offset
        if target >= len(whole.tokens):
            break
        state = heads.advance(level, anchor, state, reader.embed(whole.tokens[place + level : place + level + 1]))
        found.append((reader.logits(state)[0].log_softmax(-1), int(whole.tokens[target]), target))
    return found


@pytest.mark.parametrize("kind", ["parallel", "sequential", "competing"])
def test_predictions_are_those_made_one_place_at_a_time(tmp_path, kind):
    task = objective(tmp_path, kind)
    states = task._train
    items = windows(states, 4)
    predictions = task.predictions(task.batch(states, items))
    seen = Counter()
    for level, prediction in enumerate(predictions):
        for row, place in enumerate(prediction.places.tolist()):
            answer, start = items[place // 4]
            expected = by_hand(task, states, answer, start + place % 4)[level]
            assert int(prediction.targets[row]) == expected[1]
            assert torch.allclose(prediction.logits[row].log_softmax(-1), expected[0], atol=1e-4)
            seen[level] += 1
    offset = task.heads.shape.offset
    assert seen == {level: sum(max(0, n - level - offset) for n in states.lengths) for level in range(2)}


@pytest.mark.parametrize("distill", [0.0, 0.3, 1.0])
def test_the_loss_is_the_weighted_mean_over_heads(tmp_path, distill):
    vocabulary = torch.tensor([token for token in range(VOCAB) if token % 3])
    task = objective(tmp_path, vocabulary=vocabulary, distill=distill, rise=10)
    states, step = task._train, 4
    items = windows(states, 4)[:6]
    totals, counts, inside = [0.0, 0.0], [0, 0], [0, 0]
    hard = [0.0, 0.0]
    for answer, start in items:
        whole = states.window(answer, 0, 1000)
        teacher = task._reader.logits(whole.hidden).softmax(-1)
        for place in range(start, min(start + 4, states.lengths[answer])):
            for level, (logprobs, target, where) in enumerate(by_hand(task, states, answer, place)):
                totals[level] -= (teacher[where] * logprobs).sum().item()
                counts[level] += 1
                if target % 3:
                    hard[level] -= logprobs[(vocabulary == target).nonzero()[0, 0]].item()
                    inside[level] += 1
    weights = [1.0, 0.8 * 0.5]
    means = [(1 - distill) * hard[i] / inside[i] + distill * totals[i] / counts[i] for i in range(2)]
    expected = sum(w * m for w, m in zip(weights, means, strict=True)) / sum(weights)
    numbers = [task._items.index(item) for item in items]
    assert task.loss(numbers, step).item() == pytest.approx(expected, rel=1e-4)


def test_deeper_heads_come_in_one_after_the_other():
    loss = HeadLoss(decay=0.5, rise=10)
    assert [loss.weight(level, 4) for level in range(3)] == [1.0, 0.25, 0.0625]
    assert [loss.weight(level, 100) for level in range(3)] == [loss.weight(level, None) for level in range(3)]
    assert [HeadLoss(rise=0).weight(level, 0) for level in range(2)] == [1.0, 0.8]


def test_labels_count_right_heads_before_the_first_wrong_one(tmp_path):
    task = objective(tmp_path, "sequential", k=2)
    states = task._train
    items, expected = windows(states, 4), []
    for answer, start in items:
        for place in range(start, min(start + 4, states.lengths[answer])):
            found = by_hand(task, states, answer, place)
            if len(found) == 2:
                right = [int(logprobs.argmax()) == target for logprobs, target, _ in found]
                expected.append(0 if not right[0] else 1 + right[1])
    labels = span_labels(task, states, 4, 10_000)
    assert Counter(labels.spans.tolist()) == Counter(expected) and len(labels.hidden) == len(expected)
    assert 0 < len(span_labels(task, states, 4, 10_000, enough=lambda: True).spans) < len(expected)
    assert 0 < len(span_labels(task, states, 4, 12).spans) <= 12


def test_evaluation_gives_accuracy_and_tau(tmp_path):
    task = objective(tmp_path, "parallel", k=2)
    figures = task.evaluate()
    spans = span_labels(task, task._train, 4, 10_000).spans.float()
    assert figures["tau"] == pytest.approx(1 + float(spans.mean()))
    assert set(figures) == {"loss", "tau", "head 1", "head 2"} and 0 <= figures["head 1"] < 0.2
    assert task.evaluate() == figures


def test_spread_keeps_order_and_ends():
    items = [(i, 0) for i in range(10)]
    assert spread(items, 20) == items
    assert [answer for answer, _ in spread(items, 5)] == [0, 2, 4, 6, 8]


def test_frequent_tokens_come_first():
    given = [Sample([200], [9, 9, 9, 50, 50, 7])]
    assert frequent_tokens(given, 4, VOCAB).tolist() == [0, 7, 9, 50]
    assert frequent_tokens(given, 0, VOCAB).tolist() == list(range(VOCAB))


# -- predictors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cls", "steps"), [(SpanPredictor, 150), (Gate, 25)])
def test_predictors_learn_what_a_line_can_tell(tmp_path, cls, steps):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(600, 16, generator=generator)
    spans = (hidden[:, 0] > 0).long() + (hidden[:, 0] > 0.8).long()
    labels = Labels(hidden.half(), spans)
    torch.manual_seed(0)
    task = SpanObjective(cls(16, 2), labels, labels, KEY)
    outcome = train(task, LoopOptions(tmp_path, steps=steps, batch=128, learning_rate=0.02, warmup=1))
    assert outcome.held_out["accuracy"] > 0.8
    confusion = torch.tensor(task.confusion())
    assert confusion.sum() == 600 and int(confusion.diag().sum()) / 600 == pytest.approx(outcome.held_out["accuracy"])
    assert confusion.sum(1).tolist() == [int((spans == s).sum()) for s in range(3)]


def test_a_gate_stops_at_its_first_doubt():
    assert predicted_spans(Gate(4, 3), torch.tensor([[1.0, -1, 1], [-1, 1, 1], [1, 1, 1]])).tolist() == [1, 0, 3]


# -- the whole --------------------------------------------------------------------------------------------------------


def whole(folder: Path, steps: int = 60, time_budget: float | None = None, **settings):
    backbone = tiny_backbone()
    given = samples(64, backbone=backbone)
    corpus = Corpus({"seed": 3, "source": "self"}, given)
    training = HeadTraining(
        **{
            "heads": 2,
            "rank": 64,
            "vocabulary": 200,
            "span_steps": 15,
            "held_out": 0.15,
            "loss": HeadLoss(window=8, rise=10),
            **settings,
        }
    )
    loop = LoopOptions(folder, steps, batch=16, learning_rate=5e-3, warmup=5, time_budget=time_budget)
    bars = lambda name, steps: TrainingBar(False, name, steps)  # noqa: E731
    return train_heads(loaded(backbone), corpus, training, loop, command="test", bars=bars)


@pytest.mark.parametrize("kind", ["parallel", "sequential", "competing"])
def test_trained_heads_decode(tmp_path, kind):
    facts = whole(tmp_path, kind=kind)
    assert json.loads((tmp_path / "heads.json").read_text())["figures"] == facts["figures"]
    backbone = tiny_backbone()
    held = load_heads(tmp_path, backbone)
    assert held.heads.shape.kind == kind and len(held.heads.vocabulary) == 200 and held.gate is not None
    assert held.facts["corpus"]["digest"] and held.facts["loop"]["seed"] == 0
    curve = json.loads((tmp_path / "curve.json").read_text())["points"]
    assert curve[-1]["held_out"]["loss"] < curve[0]["held_out"]["loss"]
    assert all((tmp_path / part / "curve.svg").is_file() for part in ("", "span", "gate"))
    plain = generate(backbone, [[9, 30, 77]], max_new_tokens=20)[0].output
    method = create("heads", checkpoint=tmp_path)
    assert generate(backbone, [[9, 30, 77]], method, max_new_tokens=20)[0].output == plain


def test_the_same_training_gives_the_same_heads(tmp_path):
    whole(tmp_path / "a", steps=12, gate=False)
    whole(tmp_path / "b", steps=12, gate=False)
    assert (tmp_path / "a" / "heads.safetensors").read_bytes() == (tmp_path / "b" / "heads.safetensors").read_bytes()
    whole(tmp_path / "a", steps=12, gate=False)  # all done already
    assert (tmp_path / "a" / "heads.safetensors").read_bytes() == (tmp_path / "b" / "heads.safetensors").read_bytes()
    with pytest.raises(DataError, match="was begun with"):
        whole(tmp_path / "a", steps=12, gate=False, kind="parallel")


def test_states_are_shared_between_trainings(tmp_path):
    whole(tmp_path / "a", steps=4, states=tmp_path / "states", gate=False)
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "states").glob("*.safetensors")}
    assert written and not (tmp_path / "a" / "states").exists() and not (tmp_path / "a" / "gate").exists()
    whole(tmp_path / "b", steps=4, states=tmp_path / "states", gate=False, kind="parallel")
    assert written == {path: path.stat().st_mtime_ns for path in (tmp_path / "states").glob("*.safetensors")}


def test_a_time_budget_holds_for_the_whole(tmp_path):
    started = monotonic()
    facts = whole(tmp_path, steps=100_000, time_budget=6.0, span_steps=100_000)
    assert monotonic() - started < 15  # without the budget: hours
    assert 0 < facts["figures"]["heads"]["steps"] < 100_000
    again = whole(tmp_path, steps=100_000, time_budget=7.0, span_steps=100_000)
    assert again["figures"]["heads"]["steps"] >= facts["figures"]["heads"]["steps"]
    assert load_heads(tmp_path, tiny_backbone()).gate is not None


def test_answers_too_short_for_the_heads_are_an_error(tmp_path):
    corpus = Corpus({}, samples(64, longest=3))
    training = HeadTraining(heads=6, rank=8, held_out=0.15, loss=HeadLoss(window=4))
    with pytest.raises(DataError, match="too short for 6 heads"):
        train_heads(
            loaded(tiny_backbone()),
            corpus,
            training,
            LoopOptions(tmp_path, 2),
            bars=lambda name, steps: TrainingBar(False, name, steps),
        )
