"""64 clients, 500 requests of all kinds: each gets its own full answer or a clean error, and nothing stays behind."""

from __future__ import annotations

import gc
import json
import random
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import Running, running, text_of, wait_for

METHODS = ("plain", "pld", "lookahead", "stand", "auto", "probe")
KINDS = ("whole", "whole", "stream", "stream", "cancel", "malformed")
MALFORMED: tuple[Any, ...] = (b"{", b"", b"[]", {"max_tokens": 0}, {"zzz": 1}, {"prompt": ""}, {"method": "none"})


@dataclass
class Ask:
    """One request of the load, and what the same request gets alone."""

    kind: str
    body: Any
    expected: str = ""


@dataclass
class Outcome:
    kind: str
    status: int
    right: bool


def asks(count: int, seed: int) -> list[Ask]:
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        kind = rng.choice(KINDS)
        if kind == "malformed":
            made.append(Ask(kind, rng.choice(MALFORMED)))
            continue
        words = " ".join(rng.choice(("ab", "cd", "🙂", "שלום", "漢字")) for _ in range(rng.randint(1, 12)))
        body = {
            "prompt": words,
            "max_tokens": rng.choice((1, 3, 8, 20, 40)),
            "temperature": rng.choice((0, 0.8)),
            "seed": rng.randrange(100),
            "method": rng.choice(METHODS),
        }
        made.append(Ask(kind, body))
    return made


def send(client: httpx.Client, ask: Ask) -> Outcome:
    """Send a request, again and again while the queue is full."""
    if ask.kind == "malformed":
        content = ask.body if isinstance(ask.body, bytes) else json.dumps({"prompt": "x", **ask.body}).encode()
        headers = {"content-type": "application/json"}
        answer = client.post("/v1/completions", content=content, headers=headers)
        return Outcome(ask.kind, answer.status_code, answer.json()["error"]["type"] == "invalid_request_error")
    while True:
        outcome = whole(client, ask) if ask.kind == "whole" else stream(client, ask)
        if outcome.status != 429:
            return outcome
        time.sleep(0.05)


def whole(client: httpx.Client, ask: Ask) -> Outcome:
    answer = client.post("/v1/completions", json=ask.body)
    if answer.status_code != 200:
        return Outcome(ask.kind, answer.status_code, False)
    return Outcome(ask.kind, 200, answer.json()["choices"][0]["text"] == ask.expected)


def stream(client: httpx.Client, ask: Ask) -> Outcome:
    text, ended = "", False
    with client.stream("POST", "/v1/completions", json={**ask.body, "stream": True}) as answer:
        if answer.status_code != 200:
            return Outcome(ask.kind, answer.status_code, False)
        for line in answer.iter_lines():
            if line == "data: [DONE]":
                ended = True
            elif line:
                text += text_of(json.loads(line.removeprefix("data: ")))
                if ask.kind == "cancel":  # leave after the first piece
                    return Outcome(ask.kind, 200, ask.expected.startswith(text))
    return Outcome(ask.kind, 200, ended and text == ask.expected)


def alone(server: Running, wanted: list[Ask]) -> None:
    """Note what each request gets when it is the only one."""
    known: dict[str, str] = {}
    with server.client() as client:
        for ask in wanted:
            if ask.kind != "malformed":
                key = json.dumps(ask.body, sort_keys=True)
                if key not in known:
                    answer = client.post("/v1/completions", json=ask.body)
                    known[key] = answer.json()["choices"][0]["text"]
                ask.expected = known[key]


def put_under_load(server: Running, wanted: list[Ask], clients: int) -> list[Outcome]:
    made = [server.client() for _ in range(clients)]
    try:
        with ThreadPoolExecutor(clients) as pool:
            numbered = enumerate(wanted)
            return list(pool.map(lambda pair: send(made[pair[0] % clients], pair[1]), numbered))
    finally:
        for client in made:
            client.close()


def check(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        assert outcome.right, outcome
        assert outcome.status == (400 if outcome.kind == "malformed" else 200), outcome


def test_clients_at_once_get_their_own_answers(tiny):
    with running(tiny, max_rows=6, max_queue=8) as server:
        wanted = asks(30, seed=1)
        alone(server, wanted)
        check(put_under_load(server, wanted, clients=16))
        wait_for(lambda: server.state.worker.idle, 5)
        assert server.state.worker._session.active == 0


def resident() -> float:
    """MiB of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc, which this system lacks")
def test_64_clients_and_500_requests_leave_nothing_behind(tiny):
    with running(tiny, max_rows=16, max_queue=32) as server:
        wanted = asks(500, seed=2)
        alone(server, wanted)
        check(put_under_load(server, wanted[:100], clients=64))  # threads, caches and buffers are there now
        sizes = []
        for part in range(5):
            check(put_under_load(server, wanted[100 * part : 100 * (part + 1)], clients=64))
            wait_for(lambda: server.state.worker.idle, 10)
            gc.collect()
            sizes.append(resident())
        with server.client() as client:
            page = client.get("/metrics").text
        assert "multitoken_engine_failures_total 0.0" in page
        assert "multitoken_rows 0.0" in page and "multitoken_queue_sequences 0.0" in page
    assert sizes[-1] - sizes[0] < 40, f"memory grows: {sizes} MiB"
