"""Methods as they are written on the command line."""

from __future__ import annotations

import pytest

from multitoken.cli.methods import parse_method, parse_methods, split_specs
from multitoken.errors import OptionError


def test_options_come_from_the_spec_and_from_o():
    spec = parse_method("probe:block-size=60:init=vocab", {"init": "mean"})
    assert (spec.name, dict(spec.options)) == ("probe", {"block_size": 60, "init": "mean"})
    options = spec.create().options.model_dump()
    assert (options["block_size"], options["init"]) == (60, "mean")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["plain,probe"], ["plain", "probe"]),
        (["plain", "probe:block_size=30"], ["plain", "probe:block_size=30"]),
        (["probe:tree=static:widths=7,2,plain"], ["probe:tree=static:widths=7,2", "plain"]),
        (["probe:widths=[7,2]:probes=2,plain"], ["probe:widths=[7,2]:probes=2", "plain"]),
    ],
)
def test_splitting(texts, expected):
    assert split_specs(texts) == expected


def test_list_values():
    spec = parse_methods(["plain,probe:probes=2:tree=static:widths=7,2"])[1]
    assert spec.create().options.model_dump()["widths"] == (7, 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prob", ["method='prob'", "plain", "probe"]),
        ("probe:size=3", ["size", "unknown option of method probe", "block_size"]),
        ("probe:block_size", ["method", "key=value"]),
        ("probe:block_size=many", ["block_size", "many", "integer"]),
        ("probe:probes=8:block_size=4", ["block_size", "10 or more"]),
    ],
)
def test_errors(text, words):
    with pytest.raises(OptionError) as error:
        parse_method(text).create()
    assert all(word in str(error.value) for word in words), error.value
