"""Generation options: one schema for the Python API, the command line, the server and the benchmark."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, field_validator, model_validator

from multitoken.engine.method import Method
from multitoken.engine.row import Request
from multitoken.engine.sampling import LogitsProcessor, Sampling

DEFAULT_TOKENS = 256


class GenerateOptions(BaseModel):
    """How much is generated, how tokens are chosen, and where the text ends. The defaults are greedy decoding."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_new_tokens: StrictInt = Field(DEFAULT_TOKENS, ge=1, description="most tokens to generate")
    min_tokens: StrictInt = Field(0, ge=0, description="no end of text before so many tokens")
    temperature: StrictFloat = Field(0.0, ge=0, description="0: greedy; else logits are divided by it")
    top_k: StrictInt = Field(0, ge=0, description="keep the k most probable tokens (0: all)")
    top_p: StrictFloat = Field(1.0, gt=0, le=1, description="keep the smallest set with this probability (1: all)")
    min_p: StrictFloat = Field(0.0, ge=0, le=1, description="keep tokens this fraction as likely as the best (0: all)")
    repetition_penalty: StrictFloat = Field(1.0, gt=0, description="weakens tokens seen in prompt or output (1: off)")
    presence_penalty: StrictFloat = Field(0.0, description="subtracted from logits of tokens in the output (0: off)")
    frequency_penalty: StrictFloat = Field(0.0, description="the same, once per occurrence (0: off)")
    logit_bias: dict[int, StrictFloat] = Field(default_factory=dict, description="added to the logits of token ids")
    seed: StrictInt = Field(0, ge=0, lt=2**64, description="of the random draws")
    stop: tuple[str, ...] = Field((), description="strings that end the text; they are not part of it")
    stop_token_ids: tuple[StrictInt, ...] = Field((), description="further token ids that end the text")
    ignore_eos: StrictBool = Field(False, description="go on past the model's end-of-text tokens")
    logprobs: StrictInt | None = Field(
        None, ge=0, le=100, description="report each token's log-probability and so many alternatives"
    )
    skip_special_tokens: StrictBool = Field(True, description="leave special tokens out of the text")

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("stop")
    @classmethod
    def _not_empty(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(value):
            raise ValueError("an empty stop string would end every text at once; leave it out")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> GenerateOptions:
        if self.min_tokens > self.max_new_tokens:
            raise ValueError(f"min_tokens={self.min_tokens} is above max_new_tokens={self.max_new_tokens}; lower it")
        return self

    def sampling(self, processors: Sequence[LogitsProcessor] = ()) -> Sampling:
        """The engine's sampling settings, with ``processors`` applied after the penalties."""
        return Sampling(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=self.logit_bias,
            seed=self.seed,
            processors=tuple(processors),
        )

    def request(
        self, prompt: Sequence[int], method: Method, eos: frozenset[int], processors: Sequence[LogitsProcessor] = ()
    ) -> Request:
        """The engine's request for a prompt."""
        return Request(
            prompt=tuple(prompt),
            method=method,
            sampling=self.sampling(processors),
            max_new_tokens=self.max_new_tokens,
            min_tokens=self.min_tokens,
            eos=frozenset() if self.ignore_eos else eos,
            stop_tokens=frozenset(self.stop_token_ids),
            logprobs=self.logprobs,
        )
