"""Where a row ends, what it reports, and what the engine refuses."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from multitoken.engine.draft import ROOT, Draft
from multitoken.engine.engine import Engine
from multitoken.engine.method import Method
from multitoken.engine.row import Request
from multitoken.engine.sampling import Sampling
from multitoken.errors import OptionError
from multitoken.methods.plain import Plain
from scripted import Guesses, Scripted, generate, run
from support import VOCAB, reference, tiny_backbone, tiny_model

CONTEXT = 256  # of the test models
PROMPT = [7, 30, 200, 41, 9]


def long_prompt(length: int) -> list[int]:
    rng = random.Random(length)
    return [rng.randrange(3, VOCAB) for _ in range(length)]


@pytest.mark.parametrize("family", ["gpt2", "mistral"])
@pytest.mark.parametrize("left", [1, 2, 9])
def test_context_limit(family, left, monkeypatch):
    """Drafts and probes shrink near the model's last position; the row ends there with ``length``."""
    backbone, prompt = tiny_backbone(family), long_prompt(CONTEXT - left)
    expected = reference(tiny_model(family), prompt, left)
    furthest = []
    forward = type(backbone).forward

    def spy(self, block, cache):
        furthest.append(int(block.positions.max()))
        return forward(self, block, cache)

    monkeypatch.setattr(type(backbone), "forward", spy)
    method = Guesses(VOCAB, backbone.width, {tuple(prompt): expected}, nodes=12)
    row = generate(backbone, [prompt], method, max_new_tokens=100, chunk=64)[0]
    assert row.output == expected
    assert len(row.tokens) == CONTEXT and row.finish_reason == "length"
    assert max(furthest) < CONTEXT
    assert len(method.drafted) == len(row.spans)


@pytest.mark.parametrize("budget", [1, 2, 3, 10])
def test_budget(budget):
    """A draft is never deeper than what is left, so no span overruns the budget."""
    backbone = tiny_backbone()
    truth = reference(tiny_model(), PROMPT, 20)
    method = Scripted(lambda row: Draft(truth[row.generated : row.generated + 8] or [5], range(ROOT, 7)))
    row = generate(backbone, [PROMPT], method, max_new_tokens=budget)[0]
    assert row.output == truth[:budget] and row.finish_reason == "length"
    assert row.spans[0] == min(budget, 9), "drafts are verified from the first forward on"
    for draft in method.drafted:
        assert draft.nodes <= 8
    assert row.forwards == len(row.spans) - 1 == len(row.blocks)


