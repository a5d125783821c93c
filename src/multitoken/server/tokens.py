"""What single tokens look like in log-probabilities: their bytes, and a string for them."""

from __future__ import annotations

import re

from transformers import PreTrainedTokenizerBase

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
WORD_MARK = "\u2581"  # SentencePiece's sign for a space


class TokenBytes:
    """Bytes of a tokenizer's tokens. A token may be part of a character only, so its text would not tell them."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self._tokenizer = tokenizer
        self._special = set(tokenizer.all_special_ids)
        self._added = {token: str(entry) for token, entry in tokenizer.added_tokens_decoder.items()}
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._byte_level = "ByteLevel" in repr(getattr(backend, "decoder", None))
        self._known: dict[int, bytes] = {}

    def of(self, token: int) -> bytes:
        """Bytes that the token stands for; empty for an id that the tokenizer does not know."""
        if token not in self._known:
            self._known[token] = self._find(token)
        return self._known[token]

    def shown(self, token: int) -> str:
        """The token as a string; one that is no whole text as ``bytes:\\xNN``."""
        found = self.of(token)
        try:
            return found.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in found)

    def written(self, token: int, skip_special: bool) -> bytes:
        """Bytes that the token adds to an output text."""
        return b"" if skip_special and token in self._special else self.of(token)

    def _find(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        piece = self._tokenizer.convert_ids_to_tokens(token) if token < len(self._tokenizer) else None
        if not isinstance(piece, str):
            return b""
        if self._byte_level:
            return bytes(BYTES[mark] for mark in piece) if all(mark in BYTES for mark in piece) else piece.encode()
        if match := BYTE_TOKEN.fullmatch(piece):
            return bytes([int(match[1], 16)])
        return piece.replace(WORD_MARK, " ").encode()


def byte_marks() -> dict[str, int]:
    """Byte of each sign in byte-level vocabularies: printable ones stand for themselves, the rest are moved up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(moved)}


BYTES = byte_marks()
