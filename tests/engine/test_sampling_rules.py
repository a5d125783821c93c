"""How one token is chosen from its logits: against Transformers' processors and warpers, and by definition."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from multitoken.engine.sampling import Sampler, Sampling
from multitoken.errors import OptionError

VOCAB = 40
PROMPT = [3, 7, 7, 21]
HISTORY = [*PROMPT, 5, 9, 9, 9, 3]


def logits(seed: int) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.7},
        {"temperature": 2.0},
        {"top_k": 1},
        {"top_k": 5},
        {"top_k": VOCAB + 3},
        {"top_p": 0.05},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"min_p": 1.0},
        {"repetition_penalty": 1.7},
        {"repetition_penalty": 0.6},
        {"temperature": 1.3, "top_k": 12, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.2},
    ],
)
def test_distribution_equals_transformers(settings):
    """Same order as Transformers: penalty, temperature, top_k, top_p, min_p."""
    settings = {"temperature": 1.0, **settings}
    theirs = LogitsProcessorList()
    if "repetition_penalty" in settings:
        theirs.append(RepetitionPenaltyLogitsProcessor(settings["repetition_penalty"]))
    if settings["temperature"] != 1:
        theirs.append(TemperatureLogitsWarper(settings["temperature"]))
    if "top_k" in settings:
        theirs.append(TopKLogitsWarper(settings["top_k"]))
    if "top_p" in settings:
        theirs.append(TopPLogitsWarper(settings["top_p"]))
    if "min_p" in settings:
        theirs.append(MinPLogitsWarper(settings["min_p"]))
    for seed in range(20):
        scores = theirs(torch.tensor([HISTORY]), logits(seed)[None].double())[0]  # type: ignore[operator]
        ours = Sampler(Sampling(**settings), len(PROMPT)).distribution(logits(seed), HISTORY)
        assert torch.equal(ours > 0, scores.softmax(0) > 0)
        torch.testing.assert_close(ours, scores.softmax(0), atol=1e-6, rtol=1e-5)


def test_penalties_by_definition():
    """Presence and frequency count output tokens only; the repetition penalty counts the prompt too."""
    raw = logits(1)
    s = Sampling(presence_penalty=0.5, frequency_penalty=0.25, logit_bias={2: 1.5, 9: -2.0}, repetition_penalty=1.4)
    expected = raw.clone()
    for token in set(HISTORY):
        expected[token] = raw[token] * 1.4 if raw[token] < 0 else raw[token] / 1.4
    for token, times in ((5, 1), (9, 3), (3, 1)):
        expected[token] -= 0.5 + 0.25 * times
    expected[2] += 1.5
    expected[9] -= 2.0
    kept = raw.clone()
    torch.testing.assert_close(Sampler(s, len(PROMPT)).processed(raw, HISTORY), expected)
    assert torch.equal(raw, kept), "the model's logits stay as they are"


def test_no_output_yet_no_penalty():
    s = Sampling(presence_penalty=9.0, frequency_penalty=9.0)
    assert torch.equal(Sampler(s, len(PROMPT)).processed(logits(2), PROMPT), logits(2))


def test_processors_see_the_history_after_the_penalties():
    seen = []

    def processor(ids, scores):
        seen.append((ids.clone(), scores.clone()))
        return scores - 100 * torch.nn.functional.one_hot(scores.argmax(-1), VOCAB)

    s = Sampling(logit_bias={4: 50.0}, processors=(processor, processor))
    token = Sampler(s, len(PROMPT)).draw(logits(3), HISTORY)
    assert [ids.tolist() for ids, _ in seen] == [[HISTORY], [HISTORY]]
    assert int(seen[0][1].argmax()) == 4
    expected = logits(3)
    expected[4] = -torch.inf
    assert token == int(expected.topk(2).indices[1])


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_banned_tokens_are_never_drawn(temperature):
    sampler = Sampler(Sampling(temperature=temperature), len(PROMPT))
    banned = frozenset(logits(4).topk(20).indices.tolist()) | {VOCAB + 5}
    drawn = {sampler.draw(logits(4), [*PROMPT, *range(n)], banned) for n in range(30)}
    assert not drawn & banned
    if temperature == 0:
        assert drawn == {int(logits(4).topk(21).indices[20])}


def test_draws_follow_the_distribution():
    """6,000 draws of one token against its probabilities, by chi-square; every output position draws anew."""
    raw, count = logits(5)[:12], 6_000
    sampler = Sampler(Sampling(temperature=1.7, top_k=9, seed=11), 0)
    drawn = torch.tensor([sampler.draw(raw, range(index)) for index in range(count)])
    observed = torch.bincount(drawn, minlength=12).double()
    expected = sampler.distribution(raw, []) * count
    assert (observed[expected == 0] == 0).all()
    used = expected > 0
    statistic = float(((observed - expected)[used] ** 2 / expected[used]).sum())
    assert statistic < chi_square_limit(int(used.sum()) - 1)


def test_draws_depend_on_seed_and_position_alone():
    raw = torch.zeros(1000)
    first = [Sampler(Sampling(temperature=1.0, seed=5), 2).draw(raw, [0] * (2 + i)) for i in range(8)]
    other_prompt = [Sampler(Sampling(temperature=1.0, seed=5), 4).draw(raw, [9] * (4 + i)) for i in range(8)]
    other_seed = [Sampler(Sampling(temperature=1.0, seed=6), 2).draw(raw, [0] * (2 + i)) for i in range(8)]
    assert first == other_prompt
    assert len(set(first)) > 5 and first != other_seed


@pytest.mark.parametrize("seed", [0, 2**63, 2**64 - 1])
def test_every_allowed_seed_draws(seed):
    assert 0 <= Sampler(Sampling(temperature=1.0, seed=seed), 0).draw(torch.zeros(9), []) < 9


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf),
        ("presence_penalty", math.nan),
        ("frequency_penalty", math.inf),
        ("logit_bias", {3: math.nan}),
        ("seed", -1),
        ("seed", 2**64),
    ],
)
def test_impossible_settings_are_named(option, value):
    with pytest.raises(OptionError, match=f"^{option}="):
        Sampling(**{option: value})


def chi_square_limit(degrees: int) -> float:
    """The value that chi-square exceeds once in ten thousand times (Wilson and Hilferty's approximation)."""
    return degrees * (1 - 2 / (9 * degrees) + 3.719 * math.sqrt(2 / (9 * degrees))) ** 3
