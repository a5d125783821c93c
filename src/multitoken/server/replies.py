"""Replies in OpenAI's shapes, whole and in pieces, for chat and for completions."""

from __future__ import annotations

import codecs
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from multitoken.engine.row import TokenLogprob
from multitoken.server.job import Job, Piece
from multitoken.server.tokens import TokenBytes
from multitoken.session.output import Result


@dataclass
class Choice:
    """What is known of one choice so far, gathered from its pieces.

    Attributes:
        cut: the server ended it on shutdown.
        letters, decoder: how far `offsets` has come.
    """

    index: int
    job: Job
    text: str = ""
    tokens: int = 0
    logprobs: list[TokenLogprob] = field(default_factory=list)
    spans: list[int] = field(default_factory=list)
    result: Result | None = None
    cut: bool = False
    letters: int = 0
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    def offsets(self, written: Iterable[bytes]) -> list[int]:
        """Where the next tokens, of these bytes, begin in the text: a character that spans tokens begins once."""
        found = []
        for data in written:
            found.append(self.letters)
            self.letters += len(self.decoder.decode(data))
        return found

    def add(self, piece: Piece) -> None:
        self.text += piece.text
        self.tokens += len(piece.token_ids)
        self.logprobs += piece.logprobs
        if piece.span:
            self.spans.append(piece.span)
        self.result, self.cut = piece.result, piece.cut

    @property
    def finish_reason(self) -> str | None:
        if self.result is None:
            return None
        # OpenAI's schema knows no reason for an answer that the server itself has ended.
        return "length" if self.cut else self.result.finish_reason


class Shape:
    """How one endpoint writes its replies.

    Args:
        model: name of the served model.
        token_bytes: for log-probabilities.
        options: which extensions and log-probabilities were asked for.
    """

    prefix, whole, piece = "", "", ""

    def __init__(
        self, model: str, token_bytes: TokenBytes, *, logprobs: bool, spans: bool, timings: bool, skip_special: bool
    ):
        self.model, self.bytes = model, token_bytes
        self.logprobs, self.spans, self.timings = logprobs, spans, timings
        self.skip_special = skip_special
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        self.created = int(time.time())

    def reply(self, choices: Sequence[Choice], prompt_tokens: int) -> dict[str, Any]:
        """The whole answer."""
        body = self._head(self.whole)
        body["choices"] = [self._whole(choice) for choice in choices]
        body["usage"] = usage(choices, prompt_tokens)
        return body

    def opening(self, choice: Choice) -> dict[str, Any] | None:
        """What a stream sends before a choice's first piece."""
        return None

    def part(self, choice: Choice, piece: Piece) -> dict[str, Any] | None:
        """The piece as a chunk; None if it shows nothing that was asked for."""
        bare = not (piece.text or piece.last)
        if bare and not (self.spans and piece.span) and not (self.logprobs and piece.logprobs):
            return None
        entry = self._delta(choice, piece)
        entry["logprobs"] = self._logprobs(choice, piece.logprobs) if self.logprobs else None
        entry["finish_reason"] = choice.finish_reason if piece.last else None
        if self.spans:
            entry["spans"] = [piece.span] if piece.span else []
        return {**self._head(self.piece), "choices": [entry | (self._extras(choice) if piece.last else {})]}

    def usage_chunk(self, choices: Sequence[Choice], prompt_tokens: int) -> dict[str, Any]:
        return {**self._head(self.piece), "choices": [], "usage": usage(choices, prompt_tokens)}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _whole(self, choice: Choice) -> dict[str, Any]:
        entry = self._content(choice)
        entry["logprobs"] = self._logprobs(choice, choice.logprobs) if self.logprobs else None
        entry["finish_reason"] = choice.finish_reason
        if self.spans:
            entry["spans"] = choice.spans
        return entry | self._extras(choice)

    def _extras(self, choice: Choice) -> dict[str, Any]:
        extras: dict[str, Any] = {"ended_by": "shutdown"} if choice.cut else {}
        if self.timings:
            extras["timings"] = timings(choice)
        return extras

    def _content(self, choice: Choice) -> dict[str, Any]:
        raise NotImplementedError

    def _delta(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        raise NotImplementedError

    def _logprobs(self, choice: Choice, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        raise NotImplementedError


class ChatShape(Shape):
    """``chat.completion`` and its chunks."""

    prefix, whole, piece = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def opening(self, choice: Choice) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""}
        entry = {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}
        return {**self._head(self.piece), "choices": [entry]}

    def _content(self, choice: Choice) -> dict[str, Any]:
        message = {"role": "assistant", "content": choice.text, "refusal": None}
        return {"index": choice.index, "message": message}

    def _delta(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        return {"index": choice.index, "delta": {"content": piece.text} if piece.text else {}}

    def _logprobs(self, choice: Choice, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        return {"content": [self._entry(entry) for entry in entries], "refusal": None}

    def _entry(self, entry: TokenLogprob) -> dict[str, Any]:
        top = [self._scored(token, score) for token, score in entry.top]
        return {**self._scored(entry.token, entry.logprob), "top_logprobs": top}

    def _scored(self, token: int, score: float) -> dict[str, Any]:
        return {"token": self.bytes.shown(token), "logprob": finite(score), "bytes": list(self.bytes.of(token))}


class CompletionShape(Shape):
    """``text_completion``, whose chunks look like the whole."""

    prefix, whole, piece = "cmpl", "text_completion", "text_completion"

    def _content(self, choice: Choice) -> dict[str, Any]:
        return {"index": choice.index, "text": choice.text}

    def _delta(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        return {"index": choice.index, "text": piece.text}

    def _logprobs(self, choice: Choice, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        written = (self.bytes.written(entry.token, self.skip_special) for entry in entries)
        return {
            "tokens": [self.bytes.shown(entry.token) for entry in entries],
            "token_logprobs": [finite(entry.logprob) for entry in entries],
            "top_logprobs": [self._top(entry) for entry in entries],
            "text_offset": choice.offsets(written),
        }

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        scores = {self.bytes.shown(token): finite(score) for token, score in entry.top}
        return scores or {self.bytes.shown(entry.token): finite(entry.logprob)}


def usage(choices: Sequence[Choice], prompt_tokens: int) -> dict[str, int]:
    made = sum(choice.result.completion_tokens if choice.result else choice.tokens for choice in choices)
    return {"prompt_tokens": prompt_tokens, "completion_tokens": made, "total_tokens": prompt_tokens + made}


def timings(choice: Choice) -> dict[str, Any]:
    """Figures of a finished choice. Steps that were shared with other sequences count in full."""
    result, job = choice.result, choice.job
    assert result is not None
    return {
        "method": result.method,
        "lossless": result.lossless,
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": result.completion_tokens,
        "queue_seconds": round(job.waited, 6),
        "first_token_seconds": round(job.first_token_seconds, 6),
        "prefill_seconds": round(result.prefill_seconds, 6),
        "decode_seconds": round(result.decode_seconds, 6),
        "tokens_per_second": round(result.tokens_per_second, 3),
        "forwards": result.forwards,
        "tau": round(result.tau, 4),
        "drafted": sum(result.drafted),
        "accepted": sum(result.accepted),
        "drafted_by_depth": result.drafted,
        "accepted_by_depth": result.accepted,
        "seed": result.seed,
    }


def finite(score: float) -> float:
    """A log-probability that JSON can hold; OpenAI writes -9999 for what is as good as impossible."""
    return max(score, -9999.0)
