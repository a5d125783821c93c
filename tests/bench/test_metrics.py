"""The benchmark's numbers on hand-made traces with known values."""

from __future__ import annotations

import pytest

from multitoken.bench import metrics
from multitoken.bench.records import Trace


def trace(spans, *, decode=1.0, seconds=2.0, tokens=None, **fields):
    tokens = list(range(sum(spans))) if tokens is None else tokens
    return Trace(
        tokens=tokens,
        spans=spans,
        prefill_seconds=seconds - decode,
        decode_seconds=decode,
        seconds=seconds,
        finish_reason="length",
        **fields,
    )


LONG = trace([1, 3, 3, 3, 3], decode=2.0, seconds=3.0)  # 12 tokens in 4 forwards
SHORT = trace([1, 1, 1], decode=1.0, seconds=2.0)  # 2 tokens in 2 forwards


def test_tau_is_a_ratio_of_sums_and_leaves_the_prefill_out():
    assert metrics.tau([LONG]) == 3
    assert metrics.tau([LONG, SHORT]) == pytest.approx(14 / 6)
    assert metrics.tau([trace([1])]) is None, "an answer of one token has no decode forward"


def test_tau_per_question_is_a_mean_of_ratios_over_all_turns_of_each():
    assert metrics.tau_per_question([[LONG], [SHORT]]) == pytest.approx((3 + 1) / 2)
    assert metrics.tau_per_question([[LONG, SHORT]]) == pytest.approx(14 / 6)
    assert metrics.tau_per_question([[LONG], [trace([1])]]) == 3
    assert metrics.tau_per_question([]) is None


def test_span_histogram_and_block():
    assert metrics.span_histogram([LONG, SHORT]) == {1: 2, 3: 4}
    assert metrics.mean_block([trace([1, 1, 1], blocks=[10, 20]), trace([1, 1], blocks=[60])]) == 30
    assert metrics.mean_block([LONG]) is None


def test_depth_counts_add_up_traces_of_different_depth():
    found = metrics.depth_counts(
        [LONG, trace([1, 2], drafted=[4], accepted=[1]), trace([1, 3], drafted=[5, 2], accepted=[2, 1])]
    )
    assert found == [(9, 3), (2, 1)]


def test_rates_and_speedup_use_total_tokens_over_total_time():
    assert metrics.decode_rate([LONG, SHORT]) == pytest.approx(14 / 3)
    assert metrics.end_to_end_rate([LONG, SHORT]) == pytest.approx(16 / 5)
    assert metrics.speedup(6.0, 4.0) == 1.5
    assert metrics.speedup(6.0, None) is None and metrics.speedup(None, 1.0) is None
    plain = trace([1] * 13, decode=6.0, seconds=7.0)
    gain = metrics.speedup(metrics.decode_rate([LONG]), metrics.decode_rate([plain]))
    assert gain == pytest.approx(6.0 / 2.0), "for equal outputs: plain time over method time"


def test_repetition_ratio():
    assert metrics.repetition_ratio([1, 2, 3, 4], 2) == 0
    assert metrics.repetition_ratio([7, 7, 7, 7, 7], 2) == 0.75  # one of four bigrams is new
    assert metrics.repetition_ratio([1, 2, 1, 2, 1], 3) == pytest.approx(1 / 3)
    assert metrics.repetition_ratio([1, 2], 3) is None
    pair = [trace([1], tokens=[7] * 5), trace([1], tokens=[1, 2, 3]), trace([1], tokens=[1])]
    assert metrics.mean_repetition(pair, 2) == pytest.approx(0.375), "too short an output does not count"


def test_proportion_and_its_standard_error():
    assert metrics.proportion([True] * 3 + [False]) == pytest.approx((0.75, (0.75 * 0.25 / 4) ** 0.5))
    assert metrics.proportion([True] * 5) == (1, 0)
    assert metrics.proportion([]) is None


def test_agreement_counts_places_of_the_longer_output():
    assert metrics.agreement([1, 2, 3, 4], [1, 9, 3]) == 0.5
    assert metrics.agreement([1], [1]) == 1
    assert metrics.agreement([], []) is None


def test_spec_bench_averages_rates_and_counts_the_baseline_by_its_text():
    method = [
        [trace([1, 3], seconds=1.0), trace([1, 3], seconds=1.0)],
        [trace([2, 4], seconds=1.0)],
    ]  # 4 and 6 per second
    plain = [
        [trace([1] * 4, seconds=1.0, retokenized=3), trace([1] * 4, seconds=1.0, retokenized=1)],
        [trace([1] * 6, seconds=2.0, retokenized=6)],
    ]
    assert metrics.spec_bench_speedup(method, plain) == pytest.approx(5.0 / 2.5)
    assert metrics.spec_bench_accepted(method) == pytest.approx(14 / 6)
    assert metrics.spec_bench_speedup([], []) is None
