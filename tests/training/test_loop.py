"""The training loop on a small regression: it learns, and what a kill interrupts ends with the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep

import pytest
import torch
from torch import Tensor, nn

from multitoken.errors import DataError
from multitoken.training import checkpoint
from multitoken.training.loop import LoopOptions, Order, learning_rate, train


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 1))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)


class Regression:
    """Learns the sum of four numbers; with dropout, so that random numbers matter."""

    def __init__(self, pause: float = 0.0, size: int = 50):
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(size, 4, generator=generator)
        torch.manual_seed(1)
        self.module, self.size, self.key, self.pause = Line(), size, {"data": "sum"}, pause
        self.steps: list[int] = []

    def loss(self, items: Sequence[int], step: int) -> Tensor:
        sleep(self.pause)
        self.steps.append(step)
        x = self.inputs[list(items)]
        return (self.module.net(x)[:, 0] - x.sum(1)).square().mean()

    def evaluate(self) -> dict[str, float]:
        self.module.eval()
        loss = (self.module.net(self.inputs)[:, 0] - self.inputs.sum(1)).square().mean().item()
        self.module.train()
        return {"loss": loss, "twice": 2 * loss}

    @property
    def weights(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.module.parameters()])


def options(out: Path, **changes) -> LoopOptions:
    given = {"steps": 40, "batch": 4, "accumulate": 2, "learning_rate": 0.02, "warmup": 5, "evaluate_every": 10}
    return LoopOptions(out, **{**given, "checkpoint_every": 7, **changes})  # type: ignore[arg-type]


def test_it_learns_and_draws_its_curve(tmp_path):
    task = Regression()
    outcome = train(task, options(tmp_path, steps=200))
    assert outcome.steps == 200
    assert outcome.held_out["loss"] < 0.2 * outcome.points[0].held_out["loss"]
    points = json.loads((tmp_path / "curve.json").read_text())["points"]
    assert [p["step"] for p in points] == list(range(0, 201, 10))
    assert points[-1]["held_out"]["loss"] == outcome.held_out["loss"] and points[1]["loss"] > 0
    svg = (tmp_path / "curve.svg").read_text()
    assert svg.startswith("<svg") and svg.count("<polyline") == 3 and "held-out loss" in svg and "twice" in svg


class Killed(BaseException):
    pass


@pytest.mark.parametrize("at", [1, 7, 23])
def test_an_interrupted_training_ends_with_the_same_bits(tmp_path, at):
    whole = Regression()
    outcome = train(whole, options(tmp_path / "whole"))

    def stop(step, loss, held_out):
        if step == at:
            raise Killed

    with pytest.raises(Killed):
        train(Regression(), options(tmp_path / "cut"), stop)
    resumed = Regression()
    again = train(resumed, options(tmp_path / "cut"))
    assert torch.equal(whole.weights, resumed.weights)
    assert [(p.step, p.loss, p.held_out) for p in again.points] == [
        (p.step, p.loss, p.held_out) for p in outcome.points
    ]
    assert len(resumed.steps) == 2 * (40 - at // 7 * 7)
    third = Regression()
    train(third, options(tmp_path / "cut"))
    assert third.steps == [] and torch.equal(third.weights, whole.weights)


def test_kill_9_leaves_what_can_be_taken_up(tmp_path):
    code = (
        "from pathlib import Path; from test_loop import *; "
        f"train(Regression(pause=0.01), options(Path({str(tmp_path / 'cut')!r}), checkpoint_every=3))"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(__file__).parents[i]) for i in (0, 1))}
    process = subprocess.Popen([sys.executable, "-c", code], env=env)
    deadline = monotonic() + 120
    while len(list((tmp_path / "cut").glob("checkpoints/step-*"))) < 2:
        assert process.poll() is None and monotonic() < deadline
        sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    resumed, whole = Regression(), Regression()
    train(resumed, options(tmp_path / "cut", checkpoint_every=3))
    train(whole, options(tmp_path / "whole", checkpoint_every=3))
    assert 0 < len(resumed.steps) < len(whole.steps)
    assert torch.equal(whole.weights, resumed.weights)


def test_half_written_checkpoints_are_ignored(tmp_path):
    whole, cut = Regression(), Regression()
    train(whole, options(tmp_path / "whole"))
    train(cut, options(tmp_path / "cut", steps=40))
    part = tmp_path / "cut" / "checkpoints" / ".step-00000099.part"
    part.mkdir()
    (part / "state.json").write_text("{")
    again = Regression()
    train(again, options(tmp_path / "cut"))
    assert torch.equal(whole.weights, again.weights)


def test_other_settings_are_refused(tmp_path):
    train(Regression(), options(tmp_path))
    with pytest.raises(DataError, match=r"begun with learning_rate=0\.02, not 0\.5"):
        train(Regression(), options(tmp_path, learning_rate=0.5))
    with pytest.raises(DataError, match="items=50, not 30"):
        train(Regression(size=30), options(tmp_path))
    train(Regression(), options(tmp_path, checkpoint_every=1, time_budget=100.0))


def test_a_damaged_checkpoint_is_one_line(tmp_path):
    train(Regression(), options(tmp_path))
    newest = sorted((tmp_path / "checkpoints").iterdir())[-1]
    (newest / checkpoint.TENSORS).write_bytes(b"x")
    with pytest.raises(DataError, match="delete it, and the one before it is used"):
        train(Regression(), options(tmp_path))


def test_a_time_budget_ends_in_time_and_lowers_the_rate(tmp_path):
    task = Regression(pause=0.01)
    started = monotonic()
    outcome = train(task, options(tmp_path, steps=100_000, time_budget=1.5, evaluate_every=5))
    assert 0.7 < monotonic() - started < 2.5
    assert 5 < outcome.steps < 100_000
    assert outcome.points[-1].step == outcome.steps
    assert list((tmp_path / "checkpoints").glob(f"step-{outcome.steps:08d}"))
    rate = learning_rate(options(tmp_path, steps=100_000, time_budget=1.5), outcome.steps, 0.95)
    assert rate < 0.02 * 0.01


def test_accumulation_gives_the_gradient_of_the_larger_batch(tmp_path):
    tasks = [Regression(), Regression()]
    for index, (batch, accumulate) in enumerate([(8, 1), (4, 2)]):
        tasks[index].module.eval()  # dropout would differ
        tasks[index].evaluate = lambda: {"loss": 0.0}  # type: ignore[method-assign]
        train(tasks[index], options(tmp_path / str(index), batch=batch, accumulate=accumulate))
    assert torch.allclose(tasks[0].weights, tasks[1].weights, atol=1e-5)


def test_mixed_precision_learns_in_float32_weights(tmp_path):
    task, full = Regression(), Regression()
    outcome = train(task, options(tmp_path / "a", steps=200, precision="bfloat16"))
    train(full, options(tmp_path / "b", steps=200))
    assert outcome.held_out["loss"] < 0.3 * outcome.points[0].held_out["loss"]
    assert task.weights.dtype == torch.float32 and not torch.equal(task.weights, full.weights)


def test_order_visits_every_item_once_per_pass():
    order = Order(10, 4, seed=3)
    seen = [item for step in range(5) for item in order.at(step)]
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert seen[:10] != seen[10:]
    assert Order(10, 4, seed=3).at(4) == order.at(4) != Order(10, 4, seed=4).at(4)


def test_rates_rise_and_fall(tmp_path):
    cosine = options(tmp_path)
    assert learning_rate(cosine, 0, 0.0) == pytest.approx(0.02 / 5)
    assert learning_rate(cosine, 20, 0.5) == pytest.approx(0.01)
    assert learning_rate(cosine, 40, 1.0) == pytest.approx(0.0)
    assert learning_rate(replace(cosine, schedule="constant"), 39, 0.97) == 0.02


TWO = """
import sys
from pathlib import Path
import torch
from test_loop import Regression, options
from multitoken.training.loop import train
from multitoken.training.processes import Processes
processes = Processes()
task = Regression()
task.module.eval()
task.evaluate = lambda: {"loss": 0.0}
train(task, options(Path(sys.argv[1]), batch=4, accumulate=1), processes=processes)
torch.save(task.weights, f"{sys.argv[1]}/weights-{processes.rank}-of-{processes.count}.pt")
"""


@pytest.mark.slow
def test_two_processes_equal_one_with_twice_the_batch(tmp_path):
    script = tmp_path / "two.py"
    script.write_text(TWO)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(__file__).parents[i]) for i in (0, 1))}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    subprocess.run([*command, str(script), str(tmp_path / "two")], env=env, check=True)
    found = [torch.load(tmp_path / "two" / f"weights-{rank}-of-2.pt") for rank in (0, 1)]
    assert torch.equal(*found)
    one = Regression()
    one.module.eval()
    one.evaluate = lambda: {"loss": 0.0}  # type: ignore[method-assign]
    train(one, options(tmp_path / "one", batch=8, accumulate=1))
    assert torch.allclose(one.weights, found[0], atol=1e-5)
