"""Commit: the only place where tokens become output."""

from __future__ import annotations

from multitoken.engine.row import Row, TokenLogprob


def commit(row: Row, tokens: list[int], logprobs: list[TokenLogprob], max_positions: int | None) -> list[int]:
    """Append ``tokens`` to the row up to where it ends, set its finish reason, and return what was appended.

    A row ends with ``stop`` at an end-of-sequence or stop token (which is part of the output), and with ``length`` at
    its token budget or at the model's last position.
    """
    request = row.request
    kept = []
    for token in tokens:
        row.tokens.append(token)
        kept.append(token)
        if token in request.ends and row.generated > request.min_tokens:
            row.finish_reason = "stop"
        elif room(row, max_positions) < 0:
            row.finish_reason = "length"
        if row.finish_reason is not None:
            break
    row.logprobs.extend(logprobs[: len(kept)])
    return kept


def room(row: Row, max_positions: int | None) -> int:
    """How deep below the root a draft can be of use: a step commits at most that many tokens and the bonus.

    What is left of the token budget and of the model's positions, less one; negative when the row is full.
    """
    left = row.request.max_new_tokens - row.generated
    if max_positions is not None:
        left = min(left, max_positions - len(row.tokens))
    return left - 1
