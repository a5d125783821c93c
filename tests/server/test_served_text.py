"""Streams and whole answers have the same text, whatever its script, its spans and its stop strings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from serving import Running, joined, running
from torch import Tensor

from multitoken.engine.draft import ROOT, Draft
from multitoken.engine.row import Row
from scripted import Scripted
from support import byte_tokenizer

TEXT = "Größe 🙂👩‍👩‍👧 — 漢字かな交じり文。שָׁלוֹם עולם! end"
IDS = [*byte_tokenizer()(TEXT)["input_ids"], 2]


def forcing(prompt: int) -> Callable[[Tensor, Tensor], Tensor]:
    """A logits processor that makes any model write TEXT after a prompt of so many tokens."""

    def force(ids: Tensor, scores: Tensor) -> Tensor:
        forced = torch.full_like(scores, -torch.inf)
        forced[0, IDS[ids.shape[1] - prompt]] = 0
        return forced

    return force


def oracle(width: int) -> Scripted:
    """A method that drafts the next ``width`` tokens of TEXT, so that spans end inside characters and stop strings."""

    def draft(row: Row) -> Draft:
        tokens = IDS[row.generated : row.generated + width] if row.generated else []
        return Draft(tokens, list(range(ROOT, len(tokens) - 1)))

    return Scripted(draft)


@pytest.fixture(scope="module")
def writer(tiny) -> Iterator[Running]:
    """A server whose model writes TEXT; method option ``width`` is the number of drafted tokens."""
    with running(tiny) as made, pytest.MonkeyPatch.context() as patch:
        session = made.state.worker._session
        submit = session.submit

        def forced(prompt: Sequence[int], method: Any, options: Any) -> Any:
            return submit(prompt, method, options, [forcing(len(prompt))])

        patch.setattr(session, "submit", forced)
        patch.setattr(made.state.methods, "get", lambda name, options: oracle((options or {"width": 0})["width"]))
        yield made


@pytest.mark.parametrize("width", [0, 3, 16])
@pytest.mark.parametrize("stop", [None, "字か", "ם ע", "\u200d👧", ["nowhere", "文。", "じり"], "d"])
def test_a_stream_joins_to_the_whole_in_any_script(writer: Running, width: int, stop: Any):
    body = {"prompt": "x", "max_tokens": 200, "temperature": 0, "method_options": {"width": width}, "stop": stop}
    stops = [stop] if isinstance(stop, str) else stop or []
    ends = [TEXT.index(text) for text in stops if text in TEXT]
    expected = TEXT[: min(ends)] if ends else TEXT
    with writer.client() as client:
        whole = client.post("/v1/completions", json=body).json()
        streamed, chunks = joined(client, "/v1/completions", {**body, "logprobs": 0})
    assert whole["choices"][0]["text"] == expected
    assert streamed == expected
    assert whole["choices"][0]["finish_reason"] == "stop"
    for chunk in chunks:
        assert "\ufffd" not in chunk["choices"][0]["text"]
    offsets = [place for chunk in chunks for place in chunk["choices"][0]["logprobs"]["text_offset"]]
    assert offsets == sorted(offsets) and len(offsets) == whole["usage"]["completion_tokens"]


def test_spans_are_as_wide_as_drafted(writer: Running):
    body = {"prompt": "x", "max_tokens": 200, "temperature": 0, "method_options": {"width": 7}, "spans": True}
    with writer.client() as client:
        spans = client.post("/v1/completions", json=body).json()["choices"][0]["spans"]
    assert spans[:3] == [1, 8, 8] and sum(spans) == len(IDS)
