"""Greedy output equals that of Transformers' own ``generate``, token for token, whatever is drafted."""

from __future__ import annotations

import random
from typing import Any

import pytest
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
)

from multitoken.engine.engine import Engine
from multitoken.engine.row import Request
from multitoken.engine.sampling import Sampling
from multitoken.methods.plain import Plain
from scripted import Guesses, generate, run
from support import FAMILIES, VOCAB, reference, tiny_backbone, tiny_model

TOKENS = 15
ODD = range(1, VOCAB, 2)


def prompts() -> list[list[int]]:
    """One token, a few, beyond the sliding window of the test models (12), and beyond two of them."""
    rng = random.Random(5)
    return [[rng.randrange(3, VOCAB) for _ in range(length)] for length in (1, 5, 17, 30)]


_REFERENCES: dict[str, list[list[int]]] = {}


def references(family: str) -> list[list[int]]:
    if family not in _REFERENCES:
        outputs = [reference(tiny_model(family), prompt, TOKENS) for prompt in prompts()]
        assert all(len(set(output)) >= 4 for output in outputs), "a reference that repeats itself proves little"
        _REFERENCES[family] = outputs
    return _REFERENCES[family]


def guesses(family: str, seed: int, known: bool = True) -> Guesses:
    truth = {tuple(p): out for p, out in zip(prompts(), references(family), strict=True)} if known else None
    return Guesses(VOCAB, tiny_backbone(family).width, truth, seed=seed)


@pytest.mark.parametrize("family", FAMILIES)
def test_plain(family):
    """Alone, and in a ragged batch of four with the prompts read in chunks."""
    backbone, expected = tiny_backbone(family), references(family)
    rows = generate(backbone, prompts(), max_new_tokens=TOKENS, chunk=7)
    assert [row.output for row in rows] == expected
    for index in (0, 2):
        assert generate(backbone, [prompts()[index]], max_new_tokens=TOKENS)[0].output == expected[index]


@pytest.mark.parametrize("family", FAMILIES)
def test_right_guesses_among_wrong_ones(family):
    backbone, expected = tiny_backbone(family), references(family)
    method = guesses(family, seed=1)
    rows = generate(backbone, prompts(), method, max_new_tokens=TOKENS, chunk=7)
    assert [row.output for row in rows] == expected
    assert all(row.forwards < TOKENS - 1 for row in rows), "some guesses were accepted"
    assert any(draft.probes for draft in method.drafted)
    for index in (0, 3):
        alone = generate(backbone, [prompts()[index]], guesses(family, seed=2), max_new_tokens=TOKENS)
        assert alone[0].output == expected[index]


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2", "mixtral"])
def test_wrong_guesses_change_nothing(family):
    rows = generate(tiny_backbone(family), prompts(), guesses(family, 3, known=False), max_new_tokens=TOKENS)
    assert [row.output for row in rows] == references(family)


@pytest.mark.parametrize("chunk", [1, 3, 16, 17, 30])
def test_any_prefill_chunk(chunk):
    rows = generate(tiny_backbone(), prompts(), guesses("llama", chunk), max_new_tokens=TOKENS, chunk=chunk)
    assert [row.output for row in rows] == references("llama")


def test_each_row_has_its_own_method():
    engine = Engine(tiny_backbone("mistral"), prefill_chunk=8)
    methods = [Plain(), guesses("mistral", 4), guesses("mistral", 5, known=False), guesses("mistral", 6)]
    rows = [
        engine.add(Request(tuple(prompt), method, max_new_tokens=TOKENS))
        for prompt, method in zip(prompts(), methods, strict=True)
    ]
    run(engine)
    assert [row.output for row in rows] == references("mistral")


