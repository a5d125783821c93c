"""What the endpoints share: the model and its worker, the method pool, limits and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from secrets import randbits
from time import perf_counter, time
from typing import Any

from fastapi import Request

from multitoken.engine.engine import check_request
from multitoken.errors import OptionError
from multitoken.models.loading import LoadedModel
from multitoken.server.config import ServerSettings
from multitoken.server.errors import ApiError
from multitoken.server.job import Job
from multitoken.server.methods import MethodPool
from multitoken.server.metrics import Metrics
from multitoken.server.protocol import Generation
from multitoken.server.tokens import TokenBytes
from multitoken.server.worker import Worker
from multitoken.session.prompts import encode

COMPLETION_TOKENS = 16  # OpenAI's default of the completions endpoint


@dataclass
class ServerState:
    """One per application."""

    model: LoadedModel
    settings: ServerSettings
    methods: MethodPool
    metrics: Metrics
    worker: Worker
    token_bytes: TokenBytes
    started: int
    encoding: asyncio.Lock

    @property
    def name(self) -> str:
        """The model's name in the API. Of a path only the last part, which tells nothing about the machine."""
        return self.settings.served_name or Path(self.model.name).name or "model"

    @property
    def context(self) -> int | None:
        """Most tokens of prompt and output."""
        limits = [self.settings.max_context, self.model.backbone.max_positions]
        return min((limit for limit in limits if limit is not None), default=None)

    def check_model(self, name: str | None) -> None:
        if name is not None and name != self.name:
            message = f"model {name!r} is not served here; use {self.name!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    async def encode(self, prompt: str | Sequence[Mapping[str, str]] | list[int]) -> list[int]:
        """Token ids of a text, of messages, or as given. Long texts do not hold up the event loop."""
        if isinstance(prompt, list) and (not prompt or isinstance(prompt[0], int)):
            return list(prompt)  # type: ignore[arg-type]
        work = partial(encode, self.model.tokenizer, prompt, raw=isinstance(prompt, str))  # type: ignore[arg-type]
        async with self.encoding:
            return await asyncio.to_thread(work)

    async def jobs(
        self, body: Generation, prompts: Sequence[list[int]], default_tokens: int, request: Request
    ) -> list[Job]:
        """The sequences that a request asks for, all checked. Raises `ApiError` or `OptionError`."""
        n = body.n or 1
        if len(prompts) * n > self.settings.max_choices:
            limit = self.settings.max_choices
            raise ApiError(400, f"n: {len(prompts) * n} choices; ask for at most {limit}", param="n")
        method = self.methods.get(body.method, body.method_options)
        seed = randbits(32) if body.seed is None else body.seed
        client, deadline = request.scope["client_name"], perf_counter() + self.settings.request_timeout
        made = []
        for prompt in prompts:
            limit = self._token_limit(prompt, body.token_limit, default_tokens)
            for choice in range(n):
                options = body.options(limit, (seed + choice) % 2**63)
                job = Job(prompt, method, options, client, deadline)
                if choice == 0:
                    check_request(options.request(prompt, method, self.model.eos), self.model.backbone)
                made.append(job)
        return made

    def _token_limit(self, prompt: list[int], asked: int | None, default: int) -> int:
        context = self.context
        if context is None:
            return asked if asked is not None else default
        room = context - len(prompt)
        if room < 1 or (asked is not None and asked > room):
            wanted = f" and {asked} of output" if asked is not None else ""
            raise ApiError(
                400,
                f"{len(prompt)} tokens of prompt{wanted} do not fit into the context of {context}; shorten one of them",
                param="max_tokens" if room >= 1 else "prompt",
                code="context_length_exceeded",
            )
        return min(asked if asked is not None else default, room)


def make_state(
    model: LoadedModel, settings: ServerSettings, method: str, options: Mapping[str, Any] | None = None
) -> ServerState:
    """State for a loaded model. ``method`` and ``options``: what requests get that do not name another."""
    metrics = Metrics()
    methods = MethodPool(method, options)
    limit = model.backbone.max_positions
    if settings.max_context is not None and limit is not None and settings.max_context > limit:
        raise OptionError("max_context", settings.max_context, f"use at most the model's {limit} tokens")
    # What the method makes once (tables, measurements) is there before the first request.
    methods.default.bind(model.backbone)
    worker = Worker(model, settings, metrics)
    token_bytes = TokenBytes(model.tokenizer)
    return ServerState(model, settings, methods, metrics, worker, token_bytes, int(time()), asyncio.Lock())


def state_of(request: Request) -> ServerState:
    return request.app.state.server
