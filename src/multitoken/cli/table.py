"""``table``: make a model's whole next-token table ahead of time."""

from __future__ import annotations

from pathlib import Path
from time import monotonic

from pydantic import Field

from multitoken.cli.models import ModelFlags
from multitoken.cli.show import console, print_json
from multitoken.errors import DataError, OptionError
from multitoken.methods.probe.table import COMPACT_VOCABULARY, KEPT, make_table, shipped_path, table_path
from multitoken.models.backbone import Backbone


class TableCommand(ModelFlags):
    """Options of ``table``."""

    kept: int = Field(KEPT, ge=1, description="next tokens kept per token")
    out: Path | None = Field(None, description="write it to this file (default: the cache, where methods look for it)")
    compact: bool = Field(
        False, description="three bytes per entry, for vocabularies up to 65,536: the form that ships with the package"
    )


def run_table(options: TableCommand) -> int:
    if options.out is not None and not options.out.parent.is_dir():
        raise DataError(f"{options.out}: its folder does not exist; make it first")
    if options.out is not None and options.out.is_dir():
        raise DataError(f"{options.out}: is a folder; name a file")
    backbone = options.load().backbone
    path = _destination(options, backbone)
    start = monotonic()
    table = make_table(backbone, kept=options.kept, progress=options.progress)
    table.save(path, options.compact)
    seconds = monotonic() - start
    facts = {
        "model": options.model,
        "path": str(path),
        "tokens": table.covered,
        "kept": table.tokens.shape[1],
        "compact": options.compact,
        "bytes": path.stat().st_size,
        "seconds": seconds,
    }
    if options.as_json:
        print_json(facts)
        return 0
    size = f"{facts['bytes'] / 1e6:.1f} MB"
    text = f"{path}: {table.covered} tokens, {facts['kept']} continuations each, {size}, made in {seconds:.0f} s"
    console().print(text, soft_wrap=True, markup=False)
    return 0


def _destination(options: TableCommand, backbone: Backbone) -> Path:
    """Where the table goes. Refuses what could not be written or would never be read, before the work is done."""
    if options.compact and backbone.vocab_size > COMPACT_VOCABULARY:
        raise OptionError(
            "compact",
            True,
            f"holds up to {COMPACT_VOCABULARY} tokens, this model has {backbone.vocab_size}; leave it out",
        )
    if options.out is not None:
        return options.out
    if shipped_path(backbone).is_file():
        raise OptionError("model", options.model, "its table comes with the package; --out FILE makes one all the same")
    return table_path(backbone)
