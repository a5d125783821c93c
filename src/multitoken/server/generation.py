"""``/v1/chat/completions`` and ``/v1/completions``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from multitoken.server.disconnect import ClientLeft, EventStream, while_connected
from multitoken.server.errors import ErrorReply
from multitoken.server.job import Job, Piece
from multitoken.server.protocol import ChatRequest, CompletionRequest, Generation
from multitoken.server.replies import ChatShape, Choice, CompletionShape, Shape
from multitoken.server.state import COMPLETION_TOKENS, ServerState, state_of

FAILURES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorReply} for status in (400, 401, 403, 404, 413, 422, 429, 500, 503, 504)
}
LEFT = 499  # in the log only: there is nobody to read it
router = APIRouter()


@router.post("/v1/chat/completions", responses=FAILURES)
async def chat(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation, whole or as a stream."""
    state = state_of(request)
    state.check_model(body.model)
    prompt = await state.encode([message.plain() for message in body.messages])
    jobs = await state.jobs(body, [prompt], state.settings.default_max_tokens, request)
    return await answer(state, body, shape_of(ChatShape, state, body), jobs, len(prompt), request)


@router.post("/v1/completions", responses=FAILURES)
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Continue one text or several, whole or as a stream."""
    state = state_of(request)
    state.check_model(body.model)
    prompts = [await state.encode(prompt) for prompt in body.prompts()]
    jobs = await state.jobs(body, prompts, COMPLETION_TOKENS, request)
    return await answer(state, body, shape_of(CompletionShape, state, body), jobs, sum(map(len, prompts)), request)


def shape_of(kind: type[Shape], state: ServerState, body: Generation) -> Shape:
    return kind(
        state.name,
        state.token_bytes,
        logprobs=body.logprob_count is not None,
        spans=bool(body.spans),
        timings=bool(body.timings),
        skip_special=body.skip_special_tokens is not False,
    )


async def answer(
    state: ServerState, body: Generation, shape: Shape, jobs: list[Job], prompt_tokens: int, request: Request
) -> Response:
    """Run the jobs and reply. Whatever happens here, none of them outlives its client."""
    state.worker.submit(jobs)
    choices = [Choice(index, job) for index, job in enumerate(jobs)]
    if body.stream:
        with_usage = body.stream_options is not None and body.stream_options.include_usage
        events = chunks(shape, choices, prompt_tokens, with_usage)
        return EventStream(events, close=lambda: state.worker.cancel(jobs))
    try:
        await while_connected(asyncio.gather(*(gather(choice) for choice in choices)), request.receive)
    except ClientLeft:
        return Response(status_code=LEFT)
    finally:
        state.worker.cancel(jobs)
    return JSONResponse(shape.reply(choices, prompt_tokens))


async def gather(choice: Choice) -> None:
    async for piece in choice.job:
        choice.add(piece)


async def chunks(
    shape: Shape, choices: Sequence[Choice], prompt_tokens: int, with_usage: bool
) -> AsyncIterator[dict[str, Any]]:
    """Chunks of all choices as they come."""
    for choice in choices:
        if (opening := shape.opening(choice)) is not None:
            yield opening
    async for choice, piece in merged(choices):
        choice.add(piece)
        if (chunk := shape.part(choice, piece)) is not None:
            yield chunk
    if with_usage:
        yield shape.usage_chunk(choices, prompt_tokens)


async def merged(choices: Sequence[Choice]) -> AsyncIterator[tuple[Choice, Piece]]:
    """Pieces of all choices in the order in which they come."""
    if len(choices) == 1:
        async for piece in choices[0].job:
            yield choices[0], piece
        return
    arrived: asyncio.Queue[tuple[Choice, Piece]] = asyncio.Queue()
    for choice in choices:
        choice.job.forward(lambda piece, choice=choice: arrived.put_nowait((choice, piece)))
    left = len(choices)
    while left:
        choice, piece = await arrived.get()
        if piece.error is not None:
            raise piece.error
        left -= piece.last
        yield choice, piece
