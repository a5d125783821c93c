"""Serving until a signal says to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Iterator
from time import perf_counter

import uvicorn

from multitoken.errors import OptionError
from multitoken.server.app import create_app
from multitoken.server.config import ServerSettings
from multitoken.server.state import ServerState

logger = logging.getLogger("multitoken.server")
CLOSING = 2.0  # seconds for the last bytes to reach the clients
MAX_CONNECTIONS = 1024


class Server(uvicorn.Server):
    """uvicorn's server, whose shutdown lets running requests finish or ends them cleanly."""

    def __init__(self, state: ServerState):
        config = uvicorn.Config(
            create_app(state),
            host=state.settings.host,
            port=state.settings.port,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="on",
            timeout_keep_alive=30,
            timeout_graceful_shutdown=int(CLOSING),
            limit_concurrency=MAX_CONNECTIONS,
            h11_max_incomplete_event_size=64 * 1024,
        )
        super().__init__(config)
        self._state = state

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT begin the shutdown; it is the end that we chose, so they are not raised again after it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        held = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in held.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse what waits, give what runs its grace, cut what is left, and close."""
        worker, settings = self._state.worker, self._state.settings
        worker.drain()
        until = perf_counter() + settings.grace
        while not worker.idle and perf_counter() < until and not self.force_exit:
            await asyncio.sleep(0.02)
        worker.cut()
        self.force_exit = False  # a second signal has ended the grace; the streams still end cleanly
        await super().shutdown(sockets)


def serve(state: ServerState) -> None:
    """Serve until SIGTERM or SIGINT. Raises `OptionError` if the port is taken."""
    settings = state.settings
    sockets = [bound(settings)]
    host, port = sockets[0].getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    logger.info("%s with method %s on http://%s:%s", state.name, state.methods.default_name, shown, port)
    if not settings.loopback and settings.api_key_file is None:
        logger.warning("everybody who can reach %s can use this server; --api-key-file asks for keys", host)
    Server(state).run(sockets)


def bound(settings: ServerSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        option, value = ("port", settings.port) if error.errno in (13, 98, 48) else ("host", settings.host)
        raise OptionError(option, value, f"cannot listen there ({error.strerror}); use another") from None
    return listener
