"""Settings of the server."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class ServerSettings(BaseModel):
    """Where the server listens, and its limits."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    host: str = Field("127.0.0.1", description="address to listen on; other machines reach only what is not loopback")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on (0: any free one)")
    served_name: str | None = Field(None, min_length=1, description="model's name in the API (default: its own)")
    api_key_file: Path | None = Field(None, description="file with one API key per line; requests must bear one")
    allow_host: list[str] = Field(
        default_factory=list,
        description="further Host names to answer, such as a proxy's (without API keys, a loopback server answers to "
        "loopback names only, so that no web page can reach it under a name of its own)",
    )
    max_rows: int = Field(16, ge=1, description="sequences that are generated at once")
    max_queue: int = Field(64, ge=0, description="sequences that may wait for a row; more are refused with 429")
    max_choices: int = Field(32, ge=1, description="most sequences that one request may ask for (prompts times n)")
    max_context: int | None = Field(None, ge=2, description="most tokens of prompt and output (default: the model's)")
    max_body: int = Field(4 * 2**20, ge=1024, description="most bytes of a request's body")
    default_max_tokens: int = Field(512, ge=1, description="output tokens of a chat request that names no limit")
    request_timeout: float = Field(600.0, gt=0, description="seconds until a request is ended, waiting included")
    grace: float = Field(8.0, ge=0, description="seconds that running requests have to finish after SIGTERM")

    @property
    def loopback(self) -> bool:
        return self.host in LOOPBACK or self.host.startswith("127.")
