"""``serve``: the HTTP server and its page."""

from __future__ import annotations

import logging
import sys
from typing import Any

from pydantic import Field

from multitoken.cli.methods import parse_method
from multitoken.cli.models import ModelFlags
from multitoken.errors import MultitokenError

try:
    from multitoken.server.config import ServerSettings
    from multitoken.server.methods import default_method
    from multitoken.server.run import serve
    from multitoken.server.state import make_state
except ModuleNotFoundError as error:
    raise MultitokenError(
        f"the server needs {error.name}, which is not installed; use: pip install 'multitoken[server]'"
    ) from None


class ServeCommand(ModelFlags, ServerSettings):
    """Options of ``serve``."""

    method: str = Field(
        default_factory=default_method,
        description="of requests that name none: NAME, or NAME:OPTION=VALUE:... (multitoken methods lists them)",
    )
    option: dict[str, Any] = Field(
        default_factory=dict,
        description="an option of the method; may be repeated",
        json_schema_extra={"short": "o"},
    )
    quiet: bool = Field(False, description="log warnings and errors only")


def run_serve(options: ServeCommand) -> int:
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.WARNING if options.quiet else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    for noisy in ("uvicorn", "httpx", "httpcore", "urllib3", "filelock"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    spec = parse_method(options.method, options.option)
    spec.create()  # its options are checked before the model is loaded
    settings = ServerSettings(**{name: getattr(options, name) for name in ServerSettings.model_fields})
    serve(make_state(options.load(), settings, spec.name, spec.options))
    return 0
