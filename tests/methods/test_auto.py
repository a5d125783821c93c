"""`auto`: the cost of a step, the choice that follows from it, and that its output is plain decoding's.

Choices are tested on a made-up clock: a step takes what a given curve says for the slots of its block.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from lossless import CYCLE, assert_lossless, cycled, cycling_backbone

from multitoken.engine.engine import Engine
from multitoken.engine.row import Request, Row
from multitoken.errors import OptionError
from multitoken.methods import create
from multitoken.methods.auto import Auto, AutoOptions, cost
from multitoken.methods.auto import method as module
from multitoken.methods.auto.cost import StepCost, cost_path, step_cost
from multitoken.methods.auto.method import EXPLORE, AutoState
from multitoken.methods.auto.trust import Reliability
from scripted import run
from support import tiny_backbone

PROMPT = (*CYCLE, CYCLE[0])


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULTITOKEN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


# -- what a step costs ------------------------------------------------------------------------------------------------


def curve(*seconds: float) -> StepCost:
    return StepCost(2.0 ** np.arange(len(seconds)), np.array(seconds))


def test_cost_between_and_beyond_the_measured_sizes():
    step = curve(1.0, 2.0, 6.0)  # at 1, 2 and 4 slots
    assert step.of(np.array([1, 2, 3, 4, 6])).tolist() == pytest.approx([1, 2, 4, 6, 10])
    assert float(step.of(1)) == 1.0


def test_cost_never_falls_with_size():
    step = curve(2.0, 1.0, 3.0, 2.5)
    assert step.seconds.tolist() == [2.0, 2.0, 3.0, 3.0]
    assert (np.diff(step.of(np.arange(1, 40))) >= 0).all()


def test_cost_follows_the_machine():
    step = curve(1.0, 2.0)
    for _ in range(100):
        step.learn(2, 3.0)
    assert step.drift == pytest.approx(1.5, rel=1e-3) and float(step.of(1)) == pytest.approx(1.5, rel=1e-3)
    before = step.drift
    step.learn(1, 1000.0)  # a paused process
    assert step.drift == pytest.approx(before * 1.1)


def test_curve_is_measured_once_and_again_when_damaged(backbone, monkeypatch, tmp_path):
    monkeypatch.setenv("MULTITOKEN_CACHE", str(tmp_path))
    calls = []
    measure = cost.measure_cost
    monkeypatch.setattr(cost, "measure_cost", lambda *a, **k: calls.append(a) or measure(*a, **k))
    monkeypatch.setattr(cost, "SIZES", (1, 2, 4))
    monkeypatch.setattr(cost, "REPEATS", 1)
    first = step_cost(backbone)
    assert first.sizes.tolist() == [1, 2, 4] and (first.seconds > 0).all()
    assert step_cost(backbone).seconds.tolist() == first.seconds.tolist() and len(calls) == 1
    path = cost_path(backbone)
    damaged = ["{", "null", "[1]", "{}", '{"sizes": [1, 2], "seconds": [1]}', '{"sizes": [1, 2], "seconds": [0, 1]}']
    for number, content in enumerate(damaged, start=2):
        path.write_text(content)
        assert (step_cost(backbone).seconds > 0).all() and len(calls) == number
    step_cost(backbone)
    assert len(calls) == 1 + len(damaged)


# -- what it chooses --------------------------------------------------------------------------------------------------


class Clocked(Auto):
    """Auto on a machine whose steps take ``seconds(slots)``, known to it; slots count padding."""

    def __init__(self, seconds: Callable[[np.ndarray], np.ndarray], monkeypatch, **options):
        super().__init__(AutoOptions(**options))
        self.now, self.true = 0.0, seconds
        monkeypatch.setattr(module, "perf_counter", lambda: self.now)

    def bind(self, backbone):
        super().bind(backbone)
        sizes = np.arange(1, 200, dtype=float)
        self._cost = StepCost(sizes, self.true(sizes))
        self._pace = module.Pace(tokens=1.0, seconds=float(self._cost.of(1)))

    def observe(self, rows, step):
        width = max(1 + draft.slots for draft in step.drafts)
        self.now += float(self.true(np.array(float(len(rows) * width))))
        super().observe(rows, step)


def free(slots: np.ndarray) -> np.ndarray:
    return np.ones_like(slots)


def dear(slots: np.ndarray) -> np.ndarray:
    """A further slot costs more than a step, so even a certain candidate does not pay."""
    return 1 + 1.5 * (slots - 1)


def free_to(limit: int) -> Callable[[np.ndarray], np.ndarray]:
    """Slots cost nothing up to ``limit``, and a whole step each beyond."""
    return lambda slots: 1 + np.maximum(slots - limit, 0)


def cycle_rows(method: Auto, rows: int = 1, tokens: int = 120) -> list[Row]:
    engine = Engine(cycling_backbone())
    made = [engine.add(Request(PROMPT, method, max_new_tokens=tokens)) for _ in range(rows)]
    run(engine)
    assert all(row.output == cycled(1, tokens) for row in made)
    return made


def test_decodes_plainly_where_slots_are_dear(monkeypatch):
    """But for a look at a probe now and then, even though every candidate would be right."""
    row = cycle_rows(Clocked(dear, monkeypatch), tokens=150)[0]
    assert row.drafted == [] and row.forwards == 149
    assert 0 < row.blocks.count(2) <= 150 // EXPLORE and set(row.blocks) == {1, 2}


def test_drafts_where_slots_are_free(monkeypatch):
    row = cycle_rows(Clocked(free, monkeypatch))[0]
    assert sum(row.spans[1:]) / row.forwards > 4
    assert 8 < max(row.blocks) <= 32


@pytest.mark.parametrize("size", [2, 7])
def test_blocks_stay_within_their_size(monkeypatch, size):
    row = cycle_rows(Clocked(free, monkeypatch, max_block_size=size))[0]
    assert max(row.blocks) == size


@pytest.mark.parametrize("rows", [1, 4])
def test_all_rows_share_the_free_slots(monkeypatch, rows):
    """Sixteen free slots: one row may use them all, four rows four each."""
    for row in cycle_rows(Clocked(free_to(16), monkeypatch), rows):
        steady = row.blocks[4:-2]
        assert max(steady) <= 16 // rows + 1 and np.median(steady) >= 3


def test_honesty_is_a_ratio_of_sums():
    """One node in ten accepted where 0.1 was expected: the predictions were right, so the scale stays near 1."""
    state = AutoState(fused=None, drafted=0.1)  # type: ignore[arg-type]
    assert state.honesty == 1.0
    for step in range(400):
        state.learn(1 if step % 10 == 0 else 0)
    assert state.honesty == pytest.approx(1.0, abs=0.2)
    for _ in range(400):
        state.learn(0)
    assert 0.5 < state.honesty < 1.0
    state.drafted = 2.0
    for _ in range(400):
        state.learn(1)
    assert state.honesty == pytest.approx((20 + 4) / (40 + 4), abs=0.01)


def test_worthless_probes_are_dropped_and_looked_at_again(monkeypatch):
    """A tiny random model's probes bring nothing: soon only the looks are left."""
    method = Clocked(lambda slots: 1 + 0.06 * (slots - 1), monkeypatch, rescore=0)
    engine = Engine(tiny_backbone("llama"))
    row = engine.add(Request((5, 9, 31), method, max_new_tokens=240))
    run(engine)
    assert sum(size > 1 for size in row.blocks[:40]) > sum(size > 1 for size in row.blocks[-120:])
    assert sum(size > 1 for size in row.blocks[-120:]) < 60


