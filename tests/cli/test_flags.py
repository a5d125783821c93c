"""Flags from schemas."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import pytest
from pydantic import BaseModel, Field

from multitoken.cli.config import options_of
from multitoken.cli.flags import add_flags, parse_options, parse_text
from multitoken.errors import DataError, OptionError

STRICT: Any = Union[Annotated[int, "strict"], None]  # noqa: UP007 (Annotated has no | at run time here)


class Options(BaseModel):
    model_config = {"extra": "forbid"}
    text: str | None = Field(None, description="a text", json_schema_extra={"positional": True})
    block_size: int = Field(30, ge=2, description="slots, 100% of them")
    ratio: float | None = Field(None, description="a ratio")
    kind: Literal["mean", "last"] = "mean"
    stop: list[str] = Field([], json_schema_extra={"short": "s"})
    widths: tuple[int, ...] | None = None
    bias: dict[int, float] = {}
    fast: bool = True
    loud: bool = False
    hidden: int = Field(3, json_schema_extra={"cli": False})
    config: Path | None = None


def parse(*argv: str) -> Options:
    parser = argparse.ArgumentParser()
    add_flags(parser, Options)
    return options_of(parser.parse_args(argv), Options, "command")


def test_every_shape():
    found = parse(
        *["hello", "--block-size", "60", "--ratio", "0.5", "--kind", "last", "-s", "a,b", "--stop", "c"],
        *["--widths", "15,4", "--bias", "7=-1.5", "--bias", "8=2", "--no-fast", "--loud"],
    )
    assert found.model_dump() == {
        "text": "hello",
        "block_size": 60,
        "ratio": 0.5,
        "kind": "last",
        "stop": ["a,b", "c"],
        "widths": (15, 4),
        "bias": {7: -1.5, 8: 2.0},
        "fast": False,
        "loud": True,
        "hidden": 3,
        "config": None,
    }


def test_nothing_given_leaves_the_defaults():
    assert parse() == Options.model_validate({})


def test_help_names_default_and_survives_percent_signs():
    parser = argparse.ArgumentParser()
    add_flags(parser, Options)
    text = " ".join(parser.format_help().split())
    assert "slots, 100% of them (default: 30)" in text
    assert "--hidden" not in text
    assert "{mean,last}" in text


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--block-size", "many"], ["block_size", "many", "integer"]),
        (["--block-size", "1"], ["block_size", "1", "greater than or equal to 2"]),
        (["--kind", "other"], ["kind", "other", "mean", "last"]),
        (["--widths", "3,x"], ["widths", "x"]),
        (["--bias", "7"], ["bias", "7", "key=value"]),
    ],
)
def test_errors_name_option_and_value(argv, words):
    with pytest.raises(OptionError) as error:
        parse(*argv)
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (int | None, "none", None),
        (str, "none", "none"),
        (list[int], "[1, 2]", [1, 2]),
        (list[int], "1,2", [1, 2]),
        (list[str], "a,b", ["a,b"]),
        (float, "1e-3", 1e-3),
        (bool, "off", False),
        (int, "x", "x"),
        (STRICT, "3", 3),
    ],
)
def test_parse_text(annotation, text, value):
    assert parse_text(annotation, text) == value


def test_method_options_keep_unknown_keys_for_the_schema_to_refuse():
    assert parse_options({"block-size": "9", "widths": "1,2", "odd": "x"}, Options) == {
        "block_size": 9,
        "widths": [1, 2],
        "odd": "x",
    }


def test_config_file(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("block-size: 12\nkind: last\nstop: ['x']\n")
    found = parse("--config", str(file), "--block-size", "14")
    assert (found.block_size, found.kind, found.stop) == (14, "last", ["x"])


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("blocksize: 3", OptionError, ["blocksize", "unknown option", "block_size"]),
        ("block_size: many", OptionError, ["block_size", "many"]),
        ("- a", DataError, ["mapping"]),
        ("a: [1", DataError, ["not YAML", "line"]),
    ],
)
def test_bad_config(tmp_path, text, error, words):
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(error) as caught:
        parse("--config", str(file))
    assert all(word in str(caught.value) for word in words), caught.value


def test_missing_and_undecodable_config(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        parse("--config", str(tmp_path / "none.yaml"))
    (tmp_path / "bad.yaml").write_bytes(b"a: \xff")
    with pytest.raises(DataError, match="not UTF-8"):
        parse("--config", str(tmp_path / "bad.yaml"))
