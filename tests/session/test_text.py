"""Text that grows: whole characters, stop strings anywhere, and the joined pieces equal to the whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multitoken.session.text import Detokenizer, StopScanner, TextStream
from support import byte_tokenizer

TEXTS = ["plain words", "naïve café", "日本語のテキスト", "שלום עולם", "👩‍👩‍👧 family 🏳️‍🌈", "a\n\n b\tc  "]


def ids(text: str) -> list[int]:
    return byte_tokenizer()(text)["input_ids"]  # type: ignore[return-value]


def spans(tokens: list[int], sizes: list[int]) -> list[list[int]]:
    found, place, index = [], 0, 0
    while place < len(tokens):
        size = sizes[index % len(sizes)]
        found.append(tokens[place : place + size])
        place, index = place + size, index + 1
    return found


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("sizes", [[1], [2], [1, 3], [7]])
def test_no_half_characters(text, sizes):
    detokenizer = Detokenizer(byte_tokenizer())
    pieces = [detokenizer.push(part) for part in spans(ids(text), sizes)]
    assert all("\ufffd" not in piece for piece in pieces)
    assert "".join(pieces) + detokenizer.finish() == text


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(6, 261), max_size=40), st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_any_bytes_join_to_the_whole(tokens, sizes):
    stream = TextStream(byte_tokenizer())
    parts = spans(tokens, sizes)
    joined = "".join(stream.push(part, final=i == len(parts) - 1) for i, part in enumerate(parts))
    assert joined == stream.text == byte_tokenizer().decode(tokens)


@settings(deadline=None, max_examples=80)
@given(
    st.text("ab日", max_size=20),
    st.lists(st.text("ab日", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
)
def test_stop_strings_cut_at_the_first(text, stops, sizes):
    stream = TextStream(byte_tokenizer(), stops)
    tokens = ids(text) if text else []
    parts = spans(tokens, sizes)
    for number, part in enumerate(parts):
        stream.push(part, final=number == len(parts) - 1)
        if stream.stopped:
            break
    places = [text.find(stop) for stop in stops if stop in text]
    assert stream.stopped == bool(places)
    if places:
        # A stop that ends first may begin later than one that a longer look would have found.
        ends = min(text.find(stop) + len(stop) for stop in stops if stop in text)
        assert text.startswith(stream.text) and not any(stop in stream.text for stop in stops)
        assert len(stream.text) <= ends
    else:
        assert stream.text == text


def test_possible_starts_are_held_back_and_released():
    scanner = StopScanner(["###", "stop"])
    assert scanner.push("a #") == "a "
    assert scanner.push("#") == ""
    assert scanner.push("x sto") == "##x "
    assert scanner.push("ry", final=True) == "story"


def test_kept_tokens_cover_the_text():
    stream = TextStream(byte_tokenizer(), ["END"])
    tokens = ids("aé日END more")
    stream.push(tokens)
    assert stream.stopped and stream.text == "aé日"
    kept = stream.kept_tokens(tokens)
    assert byte_tokenizer().decode(tokens[:kept]) == "aé日"


def test_special_tokens_are_left_out_or_kept():
    tokens = [*ids("hi"), 5, 2]
    assert TextStream(byte_tokenizer()).push(tokens, final=True) == "hi"
    assert TextStream(byte_tokenizer(), skip_special_tokens=False).push(tokens, final=True) == "hi<|end|></s>"
