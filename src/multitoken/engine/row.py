"""A row: one sequence in the engine, from its prompt to its finish reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from multitoken.engine.sampling import Sampler, Sampling

if TYPE_CHECKING:
    from multitoken.engine.method import Method


@dataclass(frozen=True, slots=True)
class Request:
    """What one row is to generate.

    Attributes:
        prompt: token ids, at least one.
        method: how to draft.
        sampling: how to choose tokens.
        max_new_tokens: budget, at least 1.
        min_tokens: no end-of-sequence or stop token before so many output tokens.
        eos: token ids that end the text, the id itself being part of the output.
        stop_tokens: further token ids that end it.
        logprobs: number of alternatives to report per token (0: the token's own only), or None.
    """

    prompt: tuple[int, ...]
    method: Method
    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int = 128
    min_tokens: int = 0
    eos: frozenset[int] = frozenset()
    stop_tokens: frozenset[int] = frozenset()
    logprobs: int | None = None

    @property
    def ends(self) -> frozenset[int]:
        return self.eos | self.stop_tokens


@dataclass(slots=True)
class TokenLogprob:
    """Log-probability of a committed token under the model (before penalties and truncation), natural log.

    ``top`` holds (token, log-probability) of the most probable alternatives, best first.
    """

    token: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(slots=True, eq=False)
class Row:
    """State of one sequence.

    Attributes:
        tokens: prompt and output ids. The last ``pending`` of them are not in the cache yet; the newest is the root.
        spans: committed tokens of each step, the first being the prefill's.
        drafted, accepted: nodes offered to and accepted by verification, by depth (index 0: depth 1).
        blocks: block size (this row's own slots) of each decode forward.
        state: whatever the method keeps for this row.
    """

    request: Request
    tokens: list[int]
    pending: int
    sampler: Sampler
    state: Any = None
    finish_reason: str | None = None
    spans: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    @classmethod
    def of(cls, request: Request) -> Row:
        prompt = list(request.prompt)
        return cls(request, prompt, len(prompt), Sampler(request.sampling, len(prompt)))

    @property
    def method(self) -> Method:
        return self.request.method

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt)

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def generated(self) -> int:
        """Number of output tokens."""
        return len(self.tokens) - self.prompt_length

    @property
    def cached(self) -> int:
        """Number of tokens in the cache."""
        return len(self.tokens) - self.pending

    @property
    def prefilled(self) -> bool:
        return self.generated > 0

    @property
    def forwards(self) -> int:
        """Decode forwards so far (prefill not counted)."""
        return max(len(self.spans) - 1, 0)
