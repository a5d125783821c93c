"""Tokens per second of a running server by method and number of clients at once.

    multitoken serve &
    python tests/server/throughput.py --url http://127.0.0.1:8000 --methods plain,auto --clients 1,4,16

Each cell is the best of several rounds; methods alternate within a round, so that a busy machine troubles both alike.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

PROMPTS = (
    "List the planets of the solar system with one sentence about each.",
    "Write a Python function that reverses the words of a sentence.",
    "Repeat this text and correct its spelling: the quik brown fox jumps ovr the lazy dog, the quik brown fox.",
    "Explain in simple words why the sky is blue.",
)


def measure(client: httpx.Client, method: str, clients: int, tokens: int, each: int) -> float:
    """Generated tokens per second of wall time, over ``each`` requests per client."""

    def ask(index: int) -> int:
        message = {"role": "user", "content": PROMPTS[index % len(PROMPTS)]}
        body = {"messages": [message], "max_tokens": tokens, "temperature": 0, "method": method, "ignore_eos": True}
        answer = client.post("/v1/chat/completions", json=body)
        answer.raise_for_status()
        return answer.json()["usage"]["completion_tokens"]

    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        made = sum(pool.map(ask, range(clients * each)))
    return made / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--methods", default="plain,auto")
    parser.add_argument("--clients", default="1,4,16")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--each", type=int, default=2, help="requests per client")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    methods = given.methods.split(",")
    print("clients  " + "  ".join(f"{name:>10}" for name in methods))
    with httpx.Client(base_url=given.url, timeout=600, trust_env=False) as client:
        for method in methods:
            measure(client, method, 1, 8, 1)  # tables and measurements that are made once
        for clients in map(int, given.clients.split(",")):
            best = dict.fromkeys(methods, 0.0)
            for _ in range(given.rounds):
                for method in methods:
                    best[method] = max(best[method], measure(client, method, clients, given.tokens, given.each))
            print(f"{clients:>7}  " + "  ".join(f"{best[name]:>10.1f}" for name in methods), flush=True)


if __name__ == "__main__":
    main()
