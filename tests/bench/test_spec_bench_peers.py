"""The first two questions of each Spec-Bench category, against Transformers' own ``generate``, on both bundled models.

    MULTITOKEN_DATA=FOLDER pytest -m slow -s tests/bench/test_spec_bench_peers.py

takes about half an hour on two cores; each method prints its tokens per forward.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import multitoken
from multitoken.bench.tasks import load_task
from multitoken.models.bundled import ensure_bundled
from multitoken.models.loading import eos_ids
from multitoken.session.prompts import encode

TOKENS, ROWS = 100, 13
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "probe": {},
    "probe[60]": {"block_size": 60},
    "probe[published]": {"init": "mean", "rescore": 0.0},
    "probe[calibrated]": {"init": "calibrated"},
    "pld": {},
    "lookahead": {},
    "stand": {},
    "fused": {},
    "auto": {},
}


@cache
def loaded(name: str):
    return multitoken.load(name, progress=False)


@cache
def prompts(name: str) -> list[list[int]]:
    data = load_task("spec-bench", Path(os.environ["MULTITOKEN_DATA"]), per_category=2)
    return sorted((encode(loaded(name).tokenizer, question.turns[0]) for question in data.questions), key=len)


@cache
def stock_answers(name: str) -> list[list[int]]:
    stock: Any = AutoModelForCausalLM.from_pretrained(ensure_bundled(name), dtype=torch.float32)
    ends = sorted(eos_ids(stock, loaded(name).tokenizer))
    found = []
    for prompt in prompts(name):
        ids = torch.tensor([prompt])
        out = stock.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=TOKENS,
            do_sample=False,
            repetition_penalty=1.0,
            eos_token_id=ends,
            pad_token_id=ends[0],
        )
        found.append(out[0, len(prompt) :].tolist())
    return found


@pytest.mark.slow
@pytest.mark.skipif("MULTITOKEN_DATA" not in os.environ, reason="MULTITOKEN_DATA names no folder with Spec-Bench")
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_every_answer_is_that_of_transformers(name: str, setting: str) -> None:
    method = setting.split("[")[0]
    options = {"max_new_tokens": TOKENS, "batch_size": ROWS, **SETTINGS[setting]}
    results: Any = loaded(name).generate(prompts(name), method=method, **options)
    spans = [span for result in results for span in result.spans]
    print(f"\n{name} {setting}: tau {sum(spans) / len(spans):.3f}")
    stock = stock_answers(name)
    # The end of text is part of both.
    assert [place for place, result in enumerate(results) if result.token_ids != stock[place]] == []
