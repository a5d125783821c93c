"""The ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

from multitoken import __version__
from multitoken.server import errors, generation, information
from multitoken.server.access import ApiKeys, Gate, answered_hosts
from multitoken.server.state import ServerState

STATIC = Path(__file__).parent / "static"


def create_app(state: ServerState) -> FastAPI:
    """The server's application. Raises `DataError` for a key file that cannot be used."""
    settings = state.settings
    keys = ApiKeys.read(settings.api_key_file) if settings.api_key_file is not None else None

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        state.worker.start()
        yield
        state.worker.stop()

    # FastAPI's own documentation pages load scripts from elsewhere.
    app = FastAPI(title="multitoken", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.server = state
    errors.install(app)
    app.include_router(generation.router)
    app.include_router(information.router)
    app.add_api_route("/", playground, include_in_schema=False)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.add_middleware(
        Gate,
        metrics=state.metrics,
        keys=keys,
        hosts=answered_hosts(settings.loopback, keys, settings.allow_host),
        max_body=settings.max_body,
    )
    return app


async def playground() -> FileResponse:
    """The page."""
    return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})
