"""From token ids to text as it grows: whole characters only, and stop strings that may end anywhere."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

BROKEN = "\ufffd"  # what a decoder writes for bytes that are no character (yet)
UNFINISHED = 3  # most bytes of a character that can wait for its last one, and so of broken marks that may change
LONGEST_WINDOW = 32  # tokens; only ids without text and endless broken bytes come near


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], skip_special_tokens: bool) -> str:
    """Text of ``ids`` as the model wrote it, spaces untouched."""
    text = tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)
    return str(text)


class Detokenizer:
    """Text of a growing list of ids, emitted piece by piece.

    A tokenizer's text is not the sum of its tokens' texts: characters span tokens, and a token's leading space depends
    on what is before it. So a short window is decoded, which starts with the tokens of the piece before, and what it
    shows beyond the text already emitted is new. Broken marks at its end, which may be the first bytes of a character,
    are held back.

    The pieces do not depend on how the tokens are grouped into calls.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, skip_special_tokens: bool = True):
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._window: list[int] = []
        self._context = 0  # first tokens of the window, whose text had been emitted when the window moved
        self._shown = 0  # characters of the window's text that have been emitted
        self._broken = 0  # tokens since the text last ended in a whole character

    def push(self, tokens: Sequence[int]) -> str:
        """Text that the new ``tokens`` make certain."""
        return "".join(self.push_token(token) for token in tokens)

    def push_token(self, token: int) -> str:
        """Text that one more token makes certain."""
        self._window.append(token)
        text = decode(self._tokenizer, self._window, self._skip)
        whole = len(text.rstrip(BROKEN))
        self._broken = self._broken + 1 if whole < len(text) else 0
        if len(self._window) > LONGEST_WINDOW:
            certain = len(text)
        elif self._broken > UNFINISHED:
            certain = max(whole, len(text) - UNFINISHED)
        else:
            # Byte-fallback decoders mark every byte of a run, the whole characters before the broken one included.
            certain = whole
        piece = text[self._shown : certain]
        self._shown = max(self._shown, certain)
        # The next window starts with tokens that have text, since a first token may lose its leading space.
        if certain == len(text) and (piece or len(self._window) > LONGEST_WINDOW):
            self._move()
        return piece

    def finish(self) -> str:
        """What was held back, as broken as it is."""
        text = decode(self._tokenizer, self._window, self._skip)
        piece, self._shown = text[self._shown :], len(text)
        return piece

    def _move(self) -> None:
        self._window = self._window[self._context :]
        self._context = len(self._window)
        self._shown = len(decode(self._tokenizer, self._window, self._skip))


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
        # The one that ends first, as if the text had come character by character, however long the spans are.
        found = [(place + len(stop), place) for stop in self.stops if (place := self.held.find(stop)) >= 0]
        if found:
            self.found = True
            safe, self.held = self.held[: min(found)[1]], ""
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
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens)
        self._scanner = StopScanner(stops)
        self._reach: list[int] = []  # length of the whole characters after each token, stop strings included
        self.text = ""

    @property
    def stopped(self) -> bool:
        return self._scanner.found

    def push(self, tokens: Sequence[int], final: bool = False) -> str:
        """Text that ``tokens`` add; with ``final``, including everything held back."""
        pieces = []
        length = self._reach[-1] if self._reach else 0
        for token in tokens:
            pieces.append(self._detokenizer.push_token(token))
            length += len(pieces[-1])
            self._reach.append(length)
        if final:
            pieces.append(self._detokenizer.finish())
            if self._reach:
                self._reach[-1] += len(pieces[-1])
        added = self._scanner.push("".join(pieces), final)
        self.text += added
        return added

    @property
    def certain_tokens(self) -> int:
        """How many tokens are part of the output whatever comes: with stop strings, those that ``text`` needs."""
        return self.needed_tokens if self._scanner.stops else len(self._reach)

    @property
    def needed_tokens(self) -> int:
        """Length of the shortest prefix of the tokens whose text covers ``text``."""
        return bisect_left(self._reach, len(self.text)) + 1 if self.text else 0
