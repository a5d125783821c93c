"""From the journal's records to the results' numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from multitoken.bench import metrics
from multitoken.bench.competitors import Competitor
from multitoken.bench.records import QuestionRecord, Trace, TurnRecord
from multitoken.bench.runner import REFERENCE
from multitoken.bench.schema import Depth, Difference, MethodResult, Summary

GRAMS = (2, 3, 4)
PEER = "transformers"


@dataclass(frozen=True, slots=True)
class Context:
    """What a summary needs to know beyond the records.

    Attributes:
        comparable: labels whose outputs are to equal the reference's.
        peers: labels of Transformers' plain decoding, one per precision.
    """

    comparable: frozenset[str]
    peers: tuple[str, ...]
    spec_bench: bool


def summarize(
    records: Sequence[QuestionRecord], competitors: Sequence[Competitor], *, sampled: bool, spec_bench: bool
) -> list[MethodResult]:
    """Results of every competitor, overall and by category (in order of the categories' first question)."""
    context = Context(
        comparable=frozenset(c.label for c in competitors if not (c.peer and sampled)),
        peers=tuple(c.label for c in competitors if c.peer and not c.options),
        spec_bench=spec_bench,
    )
    categories: dict[str, list[QuestionRecord]] = {}
    for record in records:
        categories.setdefault(record.category, []).append(record)
    return [
        MethodResult(
            label=c.label,
            name=c.name,
            options=c.options,
            dtype=c.dtype,
            lossless=c.lossless,
            peer=c.peer,
            overall=summary(records, c.label, context),
            categories={name: summary(members, c.label, context) for name, members in categories.items()},
            divergences=differences(records, c.label),
        )
        for c in competitors
    ]


def summary(records: Sequence[QuestionRecord], label: str, context: Context) -> Summary:
    """One competitor over ``records``."""
    questions, plain_questions = answers(records, label), answers(records, REFERENCE)
    traces, plain = flat(questions), flat(plain_questions)
    decode, whole = metrics.decode_rate(traces), metrics.end_to_end_rate(traces)
    peer_decode = fastest(metrics.decode_rate(flat(answers(records, peer))) for peer in context.peers)
    peer_whole = fastest(metrics.end_to_end_rate(flat(answers(records, peer))) for peer in context.peers)
    scored = metrics.proportion([record.correct[label] for record in records if label in record.correct])
    comparable = label in context.comparable
    turns = [turn for record in records for turn in record.turns]
    return Summary(
        questions=len(records),
        answers=len(traces),
        tokens=sum(len(trace.tokens) for trace in traces),
        forwards=sum(trace.forwards for trace in traces),
        tau=metrics.tau(traces),
        tau_per_question=metrics.tau_per_question(questions),
        block_size=metrics.mean_block(traces),
        spans=metrics.span_histogram(traces),
        depths=depths(traces),
        decode_seconds=sum(trace.decode_seconds for trace in traces),
        seconds=sum(trace.seconds for trace in traces),
        decode_rate=decode,
        end_to_end_rate=whole,
        speedup=metrics.speedup(decode, metrics.decode_rate(plain)),
        end_to_end_speedup=metrics.speedup(whole, metrics.end_to_end_rate(plain)),
        peer_speedup=metrics.speedup(decode, peer_decode),
        peer_end_to_end_speedup=metrics.speedup(whole, peer_whole),
        exact=sum(label not in turn.divergences for turn in turns) if comparable else None,
        near_ties=sum(is_near_tie(turn, label) for turn in turns),
        agreement=mean_agreement(traces, plain) if comparable else None,
        repetition={n: metrics.mean_repetition(traces, n) for n in GRAMS},
        repetition_plain={n: metrics.mean_repetition(plain, n) for n in GRAMS},
        accuracy=scored[0] if scored else None,
        accuracy_error=scored[1] if scored else None,
        spec_bench_speedup=metrics.spec_bench_speedup(questions, plain_questions) if context.spec_bench else None,
        spec_bench_accepted=metrics.spec_bench_accepted(questions) if context.spec_bench else None,
        peak_memory=max((t.peak_memory for t in traces if t.peak_memory is not None), default=None),
    )


def answers(records: Sequence[QuestionRecord], label: str) -> list[list[Trace]]:
    """A competitor's traces, question by question."""
    return [[turn.traces[label] for turn in record.turns] for record in records]


def flat(questions: Sequence[Sequence[Trace]]) -> list[Trace]:
    return [trace for traces in questions for trace in traces]


def depths(traces: Sequence[Trace]) -> list[Depth]:
    forwards = sum(trace.forwards for trace in traces)
    found, before = [], forwards
    for depth, (drafted, accepted) in enumerate(metrics.depth_counts(traces), 1):
        found.append(
            Depth(
                depth=depth,
                drafted=drafted,
                accepted=accepted,
                rate=metrics.ratio(accepted, forwards),
                given_parent=metrics.ratio(accepted, before),
            )
        )
        before = accepted
    return found


def differences(records: Sequence[QuestionRecord], label: str) -> list[Difference]:
    return [
        Difference(question=record.id, turn=number, **turn.divergences[label].model_dump())
        for record in records
        for number, turn in enumerate(record.turns, 1)
        if label in turn.divergences
    ]


def mean_agreement(traces: Sequence[Trace], plain: Sequence[Trace]) -> float | None:
    pairs = zip(plain, traces, strict=True)
    found = [share for a, b in pairs if (share := metrics.agreement(a.tokens, b.tokens)) is not None]
    return fmean(found) if found else None


def is_near_tie(turn: TurnRecord, label: str) -> bool:
    return label in turn.divergences and turn.divergences[label].near_tie is True


def fastest(rates) -> float | None:
    return max((rate for rate in rates if rate is not None), default=None)
