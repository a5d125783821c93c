"""Methods side by side on one prompt: speed, tau, and whether the words are the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from multitoken.bench.divergence import Divergence
from multitoken.session.output import Result

Generate = Callable[[], Result]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One method's runs against the reference.

    Attributes:
        label: the method as the user named it.
        result: of its first timed run.
        tokens_per_second: median over the timed runs, prefill not counted.
        decode_seconds: median over the timed runs.
        speedup: tokens per second over the reference's; None where nothing was decoded.
        divergence: from the reference's output; None if they are equal.
    """

    label: str
    result: Result
    tokens_per_second: float
    decode_seconds: float
    speedup: float | None
    divergence: Divergence | None

    @property
    def identical(self) -> bool:
        return self.divergence is None

    def to_dict(self) -> dict[str, Any]:
        result = self.result.to_dict()
        result.update(tokens_per_second=self.tokens_per_second, decode_seconds=self.decode_seconds)
        return {
            "label": self.label,
            **result,
            "speedup": self.speedup,
            "identical": self.identical,
            "divergence": None if self.divergence is None else self.divergence.to_dict(),
        }


def run_alternating(
    runs: Sequence[tuple[str, Generate]], repeats: int, progress: Callable[[], None] = lambda: None
) -> list[list[Result]]:
    """Results of ``repeats`` rounds per run, the runs taking turns so that all meet the machine in the same state."""
    found: list[list[Result]] = [[] for _ in runs]
    for _ in range(repeats):
        for index, (_, generate) in enumerate(runs):
            found[index].append(generate())
            progress()
    return found


def compare(
    labels: Sequence[str],
    results: Sequence[Sequence[Result]],
    explain_against: Callable[[Sequence[int], Sequence[int]], Divergence | None],
) -> list[Comparison]:
    """Comparisons with the first entry as the reference; ``explain_against(reference ids, other ids)``."""
    reference = results[0]
    base = median(result.tokens_per_second for result in reference)
    found = []
    for label, runs in zip(labels, results, strict=True):
        speed = median(result.tokens_per_second for result in runs)
        found.append(
            Comparison(
                label=label,
                result=runs[0],
                tokens_per_second=speed,
                decode_seconds=median(result.decode_seconds for result in runs),
                speedup=speed / base if base and speed else None,
                divergence=explain_against(reference[0].token_ids, runs[0].token_ids),
            )
        )
    return found
