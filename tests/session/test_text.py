"""Text that grows: whole characters, stop strings anywhere, and the joined pieces equal to the whole."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

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
def test_stop_strings_cut_at_the_first_that_ends(text, stops, sizes):
    stream = TextStream(byte_tokenizer(), stops)
    tokens = ids(text) if text else []
    certain = []
    parts = spans(tokens, sizes)
    for number, part in enumerate(parts):
        stream.push(part, final=number == len(parts) - 1)
        certain.append(stream.certain_tokens)
        if stream.stopped:
            break
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    assert stream.stopped == bool(found)
    assert stream.text == (text[: min(found)[1]] if found else text)
    kept = stream.needed_tokens
    assert byte_tokenizer().decode(tokens[:kept]) == stream.text
    assert certain == sorted(certain) and all(count <= kept for count in certain)  # nothing is taken back


BYTES_AND_WORDS = ["\u2581Hello", "\u2581wor", "ld", "\u2581", ",", "</s>"]


@cache
def word_tokenizer() -> PreTrainedTokenizerFast:
    """Words with a leading-space mark and single bytes, decoded as SentencePiece does: the first space is dropped."""
    vocab = {token: index for index, token in enumerate(BYTES_AND_WORDS)}
    vocab |= {f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


WORD_PIECES = [*([i] for i in range(6)), *([6 + byte for byte in c.encode()] for c in "é日😀ש"), [5, 5, 5]]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.sampled_from(WORD_PIECES), max_size=25), st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_leading_spaces_and_byte_tokens_join_to_the_whole(pieces, sizes):
    tokens = [token for piece in pieces for token in piece]
    stream = TextStream(word_tokenizer())
    for part in spans(tokens, sizes):
        assert "\ufffd" not in stream.push(part)
    stream.push([], final=True)
    assert stream.text == word_tokenizer().decode(tokens, skip_special_tokens=True)


def test_a_character_behind_a_broken_one():
    broken, whole = ids("😀")[:3], ids("日")
    detokenizer = Detokenizer(byte_tokenizer())
    assert detokenizer.push(broken + whole) + detokenizer.finish() == "\ufffd日"


def test_the_work_per_token_does_not_grow():
    class Counting:
        decoded = 0

        def decode(self, tokens, **options):
            self.decoded += len(tokens)
            return byte_tokenizer().decode(tokens, **options)

    for tokens in (ids("日b") * 500, [6 + 0x80] * 2000, [2] * 2000):
        counting = Counting()
        Detokenizer(counting).push(tokens)  # type: ignore[arg-type]
        assert counting.decoded < 70 * len(tokens)


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
    kept = stream.needed_tokens
    assert byte_tokenizer().decode(tokens[:kept]) == "aé日"


def test_special_tokens_are_left_out_or_kept():
    tokens = [*ids("hi"), 5, 2]
    assert TextStream(byte_tokenizer()).push(tokens, final=True) == "hi"
    assert TextStream(byte_tokenizer(), skip_special_tokens=False).push(tokens, final=True) == "hi<|end|></s>"
