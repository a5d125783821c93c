"""What is refused, and how: OpenAI's error shape, the field named, nothing of the server's inside."""

from __future__ import annotations

import json
from typing import Any

import pytest
from serving import Running, running

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "temperature": 0}


@pytest.mark.parametrize(
    ("extra", "param", "word"),
    [
        ({"tools": [{}]}, "tools", "not supported"),
        ({"functions": [{}]}, "functions", "not supported"),
        ({"store": True}, "store", "not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format.type", "'text'"),
        ({"frequency_penalti": 1}, "frequency_penalti", "unknown field"),
        ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, "messages.0.name", "unknown field"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role", "'system'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages.0.content.0.type",
            "'text'",
        ),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages.0.content", "surrogate"),
        ({"temperature": "1"}, "temperature", "number"),
        ({"temperature": -1}, "temperature", "greater"),
        ({"top_p": 0}, "top_p", "greater"),
        ({"n": 0}, "n", "greater"),
        ({"n": 33}, "n", "at most 32"),
        ({"max_tokens": 0}, "max_tokens", "greater"),
        ({"max_tokens": True}, "max_tokens", "integer"),
        ({"max_tokens": 9999}, "max_tokens", "context"),
        ({"min_tokens": 5}, "min_tokens", "at most"),
        ({"max_completion_tokens": 3}, None, "give one of them"),
        ({"stop": [1]}, "stop.0", "string"),
        ({"stop": ["a"] * 17}, "stop", "16"),
        ({"stop": ""}, "stop", "at least 1"),
        ({"top_logprobs": 3}, None, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "token ids"),
        ({"logit_bias": {"262": 1}}, "logit_bias", "from 0 to 261"),
        ({"stop_token_ids": [262]}, "stop_token_ids", "from 0 to 261"),
        ({"seed": -1}, "seed", "greater"),
        ({"stream_options": {"include_usage": True}}, None, "stream: true"),
        ({"method": "magic"}, "method", "use one of"),
        ({"method": "draft", "method_options": {"draft_model": "/etc"}}, "method", "use one of"),
        ({"method": "probe", "method_options": {"table_seconds": 9}}, "method_options.table_seconds", "started"),
        ({"method": "probe", "method_options": {"init": "calibrated"}}, "method_options.init", "started"),
        ({"method": "probe", "method_options": {"probs": 9}}, "method_options.probs", "unknown option"),
        ({"method": "probe", "method_options": {"block_size": 900}}, "method_options.block_size", "at most"),
    ],
)
def test_a_bad_field_is_a_400_that_names_it(server: Running, extra: dict[str, Any], param: str | None, word: str):
    with server.client() as client:
        body = json.dumps({**CHAT, **extra})
        answer = client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert word in error["message"] and "\n" not in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"\xff\xfe", b"[]", b"null", b"[" * 100_000, b'{"seed":' + b"1" * 5000 + b"}", b'{"top_p": NaN}']
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize"])
def test_a_malformed_body_is_a_400(server: Running, raw: bytes, path: str):
    with server.client() as client:
        answer = client.post(path, content=raw, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize("prompt", ["", [], [""], [[]], [1, "a"], [300], [[5], [400]], None, {"a": 1}])
def test_a_prompt_that_cannot_be_used_is_a_400(server: Running, prompt: object):
    with server.client() as client:
        answer = client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 2})
    assert answer.status_code == 400, answer.text


def test_refused_fields_that_ask_for_nothing_pass(server: Running):
    body = {**CHAT, "tools": None, "store": False, "response_format": {"type": "text"}, "user": "me"}
    with server.client() as client:
        assert client.post("/v1/chat/completions", json=body).status_code == 200


def test_unknown_paths_and_methods_have_the_same_shape(server: Running):
    with server.client() as client:
        assert client.get("/nope").json()["error"]["type"] == "not_found_error"
        assert client.put("/health").status_code == 405
        assert client.get("/static/../app.py").status_code == 404
        assert client.get("/static/%2e%2e/app.py").status_code == 404


def test_a_body_beyond_the_limit_is_a_413_however_it_comes(tiny):
    with running(tiny, max_body=2000) as server, server.client() as client:
        assert client.post("/tokenize", json={"text": "x" * 3000}).status_code == 413
        parts = (b"x" * 500 for _ in range(10))
        streamed = client.post("/tokenize", content=parts, headers={"content-type": "application/json"})
        assert streamed.status_code == 413 and "2000 bytes" in streamed.json()["error"]["message"]
        assert client.post("/tokenize", json={"text": "x"}).status_code == 200


def test_a_failure_inside_shows_nothing_of_the_inside(tiny, monkeypatch):
    with running(tiny) as server, server.client() as client:
        monkeypatch.setattr(server.state, "encode", None)
        answer = client.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 500
    assert "Traceback" not in answer.text and "NoneType" not in answer.text and ".py" not in answer.text


def test_tokenize_and_detokenize_are_inverse(server: Running):
    text = "Größe 🙂 שלום 漢字"
    with server.client() as client:
        tokens = client.post("/tokenize", json={"text": text}).json()
        assert tokens["count"] == len(text.encode())
        assert client.post("/detokenize", json={"tokens": tokens["tokens"]}).json() == {"text": text}
        chat = client.post("/tokenize", json={"messages": CHAT["messages"]}).json()
        whole = client.post("/detokenize", json={"tokens": chat["tokens"]}).json()["text"]
        assert whole == "<|user|>user: hello<|end|><|assistant|>"
        assert client.post("/detokenize", json={"tokens": [262]}).status_code == 400
        assert client.post("/tokenize", json={}).status_code == 400


def test_methods_come_with_schemas_of_what_a_request_may_set(server: Running):
    with server.client() as client:
        told = client.get("/methods").json()
    methods = {method["name"]: method for method in told["methods"]}
    assert told["default"] == "plain" and told["chat"] is True and told["context"] == 256
    assert {"plain", "pld", "probe", "lookahead"} <= methods.keys() and "draft" not in methods
    options = methods["probe"]["options"]["properties"]
    assert options["block_size"]["type"] == "integer" and options["block_size"]["description"]
    assert "table_seconds" not in options
