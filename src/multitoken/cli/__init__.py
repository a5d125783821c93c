"""The command line. Thin: each command validates its options, calls the library, and shows what came back."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the ``multitoken`` command; returns its exit code."""
    try:
        from multitoken.cli.app import run  # not before: reading PyTorch takes seconds, in which Ctrl-C must be clean
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return run(argv)
