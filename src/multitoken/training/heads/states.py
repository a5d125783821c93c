"""Hidden states of the frozen model over a corpus, computed once and read from disk ever after.

A shard is a safetensors file of some answers: ``hidden`` float16 [T, d], the final states from the last prompt token to
the last but one of the answer, so that row j is the state from which the model wrote token j; ``tokens`` int32 [T]; and
``lengths`` int32, the answers' numbers of tokens. Shards are whole or absent, so a pass that was killed goes on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from multitoken.errors import DataError
from multitoken.models.backbone import Backbone
from multitoken.models.block import causal_block
from multitoken.models.progress import Progress
from multitoken.storage import write_atomically
from multitoken.training.corpus import Sample
from multitoken.training.processes import Processes

SHARD = 8  # answers; a deadline and a kill cost at most one shard
LARGEST = 60_000.0  # float16 ends at 65,504
FORWARD = 2048  # padded tokens of one forward


@dataclass(frozen=True, slots=True)
class Window:
    """Some neighbouring places of one answer.

    Attributes:
        hidden: float32 [W, d]; row j is the state from which the model wrote ``tokens[j]``.
        tokens: int64 [W].
    """

    hidden: Tensor
    tokens: Tensor


class States:
    """The states of many answers, read where they are needed.

    Attributes:
        lengths: tokens of each answer.
    """

    def __init__(self, folder: Path, name: str):
        self.lengths: list[int] = []
        self._places: list[tuple[int, int]] = []  # of each answer: shard, first row
        self._hidden: list[Any] = []
        self._tokens: list[Tensor] = []
        for number, path in enumerate(sorted(folder.glob(f"{name}-*.safetensors"))):
            try:
                file = safe_open(str(path), "pt")
                lengths = file.get_tensor("lengths").tolist()
                self._hidden.append(file.get_slice("hidden"))
                self._tokens.append(file.get_tensor("tokens").long())
            except Exception as error:
                raise DataError(f"{path}: cannot be read ({error}); delete it and it is made again") from error
            start = 0
            for length in lengths:
                self._places.append((number, start))
                self.lengths.append(length)
                start += length

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def positions(self) -> int:
        return sum(self.lengths)

    def window(self, answer: int, start: int, length: int) -> Window:
        """Up to ``length`` places of an answer from ``start`` on; fewer at its end."""
        shard, first = self._places[answer]
        stop = first + min(start + length, self.lengths[answer])
        rows = slice(first + start, stop)
        return Window(self._hidden[shard][rows].float(), self._tokens[shard][rows])


def make_states(
    backbone: Backbone,
    samples: Sequence[Sample],
    folder: Path,
    name: str,
    key: dict[str, Any],
    processes: Processes,
    deadline: float | None = None,
    progress: bool = False,
) -> States:
    """Compute what is not on disk yet, and open it.

    Args:
        folder: where the shards go; ``name`` tells sets of them apart.
        key: what the states depend on (model, corpus, precision). A folder made with another one is refused.
        deadline: `time.monotonic` at which to stop with the shards that are there. A later call that has a deadline
            too takes these as they are, so that a training on them can be taken up.
    """
    _claim(folder, key, processes)
    short = folder / f"{name}.short"  # made under a deadline
    if deadline is None and processes.first:
        short.unlink(missing_ok=True)
    processes.wait()
    groups = [samples[i : i + SHARD] for i in range(0, len(samples), SHARD)]
    if not short.exists():
        with Progress(progress and processes.first, f"reading {name} answers", len(groups)) as bar:
            for number, group in enumerate(groups):
                bar.at(number)
                path = folder / f"{name}-{number:05d}.safetensors"
                if number % processes.count != processes.rank or path.exists():
                    continue
                # The first shard is made in any case: nothing can be learned from none.
                if deadline is not None and number >= processes.count and monotonic() > deadline:
                    break
                _write(path, backbone, group)
    processes.wait()
    states = States(folder, name)
    if processes.first and deadline is not None and len(states) < len(samples):
        short.touch()
    processes.wait()
    return states


def _claim(folder: Path, key: dict[str, Any], processes: Processes) -> None:
    path = folder / "states.json"
    if path.exists():
        found = json.loads(path.read_text("utf-8"))
        for name, value in key.items():
            if found.get(name) != value:
                raise DataError(
                    f"{folder}: holds states with {name}={found.get(name)!r}, not {value!r}; name another folder, or "
                    "delete this one"
                )
    elif processes.first:
        write_atomically(path, lambda part: part.write_text(json.dumps(key, indent=1), "utf-8"))
    processes.wait()


def _write(path: Path, backbone: Backbone, samples: Sequence[Sample]) -> None:
    hidden = hidden_states(backbone, samples)
    tensors = {
        "hidden": torch.cat(hidden),
        "tokens": torch.tensor([token for sample in samples for token in sample.answer], dtype=torch.int32),
        "lengths": torch.tensor([len(sample.answer) for sample in samples], dtype=torch.int32),
    }
    write_atomically(path, lambda part: save_file(tensors, str(part)))


@torch.inference_mode()
def hidden_states(backbone: Backbone, samples: Sequence[Sample]) -> list[Tensor]:
    """States from which each answer's tokens were written, float16 [A, d] per sample, on the CPU."""
    found: list[Tensor] = [torch.empty(0)] * len(samples)
    order = sorted(range(len(samples)), key=lambda i: len(samples[i].prompt) + len(samples[i].answer))
    while order:
        longest = len(samples[order[-1]].prompt) + len(samples[order[-1]].answer)
        count = max(1, FORWARD // longest)
        group, order = order[-count:], order[:-count]
        texts = [(samples[i].prompt + samples[i].answer)[:-1] for i in group]
        tokens = torch.zeros(len(group), max(map(len, texts)), dtype=torch.int64, device=backbone.device)
        for row, text in enumerate(texts):
            tokens[row, : len(text)] = torch.tensor(text)
        # Padding stands behind the text, where a causal mask hides it.
        block = causal_block(tokens, torch.zeros(len(group), dtype=torch.int64, device=backbone.device))
        hidden = backbone.trace(block)
        for row, i in enumerate(group):
            part = hidden[row, len(samples[i].prompt) - 1 : len(texts[row])].cpu()
            found[i] = part.clamp(-LARGEST, LARGEST).half().contiguous()
    return found
