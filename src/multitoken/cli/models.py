"""The options that choose and load a model."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from multitoken.cli.command import CommandOptions
from multitoken.models.loading import LoadedModel, load_model


class ModelFlags(CommandOptions):
    """Which model, and how it is loaded."""

    model: str = Field(
        "smollm2-135m",
        description="bundled name, folder of a checkpoint, .gguf file, or hub id",
        json_schema_extra={"short": "m"},
    )
    dtype: str = Field("float32", description="float32, bfloat16, float16, or auto (the checkpoint's own)")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:N, or mps")
    attn: str = Field("auto", description="attention: auto, multitoken, sdpa, or eager")
    runtime: str = Field("auto", description="auto, packed (laid out for this CPU), compiled (and fused), or eager")
    quantize: str = Field("none", description="none, or int8 (8-bit weights and activations)")
    exact: bool = Field(False, description="the same bits in any block, so bfloat16 is lossless too; slower")
    trust_remote_code: bool = Field(False, description="run Python code that comes with a hub model")
    progress: bool = Field(True, description="progress bars on standard error")

    def load(self) -> LoadedModel:
        """The model as the engine takes it."""
        return load_model(self.model, **self.loading)

    @property
    def loading(self) -> dict[str, Any]:
        names = ("dtype", "device", "attn", "runtime", "quantize", "exact", "trust_remote_code", "progress")
        return {name: getattr(self, name) for name in names}
