"""What the tests of drafting methods share: equality with plain decoding, and a model whose text is known."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from multitoken.engine.engine import Engine
from multitoken.engine.method import Method
from multitoken.engine.row import Request, Row
from multitoken.engine.sampling import Sampling
from multitoken.methods.plain import Plain
from multitoken.models.backbone import Backbone
from scripted import run
from support import VOCAB, tiny_backbone, tiny_model

SETTINGS = (
    Sampling(),
    Sampling(repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2),
    Sampling(temperature=0.9, top_p=0.95, seed=3),
    Sampling(temperature=0.4, top_k=20, repetition_penalty=1.1, seed=2**63),
)
TOKENS = 18
CYCLE = [11, 57, 23, 91, 44, 130, 78]


def requests(method: Method) -> list[Request]:
    """Four prompts of different length, each with words that repeat, greedy and sampled."""
    rng = random.Random(7)
    made = []
    for length, sampling in zip((1, 6, 15, 26), SETTINGS, strict=True):
        prompt = [rng.randrange(3, VOCAB) for _ in range(length)]
        made.append(Request((*prompt, *prompt[:4]), method, sampling, max_new_tokens=TOKENS, min_tokens=3))
    return made


def outputs(backbone: Backbone, requested: Sequence[Request], together: bool) -> list[Row]:
    """Finished rows of the requests, in one batch or one after the other."""
    groups = [requested] if together else [[request] for request in requested]
    rows = []
    for group in groups:
        engine = Engine(backbone, prefill_chunk=8)
        rows += [engine.add(request) for request in group]
        run(engine)
    return rows


@cache
def plain_outputs(family: str) -> tuple[tuple[int, ...], ...]:
    rows = outputs(tiny_backbone(family), requests(Plain()), together=True)
    return tuple(tuple(row.output) for row in rows)


def assert_lossless(method: Method, family: str, together: bool = True) -> None:
    rows = outputs(tiny_backbone(family), requests(method), together)
    assert [tuple(row.output) for row in rows] == list(plain_outputs(family))


@cache
def cycling_backbone() -> Backbone:
    """A model that writes `CYCLE` round and round: the head answers each token's embedding with its successor."""
    module: Any = copy.deepcopy(tiny_model("llama"))
    embedding, head = module.model.embed_tokens.weight, module.lm_head.weight
    embedding.data *= 30  # the residual stream stays close to the embedding
    head.data.zero_()
    for token, following in zip(CYCLE, CYCLE[1:] + CYCLE[:1], strict=True):
        head.data[following] = torch.nn.functional.normalize(embedding.data[token], dim=0)
    return Backbone(module)


def cycled(start: int, count: int) -> list[int]:
    """``count`` tokens of the cycle from place ``start`` on."""
    return [CYCLE[(start + i) % len(CYCLE)] for i in range(count)]


def cycle_row(method: Method, prompt: Sequence[int], tokens: int = 60) -> Row:
    """A finished row of the cycling model, its text checked."""
    row = outputs(cycling_backbone(), [Request(tuple(prompt), method, max_new_tokens=tokens)], together=False)[0]
    assert row.output == cycled(CYCLE.index(prompt[-1]) + 1, tokens)
    return row


def tau(row: Row) -> float:
    return sum(row.spans[1:]) / row.forwards