@pytest.mark.parametrize("alternatives", [0, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_logprobs_are_those_of_an_ordinary_forward(alternatives, temperature):
    """Under the model itself: before temperature and penalties."""
    backbone = tiny_backbone()
    sampling = Sampling(temperature=temperature, repetition_penalty=1.3, seed=1)
    settings: dict[str, Any] = dict(sampling=sampling, max_new_tokens=14, logprobs=alternatives)
    plain = generate(backbone, [PROMPT], **settings)[0]
    method = Guesses(VOCAB, backbone.width, {tuple(PROMPT): plain.output})
    row = generate(backbone, [PROMPT], method, **settings)[0]
    assert row.forwards < 13
    logits = tiny_model().forward(torch.tensor([row.tokens])).logits[0, len(PROMPT) - 1 : -1]
    expected = logits.double().log_softmax(-1)
    assert [found.token for found in row.logprobs] == row.output == plain.output
    for found, values in zip(row.logprobs, expected, strict=True):
        assert found.logprob == pytest.approx(float(values[found.token]), abs=1e-4)
        top = values.topk(alternatives) if alternatives else None
        assert [token for token, _ in found.top] == ([] if top is None else top.indices.tolist())
        assert [p for _, p in found.top] == pytest.approx([] if top is None else top.values.tolist(), abs=1e-4)


def test_counters():
    """Drafted and accepted nodes by depth, for a draft of which two of three levels are right."""
    truth = reference(tiny_model(), PROMPT, 20)

    def half_right(row):
        ahead = truth[row.generated :]
        wrong = (ahead[0] + 1) % VOCAB
        return Draft([ahead[0], wrong, ahead[1], (ahead[2] + 1) % VOCAB], [ROOT, ROOT, 0, 2])

    engine = Engine(tiny_backbone())
    row = engine.add(Request(tuple(PROMPT), Scripted(half_right), max_new_tokens=3 * 4))
    run(engine)
    assert row.output == truth[:12] and row.spans == [3, 3, 3, 3]
    assert row.drafted == [6, 3, 2] and row.accepted == [3, 3, 0], "the last draft was cut to what was left"
    assert row.blocks == [5, 5, 4] and row.forwards == 3
    assert engine.clock.steps == 3 and 0 < engine.clock.model < engine.clock.total


def test_what_a_method_is_told():
    """Hidden state, logits and probe logits of the anchor equal those of ordinary forwards."""
    backbone, truth = tiny_backbone(), reference(tiny_model(), PROMPT, 9)
    vectors = torch.randn(4, backbone.width)

    def make(row):
        ahead = truth[row.generated : row.generated + 2]
        return Draft([*ahead, 3], [ROOT, 0, ROOT, ROOT, 0, 1, 5], vectors=vectors)

    method = Scripted(make)
    generate(backbone, [PROMPT], method, max_new_tokens=9)
    rows, step = method.steps[0]
    assert step.paths == [[0, 1]] and step.tokens == [truth[:3]] and step.anchor(0) == 1
    assert step.probe_slots == [[5, 6]]
    text = torch.tensor([PROMPT + truth[:2]])
    plain = tiny_model().forward(text, output_hidden_states=True)
    torch.testing.assert_close(step.hidden[0], plain.hidden_states[-1][0, -1], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(step.node_logits[0][2], plain.logits[0, -1], atol=1e-4, rtol=1e-4)
    embeds = torch.cat([backbone.embed(text), vectors[None, 2:]], 1)
    probed = tiny_model().forward(inputs_embeds=embeds).logits[0, -2:]
    torch.testing.assert_close(step.probe_logits[0], probed, atol=1e-4, rtol=1e-4)
    assert method.stopped == rows, "the method lets go once"


class NothingWanted(Scripted):
    def wanted(self, row, draft, path):
        return []


def test_no_probe_is_projected_unless_wanted():
    method = NothingWanted(lambda row: Draft([], [ROOT], vectors=torch.zeros(1, 64)))
    generate(tiny_backbone(), [PROMPT], method, max_new_tokens=3)
    assert [tuple(step.probe_logits[0].shape) for _, step in method.steps] == [(0, VOCAB)] * 2
    assert all(step.probe_logits[0].dtype == torch.float32 for _, step in method.steps)


class AddsTwo(Method):
    """Lossy on purpose: drafts the model's true next token, then commits two tokens that nobody verified."""

    name, lossless = "adds-two", False

    def draft(self, rows):
        return [Draft([best(row.tokens)], [ROOT]) for row in rows]

    def extend(self, rows, step):
        return [extras(tokens[-1]) for tokens in step.tokens]


def best(text: list[int]) -> int:
    return int(tiny_model().forward(torch.tensor([text])).logits[0, -1].argmax())


def extras(token: int) -> list[int]:
    return [(token * 7 + 3) % VOCAB, (token + 100) % VOCAB]


def by_hand(prompt: list[int], budget: int, end: int | None) -> tuple[list[int], list[int]]:
    text, spans = list(prompt), []
    while True:
        span: list[int] = []
        while len(span) < 2:
            span.append(best(text + span))
        span += extras(span[-1])
        span = span[: budget - (len(text) - len(prompt))]
        if end in span:
            span = span[: span.index(end) + 1]
        text += span
        spans.append(len(span))
        if end in span or len(text) - len(prompt) == budget:
            return text[len(prompt) :], spans


@pytest.mark.parametrize("budget", [4, 16, 18, 19])
def test_a_lossy_method_commits_what_it_adds(budget):
    prompts = [PROMPT, long_prompt(11)]
    rows = generate(tiny_backbone(), prompts, AddsTwo(), max_new_tokens=budget, chunk=4)
    for row, prompt in zip(rows, prompts, strict=True):
        output, spans = by_hand(prompt, budget, None)
        assert (row.output, row.spans, row.finish_reason) == (output, spans, "length")


@pytest.mark.parametrize("place", range(4, 8))
def test_an_end_token_among_what_is_added(place):
    end = by_hand(PROMPT, 16, None)[0][place]
    output, spans = by_hand(PROMPT, 16, end)
    row = generate(tiny_backbone(), [PROMPT], AddsTwo(), max_new_tokens=16, eos=frozenset([end]))[0]
    assert (row.output, row.spans, row.finish_reason) == (output, spans, "stop")


def test_emissions_are_the_output():
    engine, heard = Engine(tiny_backbone(), prefill_chunk=3), {}
    rows = [engine.add(Request(tuple(p), AddsTwo(), max_new_tokens=11)) for p in (PROMPT, long_prompt(9))]
    while engine.rows:
        for emission in engine.step():
            heard.setdefault(id(emission.row), []).extend(emission.tokens)
    assert [heard[id(row)] for row in rows] == [row.output for row in rows]
    assert engine.step() == []


def test_finish_from_outside():
    engine, method = Engine(tiny_backbone()), Scripted()
    rows = [engine.add(Request(tuple(PROMPT), method, max_new_tokens=20)) for _ in range(3)]
    for _ in range(8):
        engine.step()
    engine.finish(rows[0], "stop")
    engine.finish(rows[0], "stop")
    assert method.stopped == [rows[0]] and rows[0] not in engine.rows
    length = rows[0].generated
    run(engine)
    assert rows[0].generated == length and rows[0].finish_reason == "stop"
    assert rows[1].output == rows[2].output == reference(tiny_model(), PROMPT, 20)


def test_prompts_are_read_in_order_of_arrival():
    """Whatever leaves or swaps places meanwhile."""
    engine, started = Engine(tiny_backbone(), prefill_chunk=4), []
    rows = [engine.add(Request(tuple(long_prompt(17 + n)), Plain(), max_new_tokens=2 + n)) for n in range(5)]
    while engine.rows:
        started += [e.row for e in engine.step() if len(e.row.spans) == 1]
    assert [rows.index(row) for row in started] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("option", "settings"),
    [
        ("prompt", dict(prompt=())),
        ("prompt", dict(prompt=(3, VOCAB))),
        ("prompt", dict(prompt=(-1,))),
        ("prompt", dict(prompt=(5,) * CONTEXT)),
        ("max_new_tokens", dict(max_new_tokens=0)),
        ("max_new_tokens", dict(max_new_tokens=-5)),
        ("min_tokens", dict(min_tokens=-1)),
        ("min_tokens", dict(min_tokens=11, max_new_tokens=10)),
        ("logprobs", dict(logprobs=-1)),
        ("logprobs", dict(logprobs=VOCAB + 1)),
        ("logprobs", dict(logprobs=2, method=AddsTwo())),
        ("stop_token_ids", dict(stop_tokens=frozenset([VOCAB]))),
        ("logit_bias", dict(sampling=Sampling(logit_bias={VOCAB: 1.0}))),
    ],
)
def test_impossible_requests_are_named(option, settings):
    engine = Engine(tiny_backbone())
    with pytest.raises(OptionError, match=f"^{option}=") as caught:
        engine.add(Request(**{"prompt": (5,), "method": Plain(), **settings}))
    assert "\n" not in str(caught.value)
    assert engine.rows == [], "nothing was let in"


def test_prefill_chunk_is_checked():
    with pytest.raises(OptionError, match=r"^prefill_chunk=0"):
        Engine(tiny_backbone(), prefill_chunk=0)


def test_memory_stays_flat():
    """Many short requests through one engine leave the cache as it was."""
    engine = Engine(tiny_backbone())
    held = engine._cache.nbytes
    for _ in range(100):
        engine.add(Request((5, 9), Plain(), max_new_tokens=1))
        run(engine)
    assert engine._cache.nbytes == held and engine._cache.lengths == []
