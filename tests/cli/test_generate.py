"""``generate`` and ``chat`` on a tiny model."""

from __future__ import annotations

import io
import json
import sys

import pytest
from cli_support import one_line_error

import multitoken
from multitoken.cli.show import BREAK, SpanPrinter, printable

FAST = ("--no-progress", "--ignore-eos")
KEYS = [
    "text",
    "token_ids",
    "prompt_tokens",
    "completion_tokens",
    "finish_reason",
    "method",
    "lossless",
    "spans",
    "forwards",
    "tau",
    "block_size",
    "decode_seconds",
    "prefill_seconds",
    "tokens_per_second",
    "model",
    "dtype",
    "seed",
]
PROBE = "probe:rescore=0:block_size=8"


@pytest.fixture(scope="module")
def model(tiny):
    return multitoken.load(str(tiny), progress=False)


def test_json_holds_what_is_promised_and_is_the_librarys_answer(run, tiny, model):
    outcome = run("generate", "Hello", "-m", tiny, "--method", PROBE, "--max-new-tokens", 12, "--json", *FAST)
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("\n") == 1
    found = json.loads(outcome.out)
    assert not set(KEYS) - set(found)
    expected = model.generate("Hello", "plain", max_new_tokens=12, ignore_eos=True)
    assert found["token_ids"] == expected.token_ids
    assert found["method"] == "probe"


def test_every_way_to_give_a_prompt_is_the_same_prompt(run, tiny, tmp_path, monkeypatch):
    argv = ("-m", tiny, "--method", "plain", "--max-new-tokens", 5, *FAST)
    text = run("generate", "Grüße", *argv)
    assert text.code == 0, text.err
    file = tmp_path / "prompt.txt"
    file.write_text("Grüße\n", "utf-8")
    assert run("generate", "--file", file, *argv).out == text.out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("Grüße\n".encode())))
    assert run("generate", "-", *argv).out == text.out
    assert run("generate", "Grüße", "--raw", *argv).out != text.out


def test_spans_are_marked_where_there_are_no_colours(run, tiny):
    outcome = run(*["generate", "Hello", "-m", tiny, "--method", "plain", "--max-new-tokens", 6, "--show-spans", *FAST])
    assert BREAK in outcome.out
    assert "\x1b" not in outcome.out
    assert "tau 1.00" in outcome.err


def test_spans_in_colour_on_a_terminal(monkeypatch):
    from rich.console import Console

    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = io.StringIO()
    printer = SpanPrinter(Console(file=shown, force_terminal=True, color_system="standard"), spans=True)
    for piece in ("Hel", "lo\x1b[2J"):
        printer.add(piece)
    assert shown.getvalue().count("\x1b[9") == 2, "two spans in two bright colours"
    assert "\x1b[2J" not in shown.getvalue(), "the model's output cannot steer the terminal"
    monkeypatch.setenv("NO_COLOR", "1")
    shown = io.StringIO()
    printer = SpanPrinter(Console(file=shown, force_terminal=True), spans=True)
    for piece in ("Hel", "lo"):
        printer.add(piece)
    assert shown.getvalue() == "Hel|lo"


def test_printable():
    assert printable("a\tb\nc\x1b[31m\x07é") == "a\tb\nc\ufffd[31m\ufffdé"


def test_batch_with_resume(run, tiny, tmp_path):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [{"prompt": "One"}, {"id": "b", "messages": [{"role": "user", "content": "Two"}]}, {"prompt": "Three"}]
    source.write_text("\n".join(json.dumps(line) for line in lines))
    argv = ["generate", "--jsonl", source, "--out", out, "-m", tiny, "--method", "plain", "--max-new-tokens", 4]
    assert run(*argv, "--group", 2, *FAST).code == 0
    whole = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert [record["id"] for record in whole] == [0, "b", 2]
    out.write_text(out.read_text("utf-8").split("\n")[0] + '\n{"id": "b", "te', "utf-8")
    outcome = run(*argv, "--json", *FAST)
    assert json.loads(outcome.out) == {"out": str(out), "prompts": 3, "already_there": 1}
    again = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert [record["text"] for record in again] == [record["text"] for record in whole]
    for other in (["--max-new-tokens", 5], ["--method", "pld"], ["--seed", 3], ["--raw"]):
        one_line_error(run(*argv, *other, *FAST), 1, "out.jsonl", "other options", "--out")


def test_raw_batch(run, tiny, tmp_path):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(json.dumps({"prompt": "One"}))
    assert run("generate", "--jsonl", source, "--out", out, "-m", tiny, "--raw", "--max-new-tokens", 2, *FAST).code == 0
    assert json.loads(out.read_text("utf-8"))["prompt_tokens"] == len("One")


def test_a_batch_names_the_line_that_cannot_be_answered(run, tiny, tmp_path):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(json.dumps({"prompt": "fine"}) + "\n\n" + json.dumps({"prompt": "x" * 300}) + "\n")
    argv = ["generate", "--jsonl", source, "--out", out, "-m", tiny, "--method", "plain", "--max-new-tokens", 2]
    one_line_error(run(*argv, *FAST), 1, "in.jsonl line 3", "context")
    assert len(out.read_text("utf-8").splitlines()) == 1


