"""Bodies of requests. Whatever is not written here is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from multitoken.errors import OptionError
from multitoken.session.options import GenerateOptions

# Fields of OpenAI's that a client may send and this server cannot honour, with what to do instead.
REFUSED = {
    "tools": "describe them in the prompt",
    "tool_choice": "leave it out",
    "parallel_tool_calls": "leave it out",
    "functions": "describe them in the prompt",
    "function_call": "leave it out",
    "best_of": "use n",
    "suffix": "put what comes after into the prompt",
    "echo": "put prompt and output together in the client",
    "modalities": "only text is generated",
    "audio": "only text is generated",
    "prediction": "method pld drafts from the prompt itself",
    "reasoning_effort": "leave it out",
    "verbosity": "leave it out",
    "web_search_options": "leave it out",
    "service_tier": "leave it out",
    "store": "nothing is stored",
    "metadata": "nothing is stored",
}


def whole_text(text: str) -> str:
    """Refuse half of a surrogate pair, which JSON can write and no tokenizer can read."""
    if not text.isascii() and any(0xD800 <= ord(letter) <= 0xDFFF for letter in text):
        raise ValueError("holds half of a surrogate pair; send whole characters")
    return text


Text = Annotated[str, AfterValidator(whole_text)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Stop = Annotated[Text, Field(min_length=1, max_length=1000)]


class Strict(BaseModel):
    """Base of all bodies: no conversions, no unknown fields, no infinities."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


class StreamOptions(Strict):
    include_usage: bool = Field(False, description="send a last chunk with the usage")


class TextPart(Strict):
    type: Literal["text"]
    text: Text


class Message(Strict):
    role: Literal["system", "developer", "user", "assistant"] = Field(description="developer is taken as system")
    content: Text | list[TextPart]

    def plain(self) -> dict[str, str]:
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": content}


class ResponseFormat(Strict):
    type: Literal["text"] = Field(description="only text; JSON modes are not supported")


class Generation(Strict):
    """What chat and completions have in common."""

    model: str | None = Field(None, description="the served model's name")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=128, description="choices per prompt; choice i draws with seed + i")
    seed: int | None = Field(None, ge=0, lt=2**63, description="of the random draws (default: a new one each time)")
    stop: Stop | list[Stop] | None = Field(None, description="up to 16 strings that end the text")
    max_tokens: int | None = Field(None, ge=1, le=2**31)
    temperature: float | None = Field(None, ge=0, le=100, description="0: greedy; default 1")
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0, le=2**31, description="0: all")
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=100)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(None, max_length=1024)
    stop_token_ids: list[TokenId] | None = Field(None, max_length=256)
    ignore_eos: bool | None = None
    min_tokens: int | None = Field(None, ge=0, le=2**31)
    skip_special_tokens: bool | None = None
    user: str | None = Field(None, max_length=256, description="accepted from OpenAI's clients; has no effect")
    method: str | None = Field(None, max_length=64, description="how to draft; see GET /methods")
    method_options: dict[str, Any] | None = Field(None, max_length=32, description="options of the method")
    timings: bool | None = Field(None, description="add figures on speed and acceptance")
    spans: bool | None = Field(None, description="add the number of tokens that each forward committed")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, values: Any) -> Any:
        """Drop refused fields that ask for nothing."""
        if not isinstance(values, dict):
            return values
        return {key: value for key, value in values.items() if key not in REFUSED or value not in (None, False, [])}

    @field_validator("stop")
    @classmethod
    def _few(cls, value: Any) -> Any:
        if isinstance(value, list) and len(value) > 16:
            raise ValueError("give at most 16 stop strings")
        return value

    @model_validator(mode="after")
    def _streams(self) -> Generation:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options goes with stream: true")
        return self

    @property
    def logprob_count(self) -> int | None:
        """Alternatives to report per token, or None for no log-probabilities."""
        raise NotImplementedError

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens

    def options(self, limit: int, seed: int) -> GenerateOptions:
        """As the library takes it, with ``limit`` output tokens. Raises `OptionError`."""
        biases = {}
        for token, bias in (self.logit_bias or {}).items():
            if not (token.isascii() and token.isdigit() and len(token) < 10):
                raise OptionError("logit_bias", token, "use token ids as keys")
            biases[int(token)] = bias
        if self.min_tokens is not None and self.min_tokens > limit:
            raise OptionError("min_tokens", self.min_tokens, f"use at most the {limit} tokens of the output")
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        given = {
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
            "ignore_eos": self.ignore_eos,
            "min_tokens": self.min_tokens,
            "skip_special_tokens": self.skip_special_tokens,
        }
        return GenerateOptions(
            **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
            temperature=1.0 if self.temperature is None else self.temperature,
            max_new_tokens=limit,
            seed=seed,
            stop=stop,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            logit_bias=biases,
            logprobs=self.logprob_count,
        )


class ChatRequest(Generation):
    """Body of ``POST /v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1, max_length=4096)
    max_completion_tokens: int | None = Field(None, ge=1, le=2**31, description="same as max_tokens")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    response_format: ResponseFormat | None = None

    @model_validator(mode="after")
    def _consistent(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs goes with logprobs: true")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("max_tokens and max_completion_tokens mean the same; give one of them")
        return self

    @property
    def logprob_count(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_tokens is not None else self.max_completion_tokens


class CompletionRequest(Generation):
    """Body of ``POST /v1/completions``."""

    prompt: Text | list[Text] | list[TokenId] | list[list[TokenId]] = Field(
        description="text or token ids, one or many"
    )
    logprobs: int | None = Field(None, ge=0, le=20, description="alternatives to report per token")

    @field_validator("prompt")
    @classmethod
    def _not_empty(cls, value: Any) -> Any:
        if not value:
            raise ValueError("give some text or at least one token")
        return value

    @property
    def logprob_count(self) -> int | None:
        return self.logprobs

    def prompts(self) -> list[str | list[int]]:
        """The prompts, one or many."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]  # type: ignore[list-item]
        return list(self.prompt)  # type: ignore[arg-type]


class TokenizeRequest(Strict):
    """Body of ``POST /tokenize``: a text, or messages as the model's chat template writes them."""

    text: Text | None = None
    messages: list[Message] | None = Field(None, min_length=1, max_length=4096)
    add_special_tokens: bool = Field(True, description="for a text: as the model's prompts have them")

    @model_validator(mode="after")
    def _one(self) -> TokenizeRequest:
        if (self.text is None) == (self.messages is None):
            raise ValueError("give either text or messages")
        return self


class DetokenizeRequest(Strict):
    """Body of ``POST /detokenize``."""

    tokens: list[TokenId] = Field(max_length=1_000_000)
    skip_special_tokens: bool = False
