"""``warmup``: make ahead of time what a model's first use would make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from pydantic import Field

from multitoken.cli.models import ModelFlags
from multitoken.cli.show import console, print_json
from multitoken.errors import OptionError
from multitoken.methods.auto.cost import cost_path, step_cost
from multitoken.models.backbone import Backbone

T = TypeVar("T")


class WarmupCommand(ModelFlags):
    """Options of ``warmup``."""

    runtime: str = Field("compiled", description="compiled, auto, or packed; later starts find what this one made")


def run_warmup(options: WarmupCommand) -> int:
    if options.runtime == "eager":
        raise OptionError("runtime", "eager", "has nothing to prepare; use compiled")
    seconds: dict[str, float] = {}
    backbone = _timed(seconds, "load", lambda: options.load().backbone)
    cached = _code(backbone)
    curve = cost_path(backbone)
    fresh = not curve.is_file()
    _timed(seconds, "measure", lambda: step_cost(backbone))
    cached.append(_entry("cost of a forward", curve, fresh))
    facts = {
        "model": options.model,
        "runtime": backbone.runtime,
        "dtype": backbone.dtype_name,
        "exact": options.exact,
        "seconds": seconds,
        "cached": cached,
    }
    if options.as_json:
        print_json(facts)
        return 0
    out = console()
    total = sum(seconds.values())
    out.print(f"{options.model} ({backbone.dtype_name}, {backbone.runtime}) is ready after {total:.1f} s", markup=False)
    for entry in cached:
        when = "made now" if entry["new"] else "was there"
        text = f"  {entry['what']}, {entry['bytes'] / 1e6:.1f} MB, {when}: {entry['path']}"
        out.print(text, soft_wrap=True, markup=False, highlight=False)
    return 0


def _code(backbone: Backbone) -> list[dict[str, Any]]:
    code = backbone.compiled
    return [] if code is None else [_entry("compiled code", code.path, code.made)]


def _entry(what: str, path: Path, new: bool) -> dict[str, Any]:
    return {"what": what, "path": str(path), "bytes": path.stat().st_size, "new": new}


def _timed(seconds: dict[str, float], name: str, work: Callable[[], T]) -> T:
    start = monotonic()
    result = work()
    seconds[name] = monotonic() - start
    return result
