"""From token ids to text as it grows: whole characters only, and stop strings that may end anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

BROKEN = "\ufffd"  # what a decoder writes for bytes that are no character (yet)
LONGEST_CHARACTER = 4  # bytes of UTF-8, and so the most tokens that one broken end can wait for


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], skip_special_tokens: bool) -> str:
    """Text of ``ids`` as the model wrote it, spaces untouched."""
    text = tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)
    return str(text)


class Detokenizer:
    """Text of a growing list of ids, emitted piece by piece.

    A tokenizer's text is not the sum of its tokens' texts: characters span tokens, and a token's leading space depends
    on what is before it. So a short window is decoded twice, without and with the new tokens, and the difference is
    the new text. An end that may be the first bytes of a character is held back.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, skip_special_tokens: bool = True):
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._ids: list[int] = []
        self._window = 0  # decoding starts here
        self._emitted = 0  # ids whose text has been emitted

    def push(self, tokens: Sequence[int]) -> str:
        """Text that the new ``tokens`` make certain."""
        # One by one: a broken end must not hold back the whole characters of its span.
        return "".join(self._push(token) for token in tokens)

    def _push(self, token: int) -> str:
        self._ids.append(token)
        text, before = self._decode(len(self._ids)), self._decode(self._emitted)
        if self._waits(text):
            return ""
        self._window, self._emitted = self._emitted, len(self._ids)
        return text[len(before) :]

    def finish(self) -> str:
        """What was held back, whole or not."""
        text = self._decode(len(self._ids))[len(self._decode(self._emitted)) :]
        self._window = self._emitted = len(self._ids)
        return text

    def _decode(self, end: int) -> str:
        return decode(self._tokenizer, self._ids[self._window : end], self._skip)

    def _waits(self, text: str) -> bool:
        # A broken end that is longer than a character's bytes is broken for good.
        return text.endswith(BROKEN) and len(self._ids) - self._emitted < LONGEST_CHARACTER


@dataclass(slots=True)
class StopScanner:
    """Holds back text that could be the start of a stop string, and cuts at the first one found."""

    stops: Sequence[str]
    held: str = ""
    found: bool = False

    def push(self, text: str, final: bool = False) -> str:
        """Text that is certainly before any stop string; with ``final``, all that is left."""
        if self.found:
            return ""
        self.held += text
        places = [(place, stop) for stop in self.stops if (place := self.held.find(stop)) >= 0]
        if places:
            self.found = True
            safe, self.held = self.held[: min(places)[0]], ""
            return safe
        keep = 0 if final else self._possible_start()
        safe, self.held = self.held[: len(self.held) - keep], self.held[len(self.held) - keep :]
        return safe

    def _possible_start(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = max((len(stop) for stop in self.stops), default=1) - 1
        for length in range(min(longest, len(self.held)), 0, -1):
            if any(stop.startswith(self.held[-length:]) for stop in self.stops):
                return length
        return 0


class TextStream:
    """Text of one sequence: a `Detokenizer` behind a `StopScanner`.

    Attributes:
        text: all that has been emitted.
        stopped: a stop string has ended the text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: Sequence[str] = (), skip_special_tokens: bool = True):
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens)
        self._scanner = StopScanner(stops)
        self.text = ""

    @property
    def stopped(self) -> bool:
        return self._scanner.found

    def push(self, tokens: Sequence[int], final: bool = False) -> str:
        """Text that ``tokens`` add; with ``final``, including everything held back."""
        added = self._detokenizer.push(tokens)
        if final:
            added += self._detokenizer.finish()
        added = self._scanner.push(added, final)
        self.text += added
        return added

    def kept_tokens(self, ids: Sequence[int]) -> int:
        """How many of ``ids`` the emitted text needs: the shortest prefix whose text covers it."""
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high) // 2
            decoded = decode(self._tokenizer, ids[:middle], self._skip)
            if len(decoded.rstrip(BROKEN)) >= len(self.text) and decoded.startswith(self.text):
                high = middle
            else:
                low = middle + 1
        return low
