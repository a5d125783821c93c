"""Prometheus metrics, in a registry of their own for each server."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from multitoken.session.output import Result

DEEPEST = 16  # depths from here on share one label
SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
LONG = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """All that the server counts. Labels take values from fixed sets only, so that no client can add series."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "multitoken_requests", "Answered HTTP requests", ["endpoint", "status"], registry=registry
        )
        self.sequences = Counter(
            "multitoken_sequences", "Finished sequences", ["method", "finish_reason"], registry=registry
        )
        self.queue = Gauge("multitoken_queue_sequences", "Sequences that wait for a row", registry=registry)
        self.rows = Gauge("multitoken_rows", "Sequences in the engine", registry=registry)
        self.first_token = Histogram(
            "multitoken_time_to_first_token_seconds",
            "From arrival to the first token",
            ["method"],
            buckets=LONG,
            registry=registry,
        )
        self.inter_token = Histogram(
            "multitoken_inter_token_seconds",
            "Time of a step over the tokens it committed to a sequence",
            ["method"],
            buckets=SHORT,
            registry=registry,
        )
        self.duration = Histogram(
            "multitoken_sequence_seconds", "From arrival to the last token", ["method"], buckets=LONG, registry=registry
        )
        self.prompt_tokens = Counter("multitoken_prompt_tokens", "Tokens of prompts", registry=registry)
        self.tokens = Counter("multitoken_generated_tokens", "Tokens of outputs", ["method"], registry=registry)
        self.forwards = Counter(
            "multitoken_forwards", "Decode forwards, counted once per sequence", ["method"], registry=registry
        )
        self.steps = Counter("multitoken_engine_steps", "Forwards of the engine, shared by its rows", registry=registry)
        self.failures = Counter("multitoken_engine_failures", "Steps that raised", registry=registry)
        self.drafted = Counter(
            "multitoken_drafted_tokens", "Tokens offered to verification", ["method", "depth"], registry=registry
        )
        self.accepted = Counter(
            "multitoken_accepted_tokens", "Drafted tokens that were accepted", ["method", "depth"], registry=registry
        )

    def finished(self, result: Result) -> None:
        """Count a sequence that has ended, by itself or not."""
        method = result.method
        self.sequences.labels(method, result.finish_reason).inc()
        self.tokens.labels(method).inc(result.completion_tokens)
        self.forwards.labels(method).inc(result.forwards)
        for counter, by_depth in ((self.drafted, result.drafted), (self.accepted, result.accepted)):
            for depth, count in enumerate(by_depth, 1):
                counter.labels(method, str(depth) if depth < DEEPEST else f"{DEEPEST}+").inc(count)

    def page(self) -> bytes:
        return generate_latest(self.registry)
