"""The numbers of a benchmark, as pure functions over traces.

Definitions: tau = tokens committed by decode forwards / decode forwards, prefill not counted, as the ratio of the sums
over requests; the mean of the per-question ratios stands beside it, since papers report that. Speed-ups compare rates,
total tokens over total time, which for equal outputs is plain time over method time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import sqrt
from statistics import fmean

from multitoken.bench.records import Trace


def tau(traces: Iterable[Trace]) -> float | None:
    """Committed tokens per decode forward, the ratio of the sums. None without a decode forward."""
    traces = list(traces)
    return ratio(sum(trace.decoded for trace in traces), sum(trace.forwards for trace in traces))


def tau_per_question(questions: Iterable[Sequence[Trace]]) -> float | None:
    """Mean over questions of each question's own tau (all its turns together)."""
    found = [value for traces in questions if (value := tau(traces)) is not None]
    return fmean(found) if found else None


def span_histogram(traces: Iterable[Trace]) -> dict[int, int]:
    """Decode forwards by how many tokens they committed, in ascending order."""
    counts = Counter(span for trace in traces for span in trace.spans[1:])
    return dict(sorted(counts.items()))


def depth_counts(traces: Iterable[Trace]) -> list[tuple[int, int]]:
    """Nodes (drafted, accepted) at depth 1, 2, ..."""
    found: list[tuple[int, int]] = []
    for trace in traces:
        for depth, (drafted, accepted) in enumerate(zip(trace.drafted, trace.accepted, strict=True)):
            if depth == len(found):
                found.append((0, 0))
            found[depth] = (found[depth][0] + drafted, found[depth][1] + accepted)
    return found


def mean_block(traces: Iterable[Trace]) -> float | None:
    """Mean block size of the decode forwards."""
    blocks = [block for trace in traces for block in trace.blocks]
    return fmean(blocks) if blocks else None


def decode_rate(traces: Iterable[Trace]) -> float | None:
    """Tokens per second of the decode forwards alone."""
    traces = list(traces)
    return ratio(sum(trace.decoded for trace in traces), sum(trace.decode_seconds for trace in traces))


def end_to_end_rate(traces: Iterable[Trace]) -> float | None:
    """Tokens per second from prompt ids to output ids."""
    traces = list(traces)
    return ratio(sum(len(trace.tokens) for trace in traces), sum(trace.seconds for trace in traces))


def speedup(rate: float | None, reference: float | None) -> float | None:
    """How many times the reference's rate; None if either is unknown."""
    return None if rate is None or not reference else rate / reference


def repetition_ratio(tokens: Sequence[int], n: int) -> float | None:
    """1 - distinct / total over the n-grams of ``tokens``; None for fewer than n tokens."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else None


def mean_repetition(traces: Iterable[Trace], n: int) -> float | None:
    """Repetition ratio averaged over the outputs that are long enough to have one."""
    found = [value for trace in traces if (value := repetition_ratio(trace.tokens, n)) is not None]
    return fmean(found) if found else None


def proportion(hits: Sequence[bool]) -> tuple[float, float] | None:
    """Share of hits and its standard error, sqrt(p (1 - p) / n)."""
    if not hits:
        return None
    p = fmean(hits)
    return p, sqrt(p * (1 - p) / len(hits))


def agreement(reference: Sequence[int], other: Sequence[int]) -> float | None:
    """Share of the places of the longer output at which both hold the same token."""
    longest = max(len(reference), len(other))
    return ratio(sum(a == b for a, b in zip(reference, other, strict=False)), longest)


def spec_bench_speedup(questions: Sequence[Sequence[Trace]], reference: Sequence[Sequence[Trace]]) -> float | None:
    """Speed-up as Spec-Bench's ``evaluation/speed.py`` averages it.

    The method's rate is the mean over questions of new tokens over wall time (prefill included); the baseline's counts
    its tokens by tokenizing its text again, less one for a begin-of-sequence token.
    """
    ours = [ratio(sum(len(t.tokens) for t in traces), sum(t.seconds for t in traces)) for traces in questions]
    theirs = [ratio(sum(t.retokenized for t in traces), sum(t.seconds for t in traces)) for traces in reference]
    known, base = [rate for rate in ours if rate is not None], [rate for rate in theirs if rate is not None]
    return speedup(fmean(known), fmean(base)) if known and base else None


def spec_bench_accepted(questions: Iterable[Sequence[Trace]]) -> float | None:
    """Mean accepted tokens as Spec-Bench prints it: the mean over all forwards, the prefill's among them."""
    spans = [span for traces in questions for trace in traces for span in trace.spans]
    return fmean(spans) if spans else None


def ratio(total: float, count: float) -> float | None:
    """``total / count``, None where there is nothing to divide by."""
    return total / count if count else None
