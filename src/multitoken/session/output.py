"""What a generation gives: one object, and its JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from multitoken.engine.row import Row, TokenLogprob


@dataclass(slots=True)
class Result:
    """One finished (or cancelled) answer.

    Attributes:
        text: the output, without special tokens and without the stop string that ended it.
        token_ids: output ids, an end-of-text token included; after a stop string, the shortest prefix of them whose
            text covers ``text``.
        finish_reason: ``stop`` (end-of-text, stop token or stop string), ``length``, or ``cancelled``.
        lossless: the method cannot change the model's output.
        spans: tokens committed by each decode forward. The prefill commits ``prefill_tokens`` before them, so
            ``prefill_tokens + sum(spans) == completion_tokens``.
        forwards: decode forwards, ``len(spans)``; the prefill is not counted.
        tau: tokens per decode forward, ``sum(spans) / forwards``; 0 if there was none.
        block_size: largest block of a decode forward, in slots of this row.
        prefill_seconds, decode_seconds: time in steps of either kind; steps shared with other rows count in full.
        tokens_per_second: decoded tokens per second of decoding; 0 if nothing was decoded.
        drafted, accepted: nodes offered to and accepted by verification, by depth below the root.
        logprobs: per output token, if asked for.
    """

    text: str
    token_ids: list[int]
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    method: str
    lossless: bool
    spans: list[int]
    prefill_tokens: int
    forwards: int
    tau: float
    block_size: int
    decode_seconds: float
    prefill_seconds: float
    tokens_per_second: float
    model: str
    dtype: str
    seed: int
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values; ``logprobs`` only where they were asked for."""
        values = {name: getattr(self, name) for name in self.__slots__ if name != "logprobs"}
        if self.logprobs is not None:
            values["logprobs"] = [
                {"token": entry.token, "logprob": entry.logprob, "top": [list(pair) for pair in entry.top]}
                for entry in self.logprobs
            ]
        return values


def result_of(row: Row, text: str, kept: int, reason: str, model: str, dtype: str) -> Result:
    """The result of a row of which the first ``kept`` output tokens count."""
    spans = cut(row.spans, kept)
    prefill, decoded = (spans[0], spans[1:]) if spans else (0, [])
    count = sum(decoded)
    return Result(
        text=text,
        token_ids=row.output[:kept],
        prompt_tokens=row.prompt_length,
        completion_tokens=kept,
        finish_reason=reason,
        method=row.method.name,
        lossless=row.method.lossless,
        spans=decoded,
        prefill_tokens=prefill,
        forwards=len(decoded),
        tau=count / len(decoded) if decoded else 0.0,
        block_size=max(row.blocks, default=0),
        decode_seconds=row.decode_seconds,
        prefill_seconds=row.prefill_seconds,
        tokens_per_second=count / row.decode_seconds if count and row.decode_seconds else 0.0,
        model=model,
        dtype=dtype,
        seed=row.request.sampling.seed,
        drafted=list(row.drafted),
        accepted=list(row.accepted),
        logprobs=row.logprobs[:kept] if row.request.logprobs is not None else None,
    )


def cut(spans: list[int], tokens: int) -> list[int]:
    """The spans of the first ``tokens`` tokens; a span that they end in is shortened."""
    kept = []
    for span in spans:
        if tokens <= 0:
            break
        kept.append(min(span, tokens))
        tokens -= span
    return kept
