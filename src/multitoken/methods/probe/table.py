"""The model's own next-token table: for every token of the vocabulary, what tends to follow it.

Entry t holds the most probable tokens after the sequence [BOS, t], with their log-probabilities. It is made once per
model with forwards of many tokens side by side, each seeing only BOS and itself, and kept on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from multitoken.models.backbone import Backbone
from multitoken.models.block import Block, causal_block
from multitoken.models.progress import Progress
from multitoken.storage import cache_dir, read_back, write_atomically

KEPT = 128
SLOTS = 256
VERSION = "1"
COMPACT_STEPS = 16.0
COMPACT_VOCABULARY = 2**16
SHIPPED = Path(__file__).parents[2] / "artefacts" / "tables"


@dataclass(slots=True)
class NextTokenTable:
    """Top continuations of single tokens, for the first C ids of a vocabulary of V.

    Attributes:
        tokens: most probable next tokens of each token, best first, integer [C, M].
        logprobs: their natural log-probabilities, float16 [C, M].
        vocab_size: V.
    """

    tokens: Tensor
    logprobs: Tensor
    vocab_size: int

    @property
    def covered(self) -> int:
        """Number of ids that have an entry."""
        return self.tokens.shape[0]

    def entries(self, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Entries of some tokens: next tokens int64 [P, M] and log-probabilities float32 [P, M].

        A token that is not covered has log-probabilities of -inf.
        """
        index = torch.tensor(tokens, device=self.tokens.device)
        missing = index >= self.covered
        index = index.masked_fill(missing, 0)
        return self.tokens[index].long(), self.logprobs[index].float().masked_fill(missing[:, None], -torch.inf)

    def compact(self, kept: int) -> dict[str, Tensor]:
        """The ``kept`` best entries in three bytes each: 16-bit ids and log-probabilities in sixteenths of a nat."""
        if self.vocab_size > COMPACT_VOCABULARY:
            raise ValueError(f"a vocabulary of {self.vocab_size} does not fit 16-bit ids")
        steps = (-COMPACT_STEPS * self.logprobs[:, :kept].float()).round().clamp(0, 255)
        return {"tokens": self.tokens[:, :kept].to(torch.uint16), "steps": steps.to(torch.uint8)}

    def save(self, path: Path, compact: bool = False) -> None:
        """Write the table, whole or not at all. ``compact``: rounded to three bytes per entry."""
        tensors = self.compact(self.tokens.shape[1]) if compact else {"tokens": self.tokens, "logprobs": self.logprobs}
        tensors = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
        metadata = {"version": VERSION, "vocab_size": str(self.vocab_size)}
        write_atomically(path, lambda part: save_file(tensors, str(part), metadata=metadata))

    @classmethod
    def load(cls, path: Path, device: torch.device) -> NextTokenTable:
        with safe_open(str(path), framework="pt") as file:
            size = int(file.metadata()["vocab_size"])
            tokens = file.get_tensor("tokens").to(torch.int32)
            if "steps" in file.keys():  # noqa: SIM118 (not a dict)
                logprobs = (file.get_tensor("steps").float() / -COMPACT_STEPS).half()
            else:
                logprobs = file.get_tensor("logprobs")
        return cls(tokens.to(device), logprobs.to(device), size)


def table_path(backbone: Backbone) -> Path:
    """Where the table of this model is kept."""
    return cache_dir("tables", f"{backbone.fingerprint}-{VERSION}.safetensors")


def shipped_path(backbone: Backbone) -> Path:
    """Where the package holds the table of this model, if it ships one."""
    return SHIPPED / f"{backbone.fingerprint}.safetensors"


def next_token_table(backbone: Backbone, seconds: float | None = None) -> NextTokenTable:
    """The table of a model: shipped with the package, from the cache, or made now within ``seconds`` (None: all of it).

    A cached table is used as it is, even if it covers less than the time now allowed would.
    """
    path = table_path(backbone)
    for known in (shipped_path(backbone), path):
        if known.is_file():
            return read_back(known, lambda file: NextTokenTable.load(file, backbone.device))
    table = make_table(backbone, seconds, progress=backbone.progress)
    table.save(path)
    return table


@torch.inference_mode()
def make_table(
    backbone: Backbone, seconds: float | None = None, kept: int = KEPT, progress: bool = True
) -> NextTokenTable:
    """Compute the table, ``kept`` entries per token, in id order until done or ``seconds`` have passed."""
    device, size = backbone.device, backbone.vocab_size
    kept = min(kept, size)
    tokens, logprobs = [], []
    cache = backbone.new_cache()
    cache.add_row()
    start = 0
    if backbone.bos is not None:
        first = torch.tensor([[backbone.bos]], device=device)
        backbone.forward(causal_block(first, torch.zeros(1, dtype=torch.int64, device=device)), cache)
        cache.commit(0, 1, [])
        start = 1
    alone = torch.eye(SLOTS, dtype=torch.bool, device=device)[None]
    deadline = monotonic() + (seconds if seconds is not None else float("inf"))
    with Progress(progress, "next-token table (once per model)", size) as bar:
        for low in range(0, size, SLOTS):
            ids = torch.arange(low, min(low + SLOTS, size), device=device)[None]
            count = ids.shape[1]
            block = Block(ids, torch.full_like(ids, start), alone[:, :count, :count])
            best = backbone.project(backbone.forward(block, cache)[0]).log_softmax(-1).topk(kept)
            tokens.append(best.indices.int())
            logprobs.append(best.values.half())
            bar.at(low + count)
            if monotonic() > deadline:
                break
    return NextTokenTable(torch.cat(tokens), torch.cat(logprobs), size)
