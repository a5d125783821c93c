"""Peers: Transformers' own ``generate`` on the same weights, with its stock attention."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch
from transformers import PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from multitoken.bench.competitors import PeakMemory, Task
from multitoken.bench.records import Trace
from multitoken.errors import OptionError
from multitoken.models.loading import DTYPES, LoadedModel, load_model, quiet

LOOKUP_TOKENS = 10


def transformers_peers(model: LoadedModel, dtypes: Sequence[str], batch: int) -> list[TransformersPeer]:
    """Plain decoding and prompt lookup by ``generate``, in each of ``dtypes`` (default: the model's)."""
    if batch > 1:
        raise OptionError("peers", "transformers", "its prompt lookup takes one question at a time; use --batch 1")
    peers = []
    plain = model if model.backbone.runtime == "eager" else load_model(model.path, runtime="eager", progress=False)
    for dtype in dtypes or [model.dtype]:
        module = stock_module(plain.backbone.module, DTYPES[dtype])
        suffix = "" if dtype == model.dtype else f"[{dtype}]"
        peers.append(TransformersPeer(f"transformers{suffix}", module, dtype, {}))
        options = {"prompt_lookup_num_tokens": LOOKUP_TOKENS}
        peers.append(TransformersPeer(f"transformers-pld{suffix}", module, dtype, options))
    return peers


def stock_module(module: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """A second model of the same class with scaled-dot-product attention. It shares weights of the same dtype."""
    config = copy.deepcopy(module.config)
    config._attn_implementation = "sdpa" if getattr(module, "_supports_sdpa", True) else "eager"
    with quiet():
        stock = type(module)(config)
    # Assigned, not copied: buffers such as rotary frequencies stay as the class makes them, in float32.
    weights = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in module.state_dict().items()
    }
    stock.load_state_dict(weights, assign=True)
    stock.tie_weights()
    return stock.to(module.device).eval().requires_grad_(False)  # type: ignore[arg-type]


class TransformersPeer:
    """``generate`` with ``options``."""

    peer = True
    lossless = True

    def __init__(self, label: str, module: PreTrainedModel, dtype: str, options: dict[str, Any]):
        self.label = self.name = label
        self.dtype, self.options = dtype, options
        self._module = module

    def answer(self, tasks: Sequence[Task]) -> list[Trace]:
        return [self._answer(task) for task in tasks]

    @torch.inference_mode()
    def _answer(self, task: Task) -> Trace:
        watch = _Watch(len(task.prompt))
        ids = torch.tensor([task.prompt], device=self._module.device)
        drawn = {"do_sample": True, "temperature": task.temperature, "top_k": 0, "top_p": 1.0}
        ends = sorted(task.eos)
        torch.manual_seed(task.seed)
        with quiet(), PeakMemory(self._module.device) as memory:
            started = perf_counter()
            output = self._module.generate(  # type: ignore[operator]
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=task.max_new_tokens,
                stopping_criteria=StoppingCriteriaList([watch]),
                eos_token_id=ends or None,
                pad_token_id=ends[0] if ends else 0,
                **(drawn if task.temperature else {"do_sample": False}),
                **self.options,
            )
            seconds = perf_counter() - started
        tokens = until_end(output[0, len(task.prompt) :].tolist(), task.eos)
        first = watch.times[0] - started
        return Trace(
            tokens=tokens,
            spans=spans_of(watch.lengths, len(tokens)),
            prefill_seconds=first,
            decode_seconds=watch.times[-1] - watch.times[0],
            seconds=seconds,
            finish_reason="stop" if tokens[-1] in task.eos else "length",
            peak_memory=memory.peak,
        )


def until_end(tokens: list[int], ends: frozenset[int]) -> list[int]:
    """``tokens`` up to the first that ends the text, which is part of the output."""
    for index, token in enumerate(tokens):
        if token in ends:
            return tokens[: index + 1]
    return tokens


def spans_of(lengths: Sequence[int], total: int) -> list[int]:
    """Tokens that each forward committed, given the output's length after each and its final length."""
    ends = [min(length, total) for length in lengths]
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


class _Watch(StoppingCriteria):
    """Never stops; notes when each forward is done and how long the output then is."""

    def __init__(self, prompt_length: int):
        self._prompt = prompt_length
        self.times: list[float] = []
        self.lengths: list[int] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:  # type: ignore[override]
        self.times.append(perf_counter())
        self.lengths.append(input_ids.shape[1] - self._prompt)
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
