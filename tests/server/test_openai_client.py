"""OpenAI's own Python client against the server, unmodified."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

openai = pytest.importorskip("openai", reason="openai's client is not installed (pip install 'multitoken[dev]')")

from serving import Running

from multitoken.server.tokens import byte_marks
from support import SPECIALS, byte_tokenizer

MESSAGES: Any = [{"role": "system", "content": "Short."}, {"role": "user", "content": "Say 🙂 something"}]


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def chat(client: Any, **options: Any) -> Any:
    options = {"model": "tiny", "messages": MESSAGES, "max_tokens": 24, "temperature": 0, **options}
    return client.chat.completions.create(**options)


def complete(client: Any, **options: Any) -> Any:
    options = {"model": "tiny", "prompt": "one two", "max_tokens": 24, "temperature": 0, **options}
    return client.completions.create(**options)


def test_models_are_listed(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_chat_answers_with_usage(client):
    answer = chat(client)
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 24
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 24
    assert answer.model == "tiny" and answer.id.startswith("chatcmpl-")


@pytest.mark.parametrize("extra", [{}, {"n": 3}, {"stop": ["\u001a", "/"]}, {"temperature": 1, "seed": 5}])
def test_a_chat_stream_joins_to_the_whole_answer(client, extra):
    extra = {"temperature": 0.9, "seed": 3, **extra}
    whole = chat(client, **extra)
    texts = {choice.index: "" for choice in whole.choices}
    reasons: dict[int, str] = {}
    usage = None
    for chunk in chat(client, stream=True, stream_options={"include_usage": True}, **extra):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}
    assert usage == whole.usage


def test_completions_of_several_prompts_keep_their_order(client):
    together = complete(client, prompt=["one two", "three", "four"], n=2, temperature=1, seed=7)
    assert [choice.index for choice in together.choices] == list(range(6))
    for place, prompt in enumerate(["one two", "three", "four"]):
        alone = complete(client, prompt=prompt, n=2, temperature=1, seed=7)
        assert [choice.text for choice in alone.choices] == [
            choice.text for choice in together.choices[2 * place : 2 * place + 2]
        ]


def test_completions_take_token_ids(client, server):
    ids = server.state.model.tokenizer("one two")["input_ids"]
    assert complete(client, prompt=ids).choices[0].text == complete(client).choices[0].text
    assert complete(client, prompt=[ids, ids]).choices[1].text == complete(client).choices[0].text


def test_a_completion_stream_joins_to_the_whole(client):
    whole = complete(client, logprobs=2)
    chunks = list(complete(client, logprobs=2, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    for part in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        joined = [entry for chunk in chunks for entry in getattr(chunk.choices[0].logprobs, part)]
        assert joined == getattr(whole.choices[0].logprobs, part), part


def test_seed_decides_the_draws(client):
    first, again, other = (complete(client, temperature=1, seed=seed).choices[0].text for seed in (1, 1, 2))
    assert first == again != other
    unseeded = {complete(client, temperature=1).choices[0].text for _ in range(3)}
    assert len(unseeded) > 1


def test_choices_differ_and_the_second_is_the_next_seed(client):
    both = complete(client, temperature=1, seed=10, n=2)
    assert both.choices[0].text != both.choices[1].text
    assert both.choices[1].text == complete(client, temperature=1, seed=11).choices[0].text


def test_stop_ends_before_the_string(client):
    text = chat(client).choices[0].message.content
    stop = next(text[at : at + 2] for at in range(4, len(text)) if "\ufffd" not in text[at : at + 2])
    stopped = chat(client, stop=stop)
    assert stopped.choices[0].message.content == text[: text.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.usage.completion_tokens < 24


def test_chat_logprobs_have_openais_shape(client):
    answer = chat(client, logprobs=True, top_logprobs=3, extra_body={"skip_special_tokens": False})
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens
    joined = b"".join(bytes(entry.bytes) for entry in entries).decode("utf-8", "replace")
    assert joined == answer.choices[0].message.content
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        scores = [top.logprob for top in entry.top_logprobs]
        assert scores == sorted(scores, reverse=True) and scores[0] == pytest.approx(entry.logprob)  # greedy
        assert entry.token == entry.top_logprobs[0].token


def test_legacy_logprobs_have_openais_shape(client):
    choice = complete(client, logprobs=2, temperature=1, seed=1).choices[0]
    found = choice.logprobs
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == len(found.text_offset) == 24
    assert found.text_offset[0] == 0 and found.text_offset == sorted(found.text_offset)
    assert max(found.text_offset) < len(choice.text)
    for token, score, top in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
        assert len(top) == 2 and max(top.values()) >= score - 1e-6
        assert token not in top or top[token] == pytest.approx(score)


def test_extensions_go_through_extra_body(client):
    plain = chat(client, extra_body={"timings": True, "spans": True})
    looked = chat(
        client, extra_body={"method": "pld", "method_options": {"max_ngram": 2}, "timings": True, "spans": True}
    )
    assert looked.choices[0].message.content == plain.choices[0].message.content
    choice = looked.choices[0].model_dump()
    assert choice["timings"]["method"] == "pld"
    assert sum(choice["spans"]) == choice["timings"]["completion_tokens"] == 24
    assert len(choice["spans"]) == choice["timings"]["forwards"] + 1
    assert plain.choices[0].model_dump()["spans"] == [1] * 24


def test_spans_of_a_stream_are_those_of_the_whole(client):
    extra = {"method": "lookahead", "spans": True}
    whole = chat(client, extra_body=extra, seed=2).choices[0].model_dump()["spans"]
    chunks = chat(client, extra_body=extra, seed=2, stream=True)
    assert [span for chunk in chunks for span in chunk.choices[0].model_dump().get("spans") or []] == whole


def test_limits_on_the_end_of_text(client):
    full = chat(client, extra_body={"ignore_eos": True, "min_tokens": 24}, temperature=1, seed=1)
    assert full.usage.completion_tokens == 24
    first = token_id(chat(client, logprobs=True).choices[0].logprobs.content[0])
    ended = chat(client, extra_body={"stop_token_ids": [first]})
    assert ended.usage.completion_tokens == 1 and ended.choices[0].finish_reason == "stop"
    later = chat(client, extra_body={"stop_token_ids": [first], "min_tokens": 3})
    assert later.usage.completion_tokens >= 3


def token_id(entry: Any) -> int:
    """Id of a reported token of the byte tokenizer."""
    if entry.token in SPECIALS:
        return SPECIALS.index(entry.token)
    marks = {byte: mark for mark, byte in byte_marks().items()}
    return byte_tokenizer().convert_tokens_to_ids(marks[entry.bytes[0]])  # type: ignore[return-value]


def test_errors_are_the_clients_own(client):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])
    assert caught.value.param == "tools" and "not supported" in caught.value.message
    with pytest.raises(openai.NotFoundError):
        chat(client, model="gpt-x")
    with pytest.raises(openai.BadRequestError, match="context"):
        chat(client, max_tokens=10_000)


def test_the_asynchronous_client_works(server):
    import asyncio

    async def both() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            stream = await client.chat.completions.create(
                model="tiny", messages=MESSAGES, max_tokens=10, temperature=0, stream=True
            )
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            whole = await client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=10, temperature=0)
            return [text, whole.choices[0].message.content or ""]

    text, whole = asyncio.run(both())
    assert text == whole != ""