@pytest.mark.parametrize("seed", range(4))
def test_rows_enter_and_leave_at_any_moment(seed):
    """Rows join between steps, some are cancelled, budgets differ: every row's text is its own."""
    rng = random.Random(seed)
    family = ["llama", "gemma3_text", "gpt2", "phi3"][seed]
    backbone = tiny_backbone(family)
    engine = Engine(backbone, prefill_chunk=6)
    waiting, running, done = [rng.choice(range(4)) for _ in range(14)], [], []
    while waiting or engine.rows:
        if waiting and (not engine.rows or rng.random() < 0.4):
            index, budget = waiting.pop(), rng.randint(1, TOKENS)
            method = rng.choice([Plain(), guesses(family, seed)])
            running.append((engine.add(Request(tuple(prompts()[index]), method, max_new_tokens=budget)), index, budget))
        if engine.rows and rng.random() < 0.05:
            engine.finish(rng.choice(engine.rows), "cancelled")
        for emission in engine.step():
            if emission.row.finish_reason is not None:
                done.append(emission.row)
    assert len(running) == 14 and {row.finish_reason for row in done} == {"length"}
    for row, index, budget in running:
        assert row.output == references(family)[index][: row.generated]
        assert row.finish_reason in ("length", "cancelled")
        if row.finish_reason == "length":
            assert row.generated == budget == sum(row.spans)


@pytest.mark.parametrize("guessing", [False, True])
@pytest.mark.parametrize(
    ("settings", "theirs"),
    [
        ({"repetition_penalty": 1.6}, {"repetition_penalty": 1.6}),
        (
            {"processors": (NoRepeatNGramLogitsProcessor(2),), "repetition_penalty": 1.2},
            {"no_repeat_ngram_size": 2, "repetition_penalty": 1.2},
        ),
        ({"logit_bias": dict.fromkeys(ODD, -9.0)}, {"sequence_bias": [[[token], -9.0] for token in ODD]}),
    ],
)
def test_penalties_and_processors(settings, theirs, guessing):
    """Processors see the true history at every node of a tree."""
    backbone, module = tiny_backbone(), tiny_model()
    expected = [reference(module, prompt, TOKENS, **theirs) for prompt in prompts()]
    assert expected != references("llama"), "the setting has an effect"
    truth = {tuple(p): out for p, out in zip(prompts(), expected, strict=True)}
    method = Guesses(VOCAB, backbone.width, truth) if guessing else Plain()
    rows = generate(backbone, prompts(), method, max_new_tokens=TOKENS, sampling=Sampling(**settings))
    assert [row.output for row in rows] == expected


@pytest.mark.parametrize("guessing", [False, True])
@pytest.mark.parametrize("place", [1, 5, 12])
def test_end_of_sequence_inside_a_span(guessing, place):
    """An end token ends the row where it stands, however much was drafted and accepted around it."""
    expected = references("llama")[1]
    end = expected[place]
    first = expected.index(end)
    method = guesses("llama", place) if guessing else Plain()
    endings: list[dict[str, Any]] = [{"eos": frozenset([end])}, {"stop_tokens": frozenset([end, 261])}]
    for settings in endings:
        row = generate(tiny_backbone(), [prompts()[1]], method, max_new_tokens=TOKENS, **settings)[0]
        assert row.output == expected[: first + 1]
        assert row.finish_reason == "stop"
        assert sum(row.spans) == first + 1


@pytest.mark.parametrize("guessing", [False, True])
@pytest.mark.parametrize("least", [0, 1, 7, TOKENS])
def test_min_tokens(guessing, least):
    """As Transformers' ``min_new_tokens``: end tokens cannot be chosen before."""
    module, prompt = tiny_model(), prompts()[1]
    end = references("llama")[1][0]
    expected = reference(
        module,
        prompt,
        TOKENS,
        eos_token_id=end,
        logits_processor=LogitsProcessorList(
            [MinNewTokensLengthLogitsProcessor(len(prompt), least, end, device="cpu")]
        ),
    )
    method = Guesses(VOCAB, 64, {tuple(prompt): expected}) if guessing else Plain()
    row = generate(tiny_backbone(), [prompt], method, max_new_tokens=TOKENS, min_tokens=least, eos=frozenset([end]))[0]
    assert row.output == expected
    assert row.finish_reason == ("stop" if expected[-1] == end else "length")
