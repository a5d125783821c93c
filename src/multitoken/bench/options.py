"""Options of a benchmark run."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Dtype = Literal["float32", "bfloat16", "float16"]


class BenchOptions(BaseModel):
    """What is asked of whom, and where the results go. Which model: see `multitoken.bench.command.run`."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    task: Literal["spec-bench", "gsm8k", "code", "jsonl"] = Field("spec-bench", description="what is asked")
    data: Path | None = Field(
        None, description="data file, or a folder that holds it (default: MULTITOKEN_DATA); for jsonl: the questions"
    )
    methods: list[str] = Field(
        ["plain", "auto"],
        min_length=1,
        description="methods, parted by commas, each with options as in probe:block_size=60; plain always runs too",
    )
    out: Path = Field(Path("bench-results"), description="folder of the results; a killed run goes on there")
    limit_per_category: int | None = Field(None, ge=1, description="questions per category (default: all)")
    max_new_tokens: int = Field(128, ge=1, description="longest answer per turn")
    batch: int = Field(1, ge=1, description="questions answered at once")
    temperature: float = Field(0.0, ge=0, description="0 for greedy decoding")
    seed: int = Field(0, ge=0, lt=2**32, description="of the random draws at temperature above 0")
    peers: list[Literal["transformers"]] = Field(
        [], description="programs to run beside: transformers (plain generate and prompt lookup)"
    )
    peers_dtype: list[Dtype] = Field([], description="precisions of the peers (default: the model's)")
    spec_bench_compatible: bool = Field(False, description="add the averages of Spec-Bench's own scripts")
    cost: bool = Field(True, description="measure the cost of a forward against its block size at the end")
    run_code: bool = Field(
        False, description="task code: run what the model wrote, with your rights, to check it against the tests"
    )
