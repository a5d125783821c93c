"""Waiting for an answer only as long as the client does, and server-sent events that end when it leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from multitoken.server.errors import ApiError

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"


class ClientLeft(Exception):
    """Nobody waits for the answer any more."""


async def gone(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(work: Awaitable[T], receive: Receive) -> T:
    """Result of ``work``. Raises `ClientLeft`, with ``work`` cancelled, if the client leaves before."""
    task, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone(receive))
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientLeft
        return task.result()
    finally:
        for each in (task, leaving):
            each.cancel()
        await asyncio.gather(task, leaving, return_exceptions=True)


def event(body: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


class EventStream(Response):
    """Bodies as server-sent events, then ``[DONE]``.

    Args:
        events: the bodies. An `ApiError` that it raises becomes the last one.
        close: called once at the end, however it comes (all sent, client gone, failure).
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[dict[str, Any]], close: Callable[[], None]):
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events, self._close = events, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await while_connected(self._send_all(send), receive)
        except (ClientLeft, OSError):
            return
        finally:
            self._close()

    async def _send_all(self, send: Send) -> None:
        try:
            async for body in self._events:
                await send({"type": "http.response.body", "body": event(body), "more_body": True})
        except ApiError as error:
            await send({"type": "http.response.body", "body": event(error.body), "more_body": True})
        await send({"type": "http.response.body", "body": DONE, "more_body": False})
