"""Choosing the target's own token from its logits: processors, truncation, and one random draw per token.

The random numbers of output token i depend on the seed and i alone, and the draw is an exponential race (Gumbel-max):
the token with the largest ``log p - log E`` wins, E one exponential variate per vocabulary entry. So a token drawn at a
tree node equals the token that plain decoding draws at the same place, whatever the drafts, the batch and the number of
forwards; and rounding in the logits changes a draw only where two entries tie to that rounding (an inverse-CDF draw
would shift every boundary of the vocabulary).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from multitoken.errors import OptionError

LogitsProcessor = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. The defaults are greedy decoding.

    Attributes:
        temperature: 0 for greedy; else logits are divided by it.
        top_k: keep the k most probable tokens (0: all).
        top_p: keep the smallest set of tokens with this probability mass (1: all).
        min_p: keep tokens at least this fraction as probable as the best one (0: all).
        repetition_penalty: divides positive and multiplies negative logits of tokens seen in prompt or output (1: off).
        presence_penalty, frequency_penalty: subtracted once, or per occurrence, for tokens of the output (0: off).
        logit_bias: added to the logits of single tokens.
        seed: of the random draws.
        processors: called as Transformers' LogitsProcessor, ``processor(ids [1, L], scores [1, V]) -> scores``,
            after the penalties and before the temperature.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    processors: tuple[LogitsProcessor, ...] = ()

    def __post_init__(self) -> None:
        checks = (
            ("temperature", 0 <= self.temperature < math.inf, "use 0 for greedy decoding or a positive number"),
            ("top_k", self.top_k >= 0, "use 0 to keep all tokens or a positive number"),
            ("top_p", 0 < self.top_p <= 1, "use a number above 0 and up to 1"),
            ("min_p", 0 <= self.min_p <= 1, "use a number from 0 to 1"),
            ("repetition_penalty", 0 < self.repetition_penalty < math.inf, "use a positive number; 1 is off"),
            ("presence_penalty", math.isfinite(self.presence_penalty), "use a finite number; 0 is off"),
            ("frequency_penalty", math.isfinite(self.frequency_penalty), "use a finite number; 0 is off"),
            ("logit_bias", not any(map(math.isnan, self.logit_bias.values())), "use numbers; -inf forbids a token"),
            ("seed", 0 <= self.seed < 2**64, "use a number from 0 to 2**64 - 1"),
        )
        for name, good, remedy in checks:
            if not good:
                raise OptionError(name, getattr(self, name), remedy)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def plain_argmax(self) -> bool:
        """Nothing but the largest raw logit decides."""
        return self.greedy and not (
            self.processors
            or self.logit_bias
            or self.repetition_penalty != 1
            or self.presence_penalty
            or self.frequency_penalty
        )


class Sampler:
    """Draws one row's tokens.

    Args:
        sampling: the row's settings.
        prompt_length: tokens of the history that are prompt, which presence and frequency penalties leave alone.
    """

    def __init__(self, sampling: Sampling, prompt_length: int):
        self.sampling = sampling
        self._prompt_length = prompt_length

    def draw(self, logits: Tensor, history: Sequence[int], banned: frozenset[int] = frozenset()) -> int:
        """The target's token after ``history`` (prompt and output so far), from its raw logits float32 [V]."""
        scores = self.processed(logits, history, banned)
        if self.sampling.greedy:
            return int(scores.argmax())
        noise = self._exponentials(len(history) - self._prompt_length, scores.shape[0]).to(scores.device)
        return int((self._truncated(scores) - noise.log_()).argmax())

    def distribution(self, logits: Tensor, history: Sequence[int], banned: frozenset[int] = frozenset()) -> Tensor:
        """Probabilities that `draw` draws from, float64 [V] (temperature above 0)."""
        return self._truncated(self.processed(logits, history, banned)).softmax(0)

    def processed(self, logits: Tensor, history: Sequence[int], banned: frozenset[int] = frozenset()) -> Tensor:
        """Logits after penalties, bias, processors and bans, before the temperature. float32 [V]."""
        s = self.sampling
        if s.plain_argmax and not banned:
            return logits
        scores = logits.clone()
        if s.repetition_penalty != 1:
            seen = torch.tensor(sorted(set(history)), device=scores.device)
            values = scores[seen]
            scores[seen] = torch.where(values < 0, values * s.repetition_penalty, values / s.repetition_penalty)
        if s.presence_penalty or s.frequency_penalty:
            counts = Counter(history[self._prompt_length :])
            if counts:
                seen = torch.tensor(list(counts), device=scores.device)
                times = torch.tensor(list(counts.values()), dtype=scores.dtype, device=scores.device)
                scores[seen] -= s.presence_penalty + s.frequency_penalty * times
        if s.logit_bias:
            index = torch.tensor(list(s.logit_bias), device=scores.device)
            scores[index] += torch.tensor(list(s.logit_bias.values()), dtype=scores.dtype, device=scores.device)
        # Tokenizers may know end tokens that the model has no logit for.
        if forbidden := [token for token in banned if token < scores.shape[0]]:
            scores[torch.tensor(forbidden, device=scores.device)] = -torch.inf
        if s.processors:
            ids = torch.tensor([list(history)], device=scores.device)
            for processor in s.processors:
                scores = processor(ids, scores[None])[0]
        return scores

    def _truncated(self, scores: Tensor) -> Tensor:
        """Scores over the temperature, -inf for the tokens that truncation drops. float64 [V]."""
        s = self.sampling
        scores = scores.double() / s.temperature
        if 0 < s.top_k < scores.shape[0]:
            tokens = scores.topk(s.top_k).indices
            kept = torch.full_like(scores, -torch.inf)
            kept[tokens] = scores[tokens]
            scores = kept
        if s.top_p < 1:
            ordered, tokens = scores.sort(descending=True, stable=True)
            weights = ordered.softmax(0)
            # A token stays while the mass before it is below top_p, so the first always stays.
            scores[tokens[weights.cumsum(0) - weights >= s.top_p]] = -torch.inf
        if s.min_p > 0:
            scores[scores < scores.max() + math.log(s.min_p)] = -torch.inf
        return scores

    def _exponentials(self, index: int, size: int) -> Tensor:
        """Standard exponential variates of output token ``index``, float64 [size]."""
        # The counter's high word is the token's index, so the streams of different tokens never meet.
        bits = np.random.Philox(key=self.sampling.seed, counter=[0, 0, 0, index])
        return torch.from_numpy(np.random.Generator(bits).standard_exponential(size))
