"""How far a probe's hidden state comes to resemble the true one, layer by layer.

Source: Goel, Gagrani, Lee, Lott, arXiv 2603.17942: the probe's state moves toward that of the true future token, and
further so where the true token is among the probe's best candidates.

A probe behind the prefix x_0 .. x_p sits at position p + 1, where the text has the token x_{p+1}, which it cannot see;
its logits propose x_{p+2}. Both states at position p + 1 are compared, at the input of the first layer and after every
layer, for a probe that *hit* (x_{p+2} is among its top K) and for one that missed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from multitoken.engine.engine import Engine
from multitoken.engine.method import Method
from multitoken.engine.row import Request
from multitoken.errors import ModelError, OptionError
from multitoken.methods.probe.survey import probe_block
from multitoken.models.backbone import Backbone

ProbeVector = Callable[[Sequence[int]], Tensor]
"""Prompt token ids -> the probe's input vector, [d]."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """Mean cosine per depth (0: input of the first layer, then after each layer), for hits and for misses.

    Attributes:
        hits, misses: mean cosine at each depth; None where there was no such probe.
        auc: at each depth, the chance that a hit's cosine is above a miss's (0.5: the cosine tells nothing).
        hit_count, miss_count: probes of each kind.
        top_k: how many of the probe's candidates count as a hit.
    """

    hits: list[float] | None
    misses: list[float] | None
    auc: list[float] | None
    hit_count: int
    miss_count: int
    top_k: int

    @property
    def hit_rate(self) -> float:
        return self.hit_count / (self.hit_count + self.miss_count)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "hit_rate": self.hit_rate}


def measure_alignment(
    backbone: Backbone,
    prompts: Sequence[Sequence[int]],
    plain: Method,
    vector: ProbeVector,
    *,
    tokens: int = 100,
    positions: int = 20,
    top_k: int = 14,
    eos: frozenset[int] = frozenset(),
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> Alignment:
    """Let the model continue each prompt greedily and probe its own text at random positions.

    Args:
        prompts: token ids of each prompt.
        plain: the method that writes the text.
        vector: makes the probe's input vector for a prompt.
        tokens: output tokens per prompt.
        positions: probes per prompt, fewer where its output is short.
        top_k: candidates among which the true token must be.
        progress: told how many prompts are done.

    Raises:
        OptionError: a number out of range, or outputs too short to probe.
    """
    for name, value in (("tokens", tokens), ("positions", positions), ("top_k", top_k)):
        if value < 1:
            raise OptionError(name, value, "use 1 or more")
    generator = torch.Generator().manual_seed(seed)
    cosines, hits = [], []
    for done, prompt in enumerate(prompts, 1):
        text = [*prompt, *write(backbone, prompt, plain, tokens, eos)]
        owners = torch.arange(len(prompt) - 1, len(text) - 2)
        owners = owners[torch.randperm(len(owners), generator=generator)[:positions]].sort().values
        if len(owners):
            found = probe_text(backbone, text, owners, vector(prompt), top_k)
            cosines.append(found[0])
            hits.append(found[1])
        progress(done)
    if not cosines:
        raise OptionError("tokens", tokens, "every output ended at once; give longer outputs or other prompts")
    return summarize(torch.cat(cosines, dim=1), torch.cat(hits), top_k)


def write(backbone: Backbone, prompt: Sequence[int], plain: Method, tokens: int, eos: frozenset[int]) -> list[int]:
    """The model's greedy continuation of ``prompt``."""
    engine = Engine(backbone)
    row = engine.add(Request(tuple(prompt), plain, max_new_tokens=tokens, eos=eos))
    while engine.rows:
        engine.step()
    return row.output


@torch.inference_mode()
def probe_text(
    backbone: Backbone, text: Sequence[int], owners: Tensor, vector: Tensor, top_k: int
) -> tuple[Tensor, Tensor]:
    """Run a text and one probe behind each owner position in a single block.

    Returns the cosines, float64 [depths, M], and whether the token after the probe's place is in its top K, bool [M].
    """
    length, device = len(text), backbone.device
    block = probe_block(text, owners.tolist(), vector.to(device).expand(len(owners), 1, -1))
    cache = backbone.new_cache()
    cache.add_row()
    with backbone.by_modules(), layer_states(backbone) as states:
        output = backbone.forward(block, cache)
    places = (owners + 1).to(device)
    cosines = torch.stack(
        [nn.functional.cosine_similarity(s[0, length:].double(), s[0, places].double(), dim=-1) for s in states]
    )
    best = backbone.project(output[0, length:]).topk(min(top_k, backbone.vocab_size)).indices
    truth = block.tokens[0, places + 1]
    return cosines.cpu(), (best == truth[:, None]).any(-1).cpu()


@contextlib.contextmanager
def layer_states(backbone: Backbone) -> Iterator[list[Tensor]]:
    """Collect, while open, the input of the first decoder layer and the output of every layer, each [B, Q, d]."""
    layers = decoder_layers(backbone)
    states: list[Tensor] = []

    def entering(module: nn.Module, args: tuple, kwargs: dict) -> None:
        states.append(args[0] if args else kwargs["hidden_states"])

    def leaving(module: nn.Module, args: tuple, output: Any) -> None:
        states.append(output if isinstance(output, Tensor) else output[0])

    handles = [layers[0].register_forward_pre_hook(entering, with_kwargs=True)]
    handles += [layer.register_forward_hook(leaving) for layer in layers]
    try:
        yield states
    finally:
        for handle in handles:
            handle.remove()


def decoder_layers(backbone: Backbone) -> nn.ModuleList:
    """The stack of decoder layers, whatever the family calls it."""
    wanted = backbone.config.num_hidden_layers
    for child in backbone.decoder.children():
        if isinstance(child, nn.ModuleList) and len(child) == wanted:
            return child
    raise ModelError(f"{backbone.config.model_type}: no list of {wanted} decoder layers found in the model")


def summarize(cosines: Tensor, hits: Tensor, top_k: int) -> Alignment:
    """Means per depth of cosines [depths, M] split by ``hits`` [M]."""
    good, bad = cosines[:, hits], cosines[:, ~hits]
    both = good.shape[1] > 0 and bad.shape[1] > 0
    auc = None
    if both:
        above = (good[:, :, None] > bad[:, None, :]).double() + 0.5 * (good[:, :, None] == bad[:, None, :]).double()
        auc = above.mean((1, 2)).tolist()
    return Alignment(
        hits=good.mean(1).tolist() if good.shape[1] else None,
        misses=bad.mean(1).tolist() if bad.shape[1] else None,
        auc=auc,
        hit_count=good.shape[1],
        miss_count=bad.shape[1],
        top_k=top_k,
    )
