"""Progress of a training on standard error: a bar with loss and held-out figures."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import TracebackType

from rich import progress as rich_progress
from rich.console import Console

SHOWN = 5  # held-out figures beside the bar


class TrainingBar:
    """Context manager; an instance is called with a report of each step. Silent when not ``enabled``.

    On something that is not a terminal it writes one line per evaluation.
    """

    def __init__(self, enabled: bool, title: str, steps: int):
        self._title, self._steps = title, steps
        self._console = Console(file=sys.stderr)
        self._enabled = enabled
        self._bar: rich_progress.Progress | None = None
        self._figures = ""

    def __enter__(self) -> TrainingBar:
        if self._enabled and self._console.is_terminal:
            self._bar = rich_progress.Progress(
                rich_progress.TextColumn("{task.description}"),
                rich_progress.BarColumn(),
                rich_progress.MofNCompleteColumn(),
                rich_progress.TimeElapsedColumn(),
                rich_progress.TextColumn("{task.fields[figures]}"),
                console=self._console,
            )
            self._task = self._bar.add_task(self._title, total=self._steps, figures="")
            self._bar.start()
        return self

    def __call__(self, step: int, loss: float | None, held_out: Mapping[str, float] | None) -> None:
        """``step`` steps are done; ``held_out`` is given where an evaluation was made."""
        if held_out is not None:
            self._figures = ", ".join(f"{name} {value:.3f}" for name, value in list(held_out.items())[:SHOWN])
        training = "" if loss is None else f"loss {loss:.3f}"
        figures = " | held out: ".join(part for part in (training, self._figures) if part)
        if self._bar is not None:
            self._bar.update(self._task, completed=step, figures=figures)
        elif self._enabled and held_out is not None:
            line = f"{self._title}: step {step} of {self._steps}: {figures}"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
