"""Rows, queue, limits, keys and shutdown of a running server."""

from __future__ import annotations

import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import Running, joined, running, text_of, wait_for

from multitoken.errors import DataError, OptionError
from multitoken.server.access import ApiKeys, answered_hosts
from multitoken.server.config import ServerSettings
from multitoken.server.run import bound
from multitoken.server.state import make_state

LONG = {"prompt": "x", "max_tokens": 200, "temperature": 0, "ignore_eos": True}


def slow_steps(server: Running, seconds: float = 0.03) -> None:
    """Make every forward take its time, so that things can happen meanwhile."""
    session = server.state.worker._session
    step = session.step

    def slowly() -> Any:
        time.sleep(seconds)
        return step()

    session.step = slowly  # type: ignore[method-assign]


def open_stream(client: httpx.Client, **body: Any) -> httpx.Response:
    request = client.build_request("POST", "/v1/completions", json={**LONG, **body, "stream": True})
    return client.send(request, stream=True)


# -- rows and queue --------------------------------------------------------------------------------------------------


def test_requests_join_and_leave_between_steps(tiny):
    with running(tiny, max_rows=4) as server, server.client() as client:
        slow_steps(server)
        long = open_stream(client)
        lines = long.iter_lines()
        next(lines)
        short = client.post("/v1/completions", json={**LONG, "max_tokens": 3})
        assert short.status_code == 200
        assert server.state.worker.active == 1  # the long one is still at it
        long.close()


def test_a_long_prompt_does_not_hold_up_the_others(tiny):
    steps: list[tuple[int, set[int]]] = []  # sequences in the engine, and those that the forward brought something to
    with running(tiny) as server, server.client() as client:
        session = server.state.worker._session
        session.engine._chunk = 8
        step = session.step

        def noted() -> Any:
            chunks = step()
            steps.append((session.active, {id(chunk.handle) for chunk in chunks}))
            return chunks

        session.step = noted  # type: ignore[method-assign]
        running_one = open_stream(client)
        lines = running_one.iter_lines()  # kept: the stream ends with its iterator
        next(lines)
        first = next(iter(steps[-1][1] or steps[0][1]))
        client.post("/v1/completions", json={"prompt": "y" * 160, "max_tokens": 1})
        running_one.close()
    admitted = next(place for place, (active, _) in enumerate(steps) if active == 2)
    answered = next(place for place, (_, brought) in enumerate(steps) if brought - {first})
    others = sum(first in brought for _, brought in steps[admitted:answered])
    assert answered - admitted >= 30  # 20 chunks, and a step of the other between any two
    assert others >= 15


def test_an_answer_is_the_same_alone_and_among_others(tiny):
    bodies = [
        {
            "prompt": f"{number} once upon",
            "max_tokens": 20 + number,
            "temperature": number % 2,
            "seed": number,
            "method": ("plain", "pld", "lookahead", "stand")[number % 4],
        }
        for number in range(12)
    ]
    with running(tiny, max_rows=6, max_queue=12) as server, server.client() as client:

        def ask(body: dict[str, Any]) -> str:
            return client.post("/v1/completions", json=body).json()["choices"][0]["text"]

        alone = [ask(body) for body in bodies]
        with ThreadPoolExecutor(12) as pool:
            assert list(pool.map(ask, bodies)) == alone


def test_a_full_queue_is_a_429_that_says_when_to_come_again(tiny):
    with running(tiny, max_rows=1, max_queue=1) as server, server.client() as client:
        slow_steps(server)
        first, second = open_stream(client), open_stream(client)
        wait_for(lambda: server.state.worker.active == 1)
        refused = client.post("/v1/completions", json={**LONG, "max_tokens": 2})
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"
        too_many = client.post("/v1/completions", json={**LONG, "n": 3})
        assert too_many.status_code == 400  # would never fit
        first.close()
        wait_for(lambda: server.state.worker.waiting == 0)
        second.close()
        wait_for(lambda: server.state.worker.idle)
        assert client.post("/v1/completions", json={**LONG, "max_tokens": 2}).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_rows_at_once(tiny, stream):
    with running(tiny, max_rows=2) as server, server.client() as client:
        slow_steps(server, 0.05)
        if stream:
            answer = open_stream(client, n=2)
            wait_for(lambda: server.state.worker.active == 2)
            answer.close()
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post("/v1/completions", json={**LONG, "n": 2}, timeout=0.5)
        wait_for(lambda: server.state.worker.idle, 2)
        assert server.state.worker._session.active == 0
        assert "multitoken_rows 0.0" in client.get("/metrics").text