@pytest.mark.parametrize("tokens", [1, 2])
def test_very_short_answers(run, tiny, tokens):
    outcome = run("generate", "Hi", "-m", tiny, "--method", PROBE, "--max-new-tokens", tokens, "--json", *FAST)
    assert json.loads(outcome.out)["completion_tokens"] == tokens


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["Hi", "--method", "prob"], 2, ["method='prob'", "probe"]),
        (["Hi", "--method", "probe", "-o", "blocksize=8"], 2, ["blocksize", "block_size"]),
        (["Hi", "--method", "probe", "-o", "block_size=big"], 2, ["block_size", "big"]),
        (["Hi", "--method", "probe", "-o", "block_size"], 2, ["option", "key=value"]),
        (["Hi", "--method", "probe:probes=4:block_size=5"], 2, ["block_size", "6 or more"]),
        (["Hi", "--method", "fused:probes=4:block_size=5"], 2, ["block_size=5", "6 or more"]),
        (["Hi", "--method", "probe:owners=some"], 2, ["owners='some'", "'auto' or 'all'", "integer"]),
        (["Hi", "--method", "probe:tree=static"], 2, ["widths=None", "tree=static"]),
        (["Hi", "--method", "probe:rescore=inf"], 2, ["rescore=inf", "finite"]),
        (["Hi", "--stop-token-ids", "999"], 2, ["stop_token_ids=999", "0 to"]),
        (["Hi", "--min-tokens", "9", "--max-new-tokens", "3"], 2, ["min_tokens=9", "max_new_tokens=3"]),
        (["Hi", "--group", "3"], 2, ["group", "--jsonl"]),
        (["Hi", "--show-spans", "--json"], 2, ["show_spans", "JSON"]),
        (["Hi", "--temperature", "warm"], 2, ["temperature", "warm"]),
        (["Hi", "--top-p", "2"], 2, ["top_p", "2"]),
        (["Hi", "--max-new-tokens", "0"], 2, ["max_new_tokens", "0"]),
        (["Hi", "--max-new-tokens", "many"], 2, ["max_new_tokens", "many"]),
        (["Hi", "--tokens", "3"], 2, ["--tokens", "--help"]),
        ([""], 2, ["prompt"]),
        (["\udcff"], 2, ["prompt", "UTF-8"]),
        ([], 2, ["prompt", "--file"]),
        (["x" * 300, "--method", "plain"], 2, ["prompt", "context of 256"]),
        (["Hi", "--file", "x"], 2, ["not both"]),
        (["--file", "none.txt"], 1, ["none.txt", "no such file"]),
        (["--jsonl", "none.jsonl"], 2, ["--out"]),
        (["Hi", "--out", "x"], 2, ["--jsonl"]),
        (["Hi", "--dtype", "int8"], 2, ["dtype", "int8", "float32"]),
        (["Hi", "--device", "toaster"], 2, ["device", "toaster"]),
    ],
)
def test_bad_input(run, tiny, argv, code, words):
    one_line_error(run("generate", *argv, "-m", tiny, *FAST), code, *words)


def test_models_that_cannot_be_read(run, tiny, tmp_path):
    one_line_error(run("generate", "Hi", "-m", tmp_path / "none", *FAST), 1, "none")
    (tmp_path / "broken.gguf").write_bytes(b"GGUFxxxx")
    one_line_error(run("generate", "Hi", "-m", tmp_path / "broken.gguf", *FAST), 1, "broken.gguf")
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in tiny.iterdir():
        data = file.read_bytes()
        (copy / file.name).write_bytes(data[: len(data) // 2] if file.suffix == ".safetensors" else data)
    one_line_error(run("generate", "Hi", "-m", copy, *FAST), 1, "copy", "download its files again")


def test_a_prompt_file_that_is_not_utf8(run, tiny, tmp_path):
    (tmp_path / "latin1.txt").write_bytes(b"Gr\xf6\xdfe")
    one_line_error(run("generate", "--file", tmp_path / "latin1.txt", "-m", tiny), 1, "latin1.txt", "UTF-8")


def test_config_file(run, tiny, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(f"model: {tiny}\nmethod: probe\noption: {{rescore: 0, block_size: 6}}\nmax_new_tokens: 9\n")
    found = json.loads(run("generate", "Hi", "--config", file, "--json", "--max-new-tokens", 5, *FAST).out)
    assert (found["method"], found["completion_tokens"]) == ("probe", 5)
    assert found["block_size"] <= 6
    file.write_text("max_tokens: 9\n")
    one_line_error(run("generate", "Hi", "--config", file), 2, "max_tokens", "max_new_tokens")


def test_chat(run, tiny, model, monkeypatch):
    argv = ["chat", "-m", tiny, "--method", "plain", "--max-new-tokens", 4, "--json", "--system", "Be brief.", *FAST]
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi\n\nAnd?\n/reset\nHi\n/exit\nnever\n"))
    outcome = run(*argv)
    assert outcome.code == 0, outcome.err
    first, second, third = (json.loads(line) for line in outcome.out.splitlines())
    assert first["token_ids"] == third["token_ids"]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": first["text"]},
        {"role": "user", "content": "And?"},
    ]
    expected = model.generate(messages, "plain", max_new_tokens=4, ignore_eos=True)
    assert second["token_ids"] == expected.token_ids


def test_chat_refuses_what_it_would_ignore(run, tiny):
    one_line_error(run("chat", "-m", tiny, "--show-spans", "--json"), 2, "show_spans", "JSON")


def test_chat_streams_and_ends_with_its_input(run, tiny, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi\n"))
    outcome = run("chat", "-m", tiny, "--method", "plain", "--max-new-tokens", 4, *FAST)
    assert outcome.code == 0
    assert outcome.out.strip()
    assert "tau 1.00" in outcome.err


@pytest.mark.parametrize(("flag", "drawn"), [("--progress", True), ("--no-progress", False)])
def test_bars_of_a_method_follow_the_flag(run, tiny, tmp_path, monkeypatch, flag, drawn):
    monkeypatch.setenv("MULTITOKEN_CACHE", str(tmp_path))
    outcome = run("generate", "Hi", "--model", tiny, "--method", "probe", "--max-new-tokens", "2", flag)
    assert outcome.code == 0
    assert ("next-token table" in outcome.err) is drawn
