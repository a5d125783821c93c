"""Errors in OpenAI's shape. A reply never carries more than one line of what is wrong."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from multitoken.errors import OptionError
from multitoken.server.protocol import REFUSED

MEMBERS = {"str", "int", "constrained-str", "constrained-int"}  # how the schema calls members of unions
logger = logging.getLogger("multitoken.server")
RETRY_SECONDS = 1
# Names that a request has for the library's options.
WIRE_NAMES = {"max_new_tokens": "max_tokens", "stop_tokens": "stop_token_ids", "logprobs": "logprobs"}


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    """What every failed request is answered with."""

    error: ErrorBody


class ApiError(Exception):
    """A request that is answered with an error.

    Args:
        status: of HTTP.
        message: one line: what is wrong and what to do.
        param: the field at fault.
        code: a word for programs.
        retry: whether the same request may well succeed a little later.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry: bool = False
    ):
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry = status, message, param, code, retry

    @property
    def body(self) -> dict[str, Any]:
        kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        error = {"message": clean(self.message), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    @property
    def headers(self) -> dict[str, str]:
        # OpenAI's clients retry by status alone unless told otherwise.
        headers = {"x-should-retry": "true" if self.retry else "false"}
        if self.retry:
            headers["Retry-After"] = str(RETRY_SECONDS)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers

    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status, self.headers)


def clean(message: str) -> str:
    """One line that any encoding can carry, of bounded length."""
    line = " ".join(message.encode("utf-8", "replace").decode().split())
    return line if len(line) <= 500 else line[:497] + "..."


def of_option(error: OptionError, prefix: str = "") -> ApiError:
    """A library error about an option, as a 400 that names the request's field."""
    param = prefix + WIRE_NAMES.get(error.option, error.option)
    value = repr(error.value)
    shown = value if len(value) <= 60 else value[:57] + "..."
    return ApiError(400, f"{param}={shown}: {error.remedy}", param=param, code="invalid_value")


def of_validation(errors: list[Any]) -> ApiError:
    """The first thing that a schema found wrong, as a 400 that names the field."""
    # Each member of a union reports what is wrong with it; the one that got furthest is the one that was meant.
    field = errors[0]["loc"][:2]
    first = max((error for error in errors if error["loc"][:2] == field), key=lambda error: len(error["loc"]))
    path = [str(part) for part in first["loc"][1:] if not (part in MEMBERS or "[" in str(part))]
    param = ".".join(path) or None
    if first["type"] == "json_invalid":
        return ApiError(400, "the body is not valid JSON", code="invalid_json")
    if first["type"] == "extra_forbidden":
        name = path[-1]
        if len(path) == 1 and name in REFUSED:
            return ApiError(
                400, f"{name}: not supported by this server; {REFUSED[name]}", param=name, code="unsupported"
            )
        return ApiError(400, f"{param}: unknown field; leave it out", param=param, code="unknown_field")
    if first["type"] == "missing" and param is None:
        return ApiError(400, "the request has no body; send a JSON object", code="missing_body")
    if param is None and first["type"].endswith(("_attributes_type", "_type")):
        return ApiError(400, "the body must be a JSON object, sent as application/json", code="invalid_body")
    message = str(first["msg"]).removeprefix("Value error, ")
    return ApiError(400, f"{param}: {message}" if param else message, param=param, code="invalid_value")


def install(app: FastAPI) -> None:
    """Answer every failure of ``app`` in this shape."""

    async def api(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ApiError)
        return error.response()

    async def option(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, OptionError)
        return of_option(error).response()

    async def validation(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return of_validation(list(error.errors())).response()

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        known = {404: "no such path", 405: "this path does not take that HTTP method", 413: str(error.detail)}
        reply = ApiError(error.status_code, known.get(error.status_code, "the request cannot be read")).response()
        reply.headers.update(error.headers or {})
        return reply

    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        logger.error("%s while answering %s", type(error).__name__, request.scope.get("path"))
        return ApiError(500, "the server failed to answer; its log says more", code="internal_error").response()

    app.add_exception_handler(ApiError, api)
    app.add_exception_handler(OptionError, option)
    app.add_exception_handler(RequestValidationError, validation)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, unexpected)