def test_another_model_has_its_own_costs(monkeypatch):
    held: list[object] = []
    monkeypatch.setattr(module, "step_cost", lambda backbone: held.append(backbone) or curve(1.0, 2.0))
    method = Auto()
    for backbone in (tiny_backbone("llama"), tiny_backbone("llama"), tiny_backbone("gpt2")):
        method.bind(backbone)
    assert held == [tiny_backbone("llama"), tiny_backbone("gpt2")]


# -- what it gives ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_output_is_plain_decodings(monkeypatch, family, together):
    assert_lossless(Clocked(free, monkeypatch), family, together)


def test_measured_costs_give_plain_decodings_output(monkeypatch):
    monkeypatch.setattr(cost, "REPEATS", 1)
    assert_lossless(create("auto"), "qwen2")


def test_rows_enter_and_leave(monkeypatch):
    method = Clocked(free_to(24), monkeypatch)
    engine = Engine(cycling_backbone())
    rows, gone = [], None
    for number in range(60):
        if number % 4 == 0 and len(rows) < 6:
            rows.append(engine.add(Request(PROMPT, method, max_new_tokens=30 + 7 * len(rows))))
        if number == 10:
            gone = rows[1]
            engine.finish(gone, "cancelled")
        engine.step()
    run(engine)
    for row in rows:
        assert row.output == cycled(1, row.generated)
        assert row is gone or row.generated == row.request.max_new_tokens
    assert gone is not None and gone.finish_reason == "cancelled"


@pytest.mark.parametrize(
    ("options", "words"), [(dict(max_block_size=1), "greater"), (dict(owners=1), "unknown option of method auto")]
)
def test_options_are_refused(options, words):
    with pytest.raises(OptionError, match=words):
        create("auto", **options)


# -- how far predictions are believed ---------------------------------------------------------------------------------


def test_reliability_follows_what_came_true():
    record = Reliability()
    sure, weak = float(np.log(0.8)), float(np.log(0.1))
    assert record.corrected([sure, weak]) == pytest.approx([0.8, 0.1])
    for step in range(4000):
        # Sure candidates come true half the time, weak ones twice as often as they say.
        record.learn([sure, weak], ([0] if step % 2 else []) + ([1] if step % 5 == 0 else []))
    assert record.corrected([sure, weak]) == pytest.approx([0.5, 0.2], rel=0.1)
    assert record.corrected([float(np.log(0.3))]) == pytest.approx([0.3])  # nothing is known of that range
    assert (record.corrected([0.0, weak]) <= 1).all()


def test_trees_that_do_not_pay_for_their_making_are_rarely_made(monkeypatch):
    """Where slots are dear, the next-token table and weak votes are asked at a look now and then."""
    made = {}
    for bare in (-1.0, 1.0):
        method = Clocked(dear, monkeypatch)
        engine = Engine(tiny_backbone("llama"))
        engine.add(Request((5, 9, 31), method, max_new_tokens=200, eos=frozenset()))
        method._pace.bare = bare
        tree_of, calls = method._fused.tree_of, []
        monkeypatch.setattr(method._fused, "tree_of", lambda *a, t=tree_of, c=calls: c.append(a) or t(*a))
        monkeypatch.setattr(method, "_echoes", lambda state, tokens: False)
        run(engine)
        made[bare] = len(calls)
    assert 0 < made[-1.0] < 12 < made[1.0]
