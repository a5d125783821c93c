"""``inspect heads``: what heads and span predictor cost beside a forward, at several batch sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field
from rich.table import Table

from multitoken.cli.models import ModelFlags
from multitoken.cli.show import console, print_json
from multitoken.methods.heads.checkpoint import load_heads
from multitoken.methods.heads.latency import HeadCost, head_costs


class HeadCostOptions(ModelFlags):
    """Options of ``inspect heads``."""

    checkpoint: Path | None = Field(
        None, description="folder made by multitoken train heads (default: shipped with the package for this model)"
    )
    rows: list[int] = Field([1, 4, 16, 64], min_length=1, description="batch sizes")
    context: int = Field(256, ge=0, description="tokens in the cache of each row")
    block_size: int = Field(16, ge=2, description="slots of a tree of candidates")
    repeats: int = Field(9, ge=1, description="of each measurement; the median counts")


def run_head_cost(options: HeadCostOptions) -> int:
    backbone = options.load().backbone
    trained = load_heads(options.checkpoint, backbone)
    costs = head_costs(backbone, trained, options.rows, options.context, options.block_size, options.repeats)
    if options.as_json:
        print_json(
            {
                "model": options.model,
                "dtype": backbone.dtype_name,
                "runtime": backbone.runtime,
                "kind": trained.heads.shape.kind,
                "costs": [cost.to_dict() for cost in costs],
            }
        )
    else:
        console().print(head_cost_table(costs, options))
    return 0


def head_cost_table(costs: Sequence[HeadCost], options: HeadCostOptions) -> Table:
    """Batch sizes down; milliseconds, and the share of a step in brackets."""
    title = f"Heads of {options.model}: milliseconds (share of a step), {options.context} tokens cached, medians"
    table = Table(title=title, title_justify="left")
    for heading in ("rows", "forward", "span predictor", "gate", "heads, chain", f"heads, {options.block_size} slots"):
        table.add_column(heading, justify="right")
    for cost in costs:
        parts = [
            "-" if seconds is None else f"{1e3 * seconds:.2f} ({cost.share(seconds):.1%})"
            for seconds in (cost.span, cost.gate, cost.chain, cost.tree)
        ]
        table.add_row(str(cost.rows), f"{1e3 * cost.forward:.1f}", *parts)
    return table