def test_a_waiting_client_that_leaves_is_forgotten(tiny):
    with running(tiny, max_rows=1, max_queue=4) as server, server.client() as client:
        slow_steps(server)
        first = open_stream(client)
        wait_for(lambda: server.state.worker.active == 1)
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/completions", json=LONG, timeout=0.3)
        wait_for(lambda: server.state.worker.waiting == 0, 2)
        first.close()


def test_an_overdue_request_is_ended_with_an_error(tiny):
    with running(tiny, request_timeout=0.4, max_rows=1) as server, server.client() as client:
        slow_steps(server)
        answer = client.post("/v1/completions", json=LONG)
        assert answer.status_code == 504 and answer.json()["error"]["code"] == "timeout"
        assert answer.headers["x-should-retry"] == "false"
        stream = open_stream(client)
        lines = [line for line in stream.iter_lines() if line]
        stream.close()
        assert json.loads(lines[-2].removeprefix("data: "))["error"]["code"] == "timeout"
        assert lines[-1] == "data: [DONE]"
        assert server.state.worker.idle


def test_a_step_that_fails_ends_its_requests_and_the_next_are_served(tiny):
    with running(tiny) as server, server.client() as client:
        expected = client.post("/v1/completions", json=LONG).json()["choices"][0]["text"]
        session = server.state.worker._session

        def broken() -> None:
            raise RuntimeError("secret detail")

        session.step = broken  # type: ignore[method-assign, assignment]
        answer = client.post("/v1/completions", json=LONG)
        assert answer.status_code == 500 and "secret" not in answer.text
        assert client.post("/v1/completions", json=LONG).json()["choices"][0]["text"] == expected
        assert client.get("/health").status_code == 200


def test_context_limit(tiny):
    with running(tiny, max_context=40) as server, server.client() as client:
        assert client.get("/v1/models").json()["data"][0]["max_model_len"] == 40
        answer = client.post("/v1/completions", json={"prompt": "x" * 30, "max_tokens": 11})
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded"
        assert client.post("/v1/completions", json={"prompt": "x" * 40, "max_tokens": 1}).status_code == 400
        fits = client.post("/v1/completions", json={"prompt": "x" * 30, "max_tokens": 10, "ignore_eos": True})
        assert fits.json()["usage"]["total_tokens"] == 40
    with pytest.raises(OptionError, match="max_context"):
        make_state(tiny, ServerSettings.model_validate({"max_context": 1000}), "plain")


# -- who may come in -------------------------------------------------------------------------------------------------


def test_api_keys(tiny, tmp_path: Path, caplog):
    file = tmp_path / "keys"
    file.write_text("# team\nfirst-secret\n\n  second-secret \n")
    with running(tiny, api_key_file=file) as server, server.client() as client, caplog.at_level("INFO"):
        for path in ("/v1/models", "/metrics", "/methods", "/v1/models/tiny"):
            assert client.get(path).status_code == 401
        for path in ("/health", "/version", "/"):
            assert client.get(path).status_code == 200
        for header in ("Bearer wrong", "Bearer", "Basic first-secret", "first-secret", "Bearer first-secret2"):
            answer = client.get("/v1/models", headers={"authorization": header})
            assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
        for key in ("first-secret", "second-secret"):
            assert client.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code == 200
    assert "secret" not in caplog.text


def test_a_key_file_that_cannot_be_used_is_an_error(tmp_path: Path):
    with pytest.raises(DataError, match="cannot be read"):
        ApiKeys.read(tmp_path / "none")
    (tmp_path / "empty").write_text("# nothing\n")
    with pytest.raises(DataError, match="no API key"):
        ApiKeys.read(tmp_path / "empty")


