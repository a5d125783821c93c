"""The first turns of all 480 Spec-Bench questions on the bundled model, against plain decoding.

    MULTITOKEN_DATA=FOLDER pytest -m slow tests/bench/test_spec_bench.py

takes about an hour on two cores; SPEC_BENCH_PER_CATEGORY=N asks N questions of each category only.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import multitoken
from multitoken.bench.tasks import load_task
from multitoken.session.prompts import encode

TOKENS, ROWS = 64, 16
METHODS = ("probe", "fused", "auto")


@cache
def model():
    return multitoken.load("smollm2-135m", progress=False)


@cache
def prompts() -> list[list[int]]:
    limit = os.environ.get("SPEC_BENCH_PER_CATEGORY")
    data = load_task("spec-bench", Path(os.environ["MULTITOKEN_DATA"]), per_category=int(limit) if limit else None)
    found = [encode(model().tokenizer, question.turns[0]) for question in data.questions]
    return sorted(found, key=len)  # rows of one batch are alike, so that none waits for a long prompt


@cache
def answers(method: str) -> list[list[int]]:
    results: Any = model().generate(prompts(), method=method, max_new_tokens=TOKENS, batch_size=ROWS)
    forwards = sum(result.forwards for result in results)
    print(f"\n{method}: {len(results)} answers, tau {sum(sum(r.spans) for r in results) / forwards:.3f}")
    return [result.token_ids for result in results]


@pytest.mark.slow
@pytest.mark.skipif("MULTITOKEN_DATA" not in os.environ, reason="MULTITOKEN_DATA names no folder with Spec-Bench")
@pytest.mark.parametrize("method", METHODS)
def test_every_answer_is_plain_decodings(method: str) -> None:
    assert len(prompts()) >= 13
    differing = [
        place
        for place, (plain, other) in enumerate(zip(answers("plain"), answers(method), strict=True))
        if plain != other
    ]
    assert differing == []
