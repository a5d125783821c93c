"""Choosing the probe vector for a model: a handful of candidates, tried on text that the model writes itself.

Nothing is trained. The vector matters more than the tree: on SmolLM2-135M the paper's prompt mean puts the true token
among a probe's best 14 in 15 % of positions, the mean of the embedding table in 52 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from multitoken.engine.engine import Engine
from multitoken.engine.row import Request
from multitoken.engine.sampling import Sampling
from multitoken.methods.plain import Plain
from multitoken.methods.probe.survey import probe_hidden
from multitoken.methods.probe.vectors import EmbeddingStatistics
from multitoken.models.backbone import Backbone
from multitoken.models.progress import Progress
from multitoken.storage import cache_dir, read_back, write_atomically

TEXTS = 6
LENGTH = 96
POSITIONS = 24  # owners per text
TOP = 14  # a hit: the true token is among so many
UNUSED = 4  # tokens with the smallest embeddings, which training has hardly touched
VERSION = "1"


@dataclass(frozen=True, slots=True)
class Calibration:
    """The winning vector [d], its name, and every candidate's share of hits."""

    vector: Tensor
    winner: str
    hits: dict[str, float]


def calibrated_vector(backbone: Backbone, statistics: EmbeddingStatistics) -> Tensor:
    """The best vector of this model, float32 [d]: from the cache, or found now and kept."""
    path = calibration_path(backbone)
    if path.is_file():
        return read_back(path, lambda file: load_file(str(file))["vector"].to(backbone.device))
    found = calibrate(backbone, statistics, progress=backbone.progress)
    metadata = {"winner": found.winner, **{f"hits {name}": f"{share:.4f}" for name, share in found.hits.items()}}
    tensors = {"vector": found.vector.cpu().contiguous()}
    write_atomically(path, lambda part: save_file(tensors, str(part), metadata=metadata))
    return found.vector


def calibration_path(backbone: Backbone) -> Path:
    """Where the winner is kept."""
    return cache_dir("probes", f"{backbone.fingerprint}-calibrated-{VERSION}.safetensors")


def calibrate(
    backbone: Backbone, statistics: EmbeddingStatistics, texts: int = TEXTS, progress: bool = True
) -> Calibration:
    """Try all candidates on ``texts`` texts and return the one with the most hits."""
    candidates = candidate_vectors(backbone, statistics)
    stacked = torch.stack(list(candidates.values()))
    hits = torch.zeros(len(candidates))
    tried = 0
    with Progress(progress, "probe vectors (once per model)", texts + 1) as bar:
        written = self_written(backbone, texts)
        bar.advance(1)
        for text in written:
            found, positions = _hits(backbone, text, stacked)
            hits += found
            tried += positions
            bar.advance(1)
    shares = {name: float(hits[i] / max(tried, 1)) for i, name in enumerate(candidates)}
    winner = max(shares, key=lambda name: shares[name])
    return Calibration(candidates[winner], winner, shares)


@torch.inference_mode()
def candidate_vectors(backbone: Backbone, statistics: EmbeddingStatistics) -> dict[str, Tensor]:
    """Named candidates, float32 [d] each: the table mean and its scalings, zero, and embeddings hardly ever trained."""
    mean = statistics.mean
    found = {"mean": mean, "half mean": 0.5 * mean, "twice mean": 2 * mean, "zero": torch.zeros_like(mean)}
    special = {"bos": backbone.bos, "eos": backbone.config.eos_token_id, "pad": backbone.config.pad_token_id}
    for name, token in special.items():
        if isinstance(token, int) and 0 <= token < backbone.vocab_size:
            found[name] = backbone.embed(torch.tensor(token, device=backbone.device)).float()
    norms = torch.cat(
        [
            backbone.embed(ids).float().norm(dim=-1)
            for ids in torch.arange(backbone.vocab_size, device=backbone.device).split(8192)
        ]
    )
    for token in norms.topk(min(UNUSED, len(norms)), largest=False).indices.tolist():
        embed = backbone.embed(torch.tensor(token, device=backbone.device)).float()
        found[f"token {token}"] = embed
        found[f"mean and token {token}"] = (mean + embed) / 2
    return found


def self_written(backbone: Backbone, count: int, length: int = LENGTH) -> list[list[int]]:
    """Texts that the model writes from the beginning-of-text token alone, sampled at temperature 1."""
    begin = backbone.bos if backbone.bos is not None else 0
    engine = Engine(backbone)
    method = Plain()
    rows = [
        engine.add(Request((begin,), method, Sampling(temperature=1.0, seed=seed), max_new_tokens=length))
        for seed in range(count)
    ]
    while engine.rows:
        engine.step()
    return [row.tokens for row in rows]


def _hits(backbone: Backbone, text: list[int], vectors: Tensor) -> tuple[Tensor, int]:
    """Positions of ``text`` where each vector's probe has the true token among its best, and positions tried."""
    last = len(text) - 2
    owners = sorted({round(i * last / POSITIONS) for i in range(1, POSITIONS)} - {last})
    chains = [owner for owner in owners for _ in range(len(vectors))]
    hidden = probe_hidden(backbone, text, chains, vectors.repeat(len(owners), 1)[:, None])
    best = (
        backbone.project(hidden[:, 0]).topk(min(TOP, backbone.vocab_size)).indices.view(len(owners), len(vectors), -1)
    )
    truth = torch.tensor([text[owner + 2] for owner in owners], device=best.device)
    return (best == truth[:, None, None]).any(-1).sum(0).float().cpu(), len(owners)
