"""All weights of a tiny model, trained by two CPU processes that each hold half of them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from multitoken.models.backbone import Backbone
from support import byte_tokenizer, tiny_model


@pytest.mark.slow
def test_spread_weights_learn_what_whole_ones_learn(tmp_path):
    """And what is taken up again is what was left."""
    tiny_model().save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    rng = random.Random(0)
    lines: list[dict] = [{"schema": "multitoken.corpus/1", "fingerprint": Backbone(tiny_model()).fingerprint}]
    for _ in range(40):
        prompt, answer = ([rng.randrange(3, 260) for _ in range(count)] for count in (6, 14))
        lines.append({"prompt": prompt, "answer": answer, "source": "self", "finish": "length"})
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def run(out: str, steps: int, spread: bool) -> None:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "-m", "multitoken"]
        command += ["train", "mask", "--adapter", "full", "-m", str(tmp_path / "model"), "--out", str(tmp_path / out)]
        command += ["--data", str(tmp_path / "corpus.jsonl"), "--held-out", "0.2", "--k-max", "4", "--regions", "3"]
        command += ["--steps", str(steps), "--batch", "2", "--learning-rate", "0.001", "--warmup", "0"]
        env = {**os.environ, "ACCELERATE_USE_FSDP": str(spread).lower(), "OMP_NUM_THREADS": "1"}
        subprocess.run(command, env=env, check=True, timeout=300)

    run("whole", 6, spread=False)
    run("spread", 6, spread=True)
    whole, spread = (load_file(tmp_path / out / "model.safetensors") for out in ("whole", "spread"))
    base = load_file(tmp_path / "model" / "model.safetensors")
    for name, tensor in whole.items():
        torch.testing.assert_close(spread[name], tensor, atol=2e-4, rtol=1e-3)
    assert max(float((whole[name] - base[name]).abs().max()) for name in base) > 0.002
    masks = [load_file(tmp_path / out / "mask.safetensors")["vectors"] for out in ("whole", "spread")]
    torch.testing.assert_close(*masks, atol=2e-4, rtol=1e-3)
    stock: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "spread")
    assert stock.generate(torch.tensor([[7, 8]]), max_new_tokens=2, eos_token_id=None).shape == (1, 4)
    # Taken up again, with the checkpoint's tensors spread anew.
    checkpoints = sorted(Path(tmp_path / "spread" / "checkpoints").iterdir())
    assert [path.name for path in checkpoints] == ["step-00000006"]
    run("spread", 6, spread=True)
    again = load_file(tmp_path / "spread" / "model.safetensors")
    assert all(torch.equal(again[name], tensor) for name, tensor in spread.items())
