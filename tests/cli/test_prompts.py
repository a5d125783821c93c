"""Where prompts come from."""

from __future__ import annotations

import io
import sys

import pytest

from multitoken.cli.prompts import read_items, read_prompt
from multitoken.errors import DataError, OptionError


def stdin(monkeypatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_argument_file_and_standard_input(tmp_path, monkeypatch):
    file = tmp_path / "prompt.txt"
    file.write_bytes("\ufeffGrüße\nzwei\n".encode())
    assert read_prompt(" Hi ", None) == " Hi "
    assert read_prompt(None, file) == "Grüße\nzwei"
    stdin(monkeypatch, "né\n".encode())
    assert read_prompt("-", None) == "né"


@pytest.mark.parametrize("prompt", ["", "  \n"])
def test_an_empty_prompt(prompt):
    with pytest.raises(OptionError, match="prompt"):
        read_prompt(prompt, None)


def test_none_or_two_prompts(tmp_path):
    with pytest.raises(OptionError, match="standard input"):
        read_prompt(None, None)
    with pytest.raises(OptionError, match="not both"):
        read_prompt("a", tmp_path / "b")


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "latin1.txt").write_bytes("Größe".encode("latin-1"))
    with pytest.raises(DataError, match=r"latin1\.txt: not UTF-8.*0xf6 at offset 2.*iconv"):
        read_prompt(None, tmp_path / "latin1.txt")
    with pytest.raises(DataError, match="no such file"):
        read_prompt(None, tmp_path / "none")
    with pytest.raises(DataError, match="is a folder"):
        read_prompt(None, tmp_path)


def test_items(tmp_path):
    file = tmp_path / "in.jsonl"
    file.write_text('{"prompt": "a"}\n\n{"id": "x", "messages": [{"role": "user", "content": "b"}]}\n', "utf-8")
    first, second = read_items(file)
    assert (first.id, first.prompt, first.line) == (0, "a", 1)
    assert (second.id, second.prompt, second.line) == ("x", [{"role": "user", "content": "b"}], 3)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not JSON"),
        ("[1]", "object"),
        ('{"text": "a"}', "unknown key 'text'"),
        ('{"id": 3}', "either prompt or messages"),
        ('{"prompt": "a", "messages": []}', "either prompt or messages"),
        ('{"prompt": 3}', "must be a text"),
        ('{"prompt": " "}', "not empty"),
        ('{"messages": []}', "list of"),
        ('{"messages": [{"role": "boss", "content": "a"}]}', "roles system"),
        ('{"messages": [{"role": "user", "content": null}]}', "content"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, words):
    file = tmp_path / "in.jsonl"
    file.write_text('{"prompt": "fine"}\n' + line + "\n")
    with pytest.raises(DataError, match="line 2") as error:
        read_items(file)
    assert words in str(error.value)


def test_no_items_or_an_id_used_twice(tmp_path):
    file = tmp_path / "in.jsonl"
    file.write_text("\n")
    with pytest.raises(DataError, match="no prompts"):
        read_items(file)
    file.write_text('{"id": "a", "prompt": "x"}\n{"id": "a", "prompt": "y"}\n')
    with pytest.raises(DataError, match="'a' is used twice"):
        read_items(file)
