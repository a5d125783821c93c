"""The schema of ``results.json``, version 1. Rates are tokens per second, times seconds, memory bytes.

A file says its version, and other versions are refused. A new field with a default keeps the version; any other change
raises it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from multitoken.bench.records import DivergenceRecord
from multitoken.errors import DataError

VERSION = 1


class Part(BaseModel):
    """Base of the schema's parts: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Provenance(Part):
    """Where the numbers come from.

    Attributes:
        model_hash: of configuration and weights (`Backbone.fingerprint`).
        data_sha256: of the data file's bytes.
        versions: of Python and the packages that matter.
        machine: system, processor, logical cores, threads that PyTorch used, device.
        command: as it was typed.
        date: UTC, ISO 8601.
    """

    model: str
    model_hash: str
    dtype: str
    data: str
    data_sha256: str
    versions: dict[str, str]
    machine: dict[str, str | int]
    command: str
    date: str


class Depth(Part):
    """Acceptance at one depth of the drafts.

    Attributes:
        drafted: candidate nodes at this depth.
        accepted: forwards that accepted one.
        rate: ``accepted`` over all decode forwards.
        given_parent: ``accepted`` over the forwards that accepted the depth before (for depth 1: all).
    """

    depth: int
    drafted: int
    accepted: int
    rate: float | None
    given_parent: float | None


class Summary(Part):
    """One method over a set of questions. None: nothing to count, or not known for this competitor.

    Attributes:
        tau: committed tokens per decode forward, as a ratio of sums; ``tau_per_question``: mean of the ratios.
        forwards: decode forwards. ``block_size``: their mean block size.
        spans: decode forwards by how many tokens they committed.
        decode_rate, end_to_end_rate: tokens per second without and with the prefill.
        speedup, end_to_end_speedup: over this engine's plain decoding.
        peer_speedup, peer_end_to_end_speedup: over Transformers' plain ``generate``, the fastest precision of it.
        exact: answers that equal plain decoding's, token for token; None for a peer that drew its own samples.
        near_ties: of the other answers, those whose first difference is within rounding.
        agreement: mean share of places that hold plain decoding's token.
        repetition: ratio by n-gram length, and the same of plain decoding.
        accuracy, accuracy_error: share of right answers and its standard error.
        spec_bench_speedup, spec_bench_accepted: as Spec-Bench's own scripts average them (when asked for).
        peak_memory: the largest over the answers.
    """

    questions: int
    answers: int
    tokens: int
    forwards: int
    tau: float | None
    tau_per_question: float | None
    block_size: float | None
    spans: dict[int, int]
    depths: list[Depth]
    decode_seconds: float
    seconds: float
    decode_rate: float | None
    end_to_end_rate: float | None
    speedup: float | None
    end_to_end_speedup: float | None
    peer_speedup: float | None
    peer_end_to_end_speedup: float | None
    exact: int | None
    near_ties: int
    agreement: float | None
    repetition: dict[int, float | None]
    repetition_plain: dict[int, float | None]
    accuracy: float | None = None
    accuracy_error: float | None = None
    spec_bench_speedup: float | None = None
    spec_bench_accepted: float | None = None
    peak_memory: int | None = None


class Difference(DivergenceRecord):
    """Where one answer first differs from plain decoding's."""

    question: str
    turn: int


class MethodResult(Part):
    """One competitor. ``label``: as the user wrote it; ``peer``: another program."""

    label: str
    name: str
    options: dict[str, Any]
    dtype: str
    lossless: bool
    peer: bool
    overall: Summary
    categories: dict[str, Summary]
    divergences: list[Difference]


class CostEntry(Part):
    """Median seconds of a forward of ``size`` slots behind ``context`` cached tokens, ``rows`` rows at once."""

    size: int
    seconds: float
    fastest: float
    context: int
    rows: int
    dtype: str
    repeats: int
    runtime: str = "eager"


class Results(Part):
    """All of ``results.json``. ``settings`` is what a resumed run must share."""

    version: Literal[1] = VERSION
    provenance: Provenance
    settings: dict[str, Any]
    methods: list[MethodResult]
    cost: list[CostEntry] = Field(default_factory=list)

    def method(self, label: str) -> MethodResult | None:
        return next((method for method in self.methods if method.label == label), None)

    @property
    def categories(self) -> list[str]:
        return list(self.methods[0].categories)


def read_results(path: Path) -> Results:
    """Results from a file, or from the ``results.json`` of a folder."""
    file = path / "results.json" if path.is_dir() else path
    try:
        return Results.model_validate_json(file.read_bytes())
    except OSError as error:
        raise DataError(
            f"{file}: cannot be read ({error.strerror or error}); give a results.json or its folder"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise DataError(
            f"{file}: not results of version {VERSION} ({place}: {first['msg']}); run the benchmark again"
        ) from None
