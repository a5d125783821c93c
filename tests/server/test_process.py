"""``multitoken serve`` as a process: signals during streams, a kill and a new start, errors of the command."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import process

from multitoken.cli.app import run

LONG = {"prompt": "x", "max_tokens": 200, "temperature": 0, "ignore_eos": True, "n": 4, "stream": True}


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return made.getsockname()[1]


def read_stream(port: int, lines: list[str], begun: threading.Event) -> None:
    with httpx.stream(
        "POST", f"http://127.0.0.1:{port}/v1/completions", json=LONG, timeout=60, trust_env=False
    ) as made:
        for line in made.iter_lines():
            if line:
                lines.append(line)
                begun.set()


def finish_reasons(lines: list[str]) -> dict[int, Any]:
    choices = [choice for line in lines[:-1] for choice in json.loads(line.removeprefix("data: "))["choices"]]
    return {choice["index"]: choice for choice in choices if choice["finish_reason"]}


def test_sigterm_ends_streams_cleanly(tiny_folder: Path):
    port = free_port()
    with process(tiny_folder, port, "--method", "plain", "--grace", "0.2") as made:
        lines: list[str] = []
        begun = threading.Event()
        reader = threading.Thread(target=read_stream, args=(port, lines, begun))
        reader.start()
        assert begun.wait(30)
        made.send_signal(signal.SIGTERM)
        reader.join(20)
        out, err = made.communicate(timeout=20)
    assert made.returncode == 0, err
    assert lines[-1] == "data: [DONE]"
    ends = finish_reasons(lines)
    assert set(ends) == {0, 1, 2, 3}
    assert all(end["finish_reason"] == "length" for end in ends.values())
    assert "Traceback" not in err and out == ""


def test_a_wrong_flag_is_one_line(capfd):
    assert run(["serve", "--model", "absent", "--method", "nothing"]) == 2
    told = capfd.readouterr().err
    assert told.startswith("error: method='nothing'") and told.count("\n") == 1
    assert run(["serve", "--port", "70000"]) == 2
    assert "port" in capfd.readouterr().err


@pytest.mark.slow
def test_a_kill_during_streams_breaks_nothing_for_the_next_start(tiny_folder: Path):
    port = free_port()
    with process(tiny_folder, port, "--method", "auto") as first:
        begun = threading.Event()
        reader = threading.Thread(target=read_until_broken, args=(port, begun))
        reader.start()
        assert begun.wait(30)
        first.send_signal(signal.SIGKILL)
        first.wait(10)
        reader.join(20)
    # The same port and the same checkpoint at once.
    with process(tiny_folder, port, "--method", "auto") as second:
        body = {**LONG, "stream": False, "n": 1}
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=60, trust_env=False)
        assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 200
        second.send_signal(signal.SIGTERM)
        assert second.wait(20) == 0


def read_until_broken(port: int, begun: threading.Event) -> None:
    with contextlib.suppress(httpx.TransportError):
        read_stream(port, [], begun)


@pytest.mark.slow
def test_sigterm_during_many_streams(tiny_folder: Path):
    port = free_port()
    with process(tiny_folder, port, "--method", "auto", "--grace", "0.3") as made:
        readers: list[tuple[threading.Thread, list[str]]] = []
        for _ in range(6):
            lines: list[str] = []
            begun = threading.Event()
            readers.append((threading.Thread(target=read_stream, args=(port, lines, begun)), lines))
            readers[-1][0].start()
            assert begun.wait(30)
        made.send_signal(signal.SIGTERM)
        for thread, _ in readers:
            thread.join(20)
        _, err = made.communicate(timeout=20)
    assert made.returncode == 0, err
    for _, lines in readers:
        assert lines[-1] == "data: [DONE]"
