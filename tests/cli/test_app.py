"""Dispatch, exit codes, and errors in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from cli_support import one_line_error

from multitoken.cli import app
from multitoken.cli.commands import COMMANDS
from multitoken.errors import ModelError


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_has_help_and_common_flags(run, command):
    outcome = run(*command.name.split(), "--help")
    assert outcome.code == 0
    assert "--json" in outcome.out and "--config" in outcome.out and "--debug" in outcome.out


def test_help_lists_every_command_without_reading_pytorch():
    program = "import sys; from multitoken.cli import main; main(['--help']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=_environment())
    assert done.returncode == 0, done.stderr
    assert all(command.name.split()[0] in done.stdout for command in COMMANDS)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], ["COMMAND", "--help"]),
        (["fly"], ["'fly'", "generate"]),
        (["models", "--verbose"], ["--verbose", "--help"]),
        (["models", "--js"], ["--js"]),
        (["inspect"], ["COMMAND"]),
        (["methods", "prob"], ["prob", "plain", "probe"]),
        (["bench", "--max-new-tokens", "4", "compare", "a", "b"], ["--max-new-tokens", "bench compare"]),
    ],
)
def test_wrong_usage(run, argv, words):
    one_line_error(run(*argv), 2, *words)


def test_other_errors_and_interruption(run, monkeypatch):
    def raising(error):
        def dispatch(argv):
            raise error

        monkeypatch.setattr(app, "_dispatch", dispatch)

    raising(ModelError("the model\nis broken; mend it"))
    one_line_error(run("models"), 1, "the model is broken; mend it")
    raising(RuntimeError("odd"))
    one_line_error(run("models"), 1, "unexpected RuntimeError: odd", "--debug")
    with pytest.raises(RuntimeError):
        run("models", "--debug")
    raising(KeyboardInterrupt())
    outcome = run("models")
    assert (outcome.code, outcome.err) == (130, "interrupted\n")
    raising(BrokenPipeError())
    assert run("models").code == 141


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_output_to_a_full_disk():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "multitoken", "models", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=_environment(),
        )
    assert done.returncode == 1
    assert done.stderr == "error: cannot write the output: No space left on device\n"


def test_lists(run):
    models = json.loads(run("models", "--json").out)
    assert models[0]["name"] == "smollm2-135m"
    assert "smollm2-135m" in run("models").out
    methods = {method["name"]: method for method in json.loads(run("methods", "--json").out)}
    assert methods["probe"]["options"]["block_size"]["default"] == 30
    text = run("methods", "probe").out
    assert "block_size" in text and "lossless" in text and "max_ngram" not in text


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
