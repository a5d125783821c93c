"""A progress bar on standard error, so that standard output stays the program's own."""

from __future__ import annotations

import sys
from types import TracebackType

from rich import progress as rich_progress
from rich.console import Console


class Progress:
    """One bar. Context manager; silent when not ``enabled``.

    On something that is not a terminal (a log file) it writes one line at the start instead of redrawing.
    """

    def __init__(self, enabled: bool, title: str, total: int, unit: str = ""):
        self._title, self._total = title, total
        self._bar: rich_progress.Progress | None = None
        self._enabled = enabled
        self._unit = unit

    def __enter__(self) -> Progress:
        if not self._enabled:
            return self
        console = Console(file=sys.stderr)
        if not console.is_terminal:
            console.print(self._title, markup=False, highlight=False)
            return self
        columns = [rich_progress.TextColumn("{task.description}"), rich_progress.BarColumn()]
        if self._unit == "bytes":
            columns += [rich_progress.DownloadColumn(), rich_progress.TransferSpeedColumn()]
        columns += [rich_progress.TimeElapsedColumn()]
        self._bar = rich_progress.Progress(*columns, console=console)
        self._task = self._bar.add_task(self._title, total=self._total)
        self._bar.start()
        return self

    def advance(self, amount: int) -> None:
        """``amount`` more is done."""
        if self._bar:
            self._bar.advance(self._task, amount)

    def at(self, done: int) -> None:
        """``done`` is done in all."""
        if self._bar:
            self._bar.update(self._task, completed=done)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None
