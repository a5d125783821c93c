"""Endpoints that tell about the server, and the tokenizer's."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from multitoken import __version__
from multitoken.errors import OptionError
from multitoken.server.errors import ApiError
from multitoken.server.generation import FAILURES
from multitoken.server.protocol import DetokenizeRequest, TokenizeRequest
from multitoken.server.state import ServerState, state_of

router = APIRouter(responses=FAILURES)


@router.get("/health")
async def health(request: Request) -> Response:
    """200 while requests are taken, 503 from the moment of shutdown."""
    worker = state_of(request).worker
    body = {"status": "ok" if worker.healthy else "stopping", "rows": worker.active, "queue": worker.waiting}
    return JSONResponse(body, 200 if worker.healthy else 503)


@router.get("/version")
async def version() -> dict[str, str]:
    return {"version": __version__}


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Counters in Prometheus' text format."""
    return Response(state_of(request).metrics.page(), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    return {"object": "list", "data": [described(state_of(request))]}


@router.get("/v1/models/{name:path}")
async def model(name: str, request: Request) -> dict[str, Any]:
    state = state_of(request)
    state.check_model(name)
    return described(state)


@router.get("/methods")
async def methods(request: Request) -> dict[str, Any]:
    """Methods that a request may name, with the JSON schemas of their options."""
    state = state_of(request)
    return {
        "model": state.name,
        "chat": state.model.tokenizer.chat_template is not None,
        "context": state.context,
        "default": state.methods.default_name,
        "methods": state.methods.described(),
    }


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, request: Request) -> dict[str, Any]:
    """Token ids of a text, or of messages as the model reads them."""
    state = state_of(request)
    if body.messages is not None:
        tokens = await state.encode([message.plain() for message in body.messages])
    else:
        text = body.text or ""
        async with state.encoding:
            made = await asyncio.to_thread(state.model.tokenizer, text, add_special_tokens=body.add_special_tokens)
        tokens = [int(token) for token in made["input_ids"]]
    return {"tokens": tokens, "count": len(tokens), "max_model_len": state.context}


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, request: Request) -> dict[str, str]:
    """Text of token ids."""
    tokenizer = state_of(request).model.tokenizer
    size = len(tokenizer)
    if unknown := [token for token in body.tokens if token >= size]:
        raise OptionError("tokens", unknown[0], f"use token ids from 0 to {size - 1}")
    async with state_of(request).encoding:
        text = await asyncio.to_thread(
            tokenizer.decode,
            body.tokens,
            skip_special_tokens=body.skip_special_tokens,
            clean_up_tokenization_spaces=False,
        )
    if not isinstance(text, str):
        raise ApiError(400, "tokens: give a flat list of token ids", param="tokens")
    return {"text": text}


def described(state: ServerState) -> dict[str, Any]:
    return {
        "id": state.name,
        "object": "model",
        "created": state.started,
        "owned_by": "multitoken",
        "max_model_len": state.context,
    }