def test_an_open_loopback_server_answers_to_its_own_names_only(tiny):
    with running(tiny, allow_host=["proxy.example:8443"]) as server, server.client() as client:
        assert client.get("/health", headers={"host": "attacker.example"}).status_code == 403
        for name in ("localhost:1", "127.0.0.1", "[::1]:80", "proxy.example"):
            assert client.get("/health", headers={"host": name}).status_code == 200
    assert answered_hosts(False, None, []) is None


def test_a_taken_port_is_one_line(tiny):
    with running(tiny) as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(OptionError, match="port"):
            bound(ServerSettings.model_validate({"port": port}))


# -- shutdown --------------------------------------------------------------------------------------------------------


def stop_during_stream(tiny: Any, grace: float) -> tuple[list[dict[str, Any]], list[int]]:
    """Begin to stop a server while one stream runs and one request waits: the stream's chunks, the others' statuses."""
    chunks: list[dict[str, Any]] = []
    statuses: list[int] = []
    with running(tiny, grace=grace, max_rows=1) as server:
        client = server.client()
        slow_steps(server, 0.01)

        def stream() -> None:
            chunks.extend(joined(client, "/v1/completions", LONG)[1])

        def wait() -> None:
            statuses.append(client.post("/v1/completions", json=LONG).status_code)

        threads = [threading.Thread(target=stream)]
        threads[0].start()
        wait_for(lambda: server.state.worker.active == 1)
        threads.append(threading.Thread(target=wait))
        threads[1].start()
        wait_for(lambda: server.state.worker.waiting == 1)
    for thread in threads:
        thread.join(10)
    client.close()
    return chunks, statuses


def test_shutdown_lets_a_stream_finish_within_its_grace(tiny):
    chunks, statuses = stop_during_stream(tiny, grace=15)
    assert len(text_tokens(chunks)) > 0
    last = chunks[-1]["choices"][0]
    assert last["finish_reason"] == "length" and "ended_by" not in last
    assert statuses == [503]


def test_shutdown_cuts_a_stream_cleanly_after_its_grace(tiny):
    chunks, statuses = stop_during_stream(tiny, grace=0.1)
    last = chunks[-1]["choices"][0]
    assert last["finish_reason"] == "length" and last["ended_by"] == "shutdown"
    assert statuses == [503]


def text_tokens(chunks: list[dict[str, Any]]) -> str:
    return "".join(text_of(chunk) for chunk in chunks)


# -- metrics ---------------------------------------------------------------------------------------------------------


def test_metrics_count_what_happened(tiny):
    with running(tiny) as server, server.client() as client:
        body = {**LONG, "prompt": "ab ab ab ab", "method": "pld", "timings": True, "max_tokens": 60}
        timings = client.post("/v1/completions", json=body).json()["choices"][0]["timings"]
        client.post("/v1/completions", json={"prompt": "x", "zzz": 1})
        client.get("/wp-admin")
        page = client.get("/metrics").text

    def value(series: str) -> float:
        found = re.search(rf"^{re.escape(series)} (\S+)$", page, re.MULTILINE)
        assert found, series
        return float(found[1])

    assert value('multitoken_requests_total{endpoint="/v1/completions",status="200"}') == 1
    assert value('multitoken_requests_total{endpoint="/v1/completions",status="400"}') == 1
    assert value('multitoken_requests_total{endpoint="other",status="404"}') == 1
    assert value('multitoken_generated_tokens_total{method="pld"}') == timings["completion_tokens"] == 60
    assert value('multitoken_forwards_total{method="pld"}') == timings["forwards"]
    assert value('multitoken_sequences_total{finish_reason="length",method="pld"}') == 1
    assert value('multitoken_time_to_first_token_seconds_count{method="pld"}') == 1
    assert value('multitoken_inter_token_seconds_count{method="pld"}') == timings["forwards"]
    for name, by_depth in (("drafted", timings["drafted_by_depth"]), ("accepted", timings["accepted_by_depth"])):
        for depth, count in enumerate(by_depth, 1):
            assert value(f'multitoken_{name}_tokens_total{{depth="{depth}",method="pld"}}') == count
    assert sum(timings["drafted_by_depth"]) > 0
    assert value("multitoken_rows") == 0 and value("multitoken_queue_sequences") == 0
