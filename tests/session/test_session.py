"""The session and the model object while requests come, go, and are cut short."""

from __future__ import annotations

from collections import deque

import pytest

from multitoken import Draft, LanguageModel, Method, OptionError
from multitoken.engine.draft import ROOT
from multitoken.methods import create
from multitoken.methods.registry import validated
from multitoken.models.loading import wrap
from multitoken.session.options import GenerateOptions
from multitoken.session.session import Session
from support import byte_tokenizer, tiny_model

PROMPT = "tell me"


class Known(Method):
    """Drafts the next ``width`` tokens of a known continuation and counts the rows that it holds."""

    name = "known"

    def __init__(self, continuation: list[int], width: int):
        self.continuation, self.width, self.held = continuation, width, 0

    def start(self, row):
        self.held += 1

    def stop(self, row):
        self.held -= 1

    def draft(self, rows):
        drafts = []
        for row in rows:
            rest = self.continuation[row.generated :][: self.width]
            drafts.append(Draft(tokens=rest, parents=list(range(ROOT, len(rest) - 1))))
        return drafts


def generation(**options) -> GenerateOptions:
    return validated(GenerateOptions, options, "generate")


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return LanguageModel(wrap(tiny_model(), byte_tokenizer(), name="tiny"))


@pytest.fixture(scope="module")
def plain(model):
    return model.generate(PROMPT, method="plain", max_new_tokens=48, ignore_eos=True, logprobs=0)


def known(plain, width: int = 5) -> Known:
    return Known(plain.token_ids, width)


@pytest.mark.parametrize("width", [0, 1, 3, 8])
@pytest.mark.parametrize("place", [3, 17, 30])
def test_chunks_join_to_the_result(model, plain, width, place):
    stop = plain.text[place : place + 4]
    options = dict(max_new_tokens=48, ignore_eos=True, logprobs=0, stop=[stop, "never"])
    chunks = list(model.stream(PROMPT, method=known(plain, width), **options))
    result = chunks[-1].result
    assert result.finish_reason == "stop" and result.text == plain.text[: plain.text.index(stop)]
    assert "".join(chunk.text for chunk in chunks) == result.text
    assert [token for chunk in chunks for token in chunk.token_ids] == result.token_ids
    assert [entry.token for chunk in chunks for entry in chunk.logprobs] == result.token_ids
    assert result.prefill_tokens + sum(result.spans) == result.completion_tokens == len(result.logprobs)


def test_overlapping_stop_strings_end_every_method_alike(model, plain):
    text = plain.text
    stops = [text[10:18], text[12:14]]
    results = [
        model.generate(PROMPT, method=known(plain, width), max_new_tokens=48, ignore_eos=True, stop=stops)
        for width in (0, 2, 12)
    ]
    assert len({(result.text, tuple(result.token_ids)) for result in results}) == 1


def test_requests_come_and_go(model, plain):
    session = Session(model.loaded, max_rows=2)
    options = generation(max_new_tokens=10, ignore_eos=True)
    first, second, third, fourth = [session.submit(model.encode(PROMPT), create("plain"), options) for _ in range(4)]
    session.step()
    assert session.active == 2 and session.waiting == 2 and third.waiting
    session.cancel(fourth)
    brought = deque(session.step())
    session.cancel(first)
    while session.active or session.waiting:
        brought.extend(session.step())
    assert first.result().finish_reason == fourth.result().finish_reason == "cancelled"
    assert first.result().token_ids == plain.token_ids[: first.result().completion_tokens]
    assert fourth.result().token_ids == [] and fourth.result().text == ""
    for handle in (second, third):
        assert handle.result().token_ids == plain.token_ids[:10] and handle.result().finish_reason == "length"
    session.cancel(second)  # too late, and harmless
    assert second.result().finish_reason == "length"


def test_a_cancelled_result_is_what_the_chunks_brought(model, plain):
    session = Session(model.loaded)
    stop = plain.text[5:9]
    handle = session.submit(
        model.encode(PROMPT), create("plain"), generation(max_new_tokens=48, ignore_eos=True, stop=stop)
    )
    chunks = []
    for _ in range(7):
        chunks += session.step()
    session.cancel(handle)
    assert handle.result().text == "".join(chunk.text for chunk in chunks)
    assert handle.result().token_ids == [token for chunk in chunks for token in chunk.token_ids]


def test_the_model_answers_while_a_stream_is_open(model, plain):
    stream = model.stream(PROMPT, method=known(plain), max_new_tokens=48, ignore_eos=True)
    joined = next(stream).text
    assert model.generate(PROMPT, method="plain", max_new_tokens=8, ignore_eos=True).token_ids == plain.token_ids[:8]
    assert joined + "".join(chunk.text for chunk in stream) == plain.text


def test_an_interrupt_lets_go_of_all_rows(model, plain):
    method = known(plain)

    def interrupt(ids, scores):
        if ids.shape[1] > len(model.encode(PROMPT)) + 3:
            raise KeyboardInterrupt
        return scores

    with pytest.raises(KeyboardInterrupt):
        model.generate([PROMPT] * 3, method=method, processors=[interrupt], batch_size=2)
    assert method.held == 0
    assert model.generate(PROMPT, method=method, max_new_tokens=48, ignore_eos=True).text == plain.text


def test_an_abandoned_stream_lets_go_of_its_row(model, plain):
    method = known(plain)
    stream = model.stream(PROMPT, method=method, max_new_tokens=48, ignore_eos=True)
    next(stream)
    assert method.held == 1
    stream.close()
    assert method.held == 0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (dict(method=3), "method"),
        (dict(method=Known), "method"),
        (dict(processors=[3]), "processors"),
        (dict(temperature=True), "temperature"),
        (dict(top_p="0.5"), "top_p"),
        (dict(batch_size="two"), "batch_size"),
        (dict(batch_size=0), "batch_size"),
        (dict(method="plain", widht=2), "generate has: max_new_tokens"),
    ],
)
def test_wrong_types_name_themselves(model, options, named):
    with pytest.raises(OptionError, match=named):
        model.generate([PROMPT], **options)


@pytest.mark.parametrize("prompt", [5, None, b"bytes", {"role": "user", "content": "x"}, "x" * 400])
def test_a_stream_refuses_bad_prompts_at_once(model, prompt):
    with pytest.raises(OptionError, match=r"prompt|messages"):
        model.stream(prompt, method="plain")
