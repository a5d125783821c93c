"""Sampled continuations through the whole engine, against the exact distribution of the model."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
import torch
from test_sampling_rules import chi_square_limit
from transformers import LlamaConfig, LlamaForCausalLM

from multitoken.engine.draft import ROOT, Draft
from multitoken.engine.engine import Engine
from multitoken.engine.row import Request
from multitoken.engine.sampling import Sampler, Sampling
from multitoken.models import attention
from multitoken.models.backbone import Backbone
from scripted import Guesses, Scripted, generate, run
from support import VOCAB, tiny_backbone

SMALL = 12
PROMPT = (3, 8, 5)
LENGTH = 2
BATCH = 100


@cache
def small_backbone() -> Backbone:
    """A model of twelve tokens."""
    attention.register()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=SMALL,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        attn_implementation=attention.NAME,  # type: ignore[call-arg]
    )
    module = LlamaForCausalLM(config).eval().requires_grad_(False)
    for parameter in module.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0, 0.5)
    return Backbone(module)


def exact(sampling: Sampling) -> dict[tuple[int, ...], float]:
    """Probability of every continuation of `LENGTH` tokens, by enumeration with ordinary forwards."""
    sampler = Sampler(sampling, len(PROMPT))
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        texts = list(found)
        logits = small_backbone().module(input_ids=torch.tensor([[*PROMPT, *text] for text in texts])).logits[:, -1]
        found = {
            (*text, token): found[text] * float(p)
            for text, row in zip(texts, logits, strict=True)
            for token, p in enumerate(sampler.distribution(row.float(), [*PROMPT, *text]))
        }
    return found


def bushy(row) -> Draft:
    """Every token at depth 1, three below each of the first four: most walks accept something."""
    tokens, parents = list(range(SMALL)), [ROOT] * SMALL
    for parent, token in itertools.product(range(4), (1, 5, 9)):
        tokens.append(token)
        parents.append(parent)
    return Draft(tokens, parents)


def without_drafts(**settings) -> object:
    """Plain decoding takes twice the forwards; the default tests run it at one temperature."""
    return pytest.param(settings, False, marks=pytest.mark.slow, id=f"{settings}-plain")


@pytest.mark.parametrize(
    ("settings", "drafting"),
    [
        ({"temperature": 0.7}, True),
        ({"temperature": 1.0}, True),
        ({"temperature": 2.0}, True),
        ({"temperature": 1.0, "frequency_penalty": 1.0}, True),
        ({"temperature": 1.0}, False),
        without_drafts(temperature=0.7),
        without_drafts(temperature=2.0),
        without_drafts(temperature=1.0, frequency_penalty=1.0),
    ],
    ids=str,
)
def test_chi_square(settings, drafting):
    """Counts of two-token continuations over many seeds; rare ones (expected below 5) are counted together."""
    expected = exact(Sampling(**settings))
    assert abs(sum(expected.values()) - 1) < 1e-6
    counts: dict[tuple[int, ...], int] = dict.fromkeys(expected, 0)
    forwards = 0
    draws = 1000
    method = Scripted(bushy) if drafting else Scripted()
    for first in range(0, draws, BATCH):
        engine = Engine(small_backbone())
        rows = [
            engine.add(Request(PROMPT, method, Sampling(**settings, seed=seed), max_new_tokens=LENGTH))
            for seed in range(first, first + BATCH)
        ]
        run(engine)
        for row in rows:
            counts[tuple(row.output)] += 1
            forwards += len(row.spans)
    assert forwards == (draws if drafting else LENGTH * draws), "every first token is in the draft"
    cells = [(counts[text], p * draws) for text, p in expected.items() if p * draws >= 5]
    rest = (draws - sum(c for c, _ in cells), draws - sum(e for _, e in cells))
    cells.append(rest)
    statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in cells if wanted > 0)
    assert len(cells) > 10
    assert statistic < chi_square_limit(len(cells) - 1)


SETTINGS = [
    Sampling(temperature=0.7, seed=3),
    Sampling(temperature=1.0, seed=4, top_p=0.9, repetition_penalty=1.3),
    Sampling(temperature=2.0, seed=5, top_k=50, presence_penalty=1.0, frequency_penalty=0.3),
]


@pytest.mark.parametrize("sampling", SETTINGS, ids=["low", "top_p", "penalties"])
def test_same_seed_same_text_with_and_without_drafts(sampling):
    backbone, prompts = tiny_backbone(), [(9,), (4, 200, 17, 33), tuple(range(30, 50))]
    plain = generate(backbone, prompts, sampling=sampling, max_new_tokens=16)
    texts = [row.output for row in plain]
    assert all(len(set(text)) > 5 for text in texts)
    truth = {row.request.prompt: row.output for row in plain}
    guessed = generate(
        backbone, prompts, Guesses(VOCAB, backbone.width, truth), sampling=sampling, max_new_tokens=16, chunk=6
    )
    assert [row.output for row in guessed] == texts
    assert all(row.forwards < 15 for row in guessed)
    alone = generate(backbone, prompts[1:2], sampling=sampling, max_new_tokens=16)
    assert alone[0].output == texts[1], "the batch has no influence"


def test_different_seeds_differ():
    prompts = [(4, 200, 17, 33)]
    texts = {
        tuple(
            generate(tiny_backbone(), prompts, sampling=Sampling(temperature=1.0, seed=s), max_new_tokens=8)[0].output
        )
        for s in range(6)
    }
    assert len(texts) == 6
