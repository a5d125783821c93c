"""Who may come in: API keys, Host names, and the size of bodies."""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from multitoken.errors import DataError
from multitoken.server.config import LOOPBACK
from multitoken.server.errors import ApiError
from multitoken.server.metrics import Metrics

OPEN_PATHS = frozenset({"/", "/health", "/version"})
OPEN_PREFIX = "/static/"
logger = logging.getLogger("multitoken.server.access")


class ApiKeys:
    """Keys that open the API, kept as digests."""

    def __init__(self, keys: Sequence[str]):
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    @classmethod
    def read(cls, path: Path) -> ApiKeys:
        """Keys of a file: one per line; empty lines and lines that begin with ``#`` are left out."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8 text"
            raise DataError(f"{path}: API keys cannot be read ({reason}); give a text file, one key per line") from None
        keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not keys:
            raise DataError(f"{path}: no API key in it; write one per line")
        return cls(keys)

    def owner(self, authorization: str) -> str | None:
        """A name for the bearer of a known key (not the key), else None. Takes the same time for every wrong key."""
        kind, _, key = authorization.partition(" ")
        digest = hashlib.sha256(key.strip().encode()).digest()
        # Every key is compared, so that the time does not tell which one came close.
        found = [hmac.compare_digest(digest, known) for known in self._digests]
        return f"key-{found.index(True)}" if kind.lower() == "bearer" and any(found) else None


class Gate:
    """Checks each request before the application sees it, and logs and counts its answer.

    Args:
        app: the application behind.
        metrics: where answers are counted.
        keys: API keys, or None for an open server.
        hosts: Host names that are answered, or None for any.
        max_body: bytes.
    """

    def __init__(
        self, app: ASGIApp, *, metrics: Metrics, keys: ApiKeys | None, hosts: frozenset[str] | None, max_body: int
    ):
        self._app, self._metrics = app, metrics
        self._keys, self._hosts, self._max_body = keys, hosts, max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = perf_counter(), 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *SAFE_HEADERS]
            await send(message)

        body = LimitedBody(receive, self._max_body)
        try:
            self._check(scope)
            await self._app(scope, body, watched)
        except ApiError as error:  # raised here, or by the body before the application could answer
            if not status:
                await error.response()(scope, receive, watched)
        finally:
            # The route is known once the application has run; raw paths would be labels without end.
            endpoint = getattr(scope.get("route"), "path", None) or "other"
            self._metrics.requests.labels(endpoint, str(status)).inc()
            path = scope.get("raw_path", b"").decode("ascii", "replace")[:200]
            seconds = perf_counter() - started
            logger.info("%s %s %s %.3fs", scope["method"], path, status or "left", seconds)

    def _check(self, scope: Scope) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if self._hosts is not None and host_name(headers.get(b"host", "")) not in self._hosts:
            raise ApiError(
                403, "the Host header names another machine; start the server with --allow-host NAME", code="wrong_host"
            )
        length = headers.get(b"content-length", "0")
        if length.isascii() and length.isdigit() and int(length[:20]) > self._max_body:
            raise too_large(self._max_body)
        scope["client_name"] = (scope.get("client") or ("unknown",))[0]
        if self._keys is not None and not (scope["path"] in OPEN_PATHS or scope["path"].startswith(OPEN_PREFIX)):
            owner = self._keys.owner(headers.get(b"authorization", ""))
            if owner is None:
                raise ApiError(401, "give a known API key: Authorization: Bearer KEY", code="invalid_api_key")
            scope["client_name"] = owner


class LimitedBody:
    """`receive` that refuses to read on past a number of bytes."""

    def __init__(self, receive: Receive, limit: int):
        self._receive, self._left, self._limit = receive, limit, limit

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                # FastAPI passes on this kind of error only from a body.
                raise HTTPException(413, too_large(self._limit).message)
        return message


SAFE_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
]


def too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is larger than {limit} bytes; send less", code="body_too_large")


def host_name(header: str) -> str:
    """Name in a Host header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def answered_hosts(loopback: bool, keys: ApiKeys | None, allowed: Sequence[str]) -> frozenset[str] | None:
    """Host names to answer. An open loopback server is safe from web pages only if it insists on its own names."""
    if not loopback or keys is not None:
        return None
    return LOOPBACK | {host_name(name) for name in allowed}
