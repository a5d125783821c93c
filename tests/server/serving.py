"""A server on a tiny model, in a thread or as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from multitoken.models.loading import LoadedModel, load_model
from multitoken.server.config import ServerSettings
from multitoken.server.run import Server, bound
from multitoken.server.state import ServerState, make_state
from support import byte_tokenizer, tiny_model

PROCESS_START_SECONDS = 120


def save_tiny(folder: Path) -> Path:
    """A checkpoint of the tiny Llama with the byte tokenizer; its context is long enough for streams to be cut."""
    module = tiny_model("llama")
    module.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def load_tiny(folder: Path) -> LoadedModel:
    return load_model(str(folder), device="cpu", progress=False)


@dataclass
class Running:
    """A server that answers at ``url``."""

    url: str
    state: ServerState

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, trust_env=False, **options)


@contextmanager
def running(model: LoadedModel, method: str = "plain", **settings: Any) -> Iterator[Running]:
    """A server in a thread of this process."""
    made = ServerSettings(port=0, served_name="tiny", **{"grace": 5.0, **settings})
    state = make_state(model, made, method)
    listener = bound(made)
    server = Server(state)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise RuntimeError("the server did not start")
            time.sleep(0.01)
        yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}", state)
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the server did not stop"


@contextmanager
def process(folder: Path, port: int, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """``multitoken serve`` as users run it."""
    command = [sys.executable, "-m", "multitoken", "serve", "--model", str(folder), "--port", str(port), *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as made:
        try:
            wait_until_healthy(made, port)
            yield made
        finally:
            if made.poll() is None:
                made.kill()


def wait_until_healthy(made: subprocess.Popen[str], port: int) -> None:
    until = time.monotonic() + PROCESS_START_SECONDS
    while time.monotonic() < until:
        if made.poll() is not None:
            assert made.stderr is not None
            raise RuntimeError(f"serve ended with {made.returncode}: {made.stderr.read()}")
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise TimeoutError("serve is not healthy")


def wait_for(condition: Any, seconds: float = 10.0) -> None:
    """Wait until ``condition()`` holds."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("the condition does not come to hold")
        time.sleep(0.01)


def joined(client: httpx.Client, path: str, body: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """Text of a one-choice stream, and its chunks. Fails unless the stream ends with [DONE]."""
    with client.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200, answer.read()
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    return "".join(text_of(chunk) for chunk in chunks), chunks


def text_of(chunk: dict[str, Any]) -> str:
    """Text that a chunk of either endpoint adds."""
    return "".join(
        choice["delta"].get("content", "") if "delta" in choice else choice["text"] for choice in chunk["choices"]
    )
