"""GGUF files become checkpoints with the same weights and the tokenizer that was trained with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_gguf import digest, vocabulary, write_gguf
from transformers import AutoModelForCausalLM, AutoTokenizer

from multitoken.errors import ModelError
from multitoken.models.gguf import convert_gguf


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def checkpoint(source: Path, tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULTITOKEN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield convert_gguf(source, progress=False)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MULTITOKEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_logits_are_bit_identical_to_the_file_s(source: Path, checkpoint: Path) -> None:
    direct = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    ours = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    ids = torch.arange(0, 200, 7)[None]
    with torch.no_grad():
        assert torch.equal(direct(ids).logits, ours(ids).logits)


def test_embeddings_stay_tied(checkpoint: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint)
    assert model.config.tie_word_embeddings
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_config_is_plain(checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["dtype"] == "float32"
    assert json.loads((checkpoint / "generation_config.json").read_text())["eos_token_id"] == 2


def test_tokenizer_has_its_special_tokens_and_template(checkpoint: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert tokenizer.model_max_length == 128
    assert tokenizer.encode("<|im_start|>") == [1]
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert text == "<|im_start|>user\nhi<|im_end|>\n"


def test_blanks_before_a_digit_are_tokens_as_in_training(checkpoint: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    two_newlines, one = vocabulary().index("\u010a\u010a"), vocabulary().index("1")
    assert tokenizer.encode("\n\n1") == [two_newlines, one]


@pytest.mark.parametrize("text", ["hehe", "  lead", "a\n\n b\t", "déjà 你好 🦙", " 12  34", "a , b .", ""])
def test_text_comes_back(checkpoint: Path, text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_provenance(source: Path, checkpoint: Path) -> None:
    provenance = json.loads((checkpoint / "provenance.json").read_text())
    assert provenance["gguf_sha256"] == digest(source)
    assert provenance["file"] == "tiny.gguf"
    assert {"torch", "transformers", "gguf"} <= set(provenance["versions"])


def test_weights_can_be_read_by_others(checkpoint: Path) -> None:
    assert (checkpoint / "model.safetensors").stat().st_mode == (checkpoint / "config.json").stat().st_mode


def test_moved_file_is_not_converted_again(source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = convert_gguf(source, progress=False)
    moved = cache / "moved.gguf"
    moved.write_bytes(source.read_bytes())
    monkeypatch.setattr("multitoken.models.gguf.write_checkpoint", lambda *_, **__: pytest.fail("converted again"))
    assert convert_gguf(moved, progress=False) == first


def test_other_vocabularies_are_left_to_transformers(tmp_path: Path, cache: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(
        convert_gguf(write_gguf(tmp_path / "other.gguf", split="gpt-2"), progress=False)
    )
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert tokenizer.chat_template
    assert tokenizer.decode(tokenizer.encode("hehe 12")) == "hehe 12"


def test_progress_goes_to_standard_error_alone(source: Path, cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    convert_gguf(source)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == ["checking tiny.gguf", "unpacking tiny.gguf"]


def _broken(kind: str, folder: Path, source: Path) -> Path:
    path = folder / f"{kind.replace(' ', '-')}.gguf"
    match kind:
        case "no file":
            pass
        case "a folder":
            path.mkdir()
        case "another format":
            path.write_bytes(b"PK\x03\x04 not a model")
        case "empty":
            path.touch()
        case "cut in the header":
            path.write_bytes(source.read_bytes()[:900])
        case "cut in the weights":
            path.write_bytes(source.read_bytes()[:-4000])
        case "a weight missing":
            write_gguf(path, omit="blk.1.ffn_up.weight")
        case "unknown architecture":
            write_gguf(path, architecture="rwkv7")
    return path


@pytest.mark.parametrize(
    "kind",
    [
        "no file",
        "a folder",
        "another format",
        "empty",
        "cut in the header",
        "cut in the weights",
        "a weight missing",
        "unknown architecture",
    ],
)
def test_bad_file_is_one_line_and_leaves_nothing(kind: str, tmp_path: Path, cache: Path, source: Path) -> None:
    path = _broken(kind, tmp_path, source)
    with pytest.raises(ModelError) as caught:
        convert_gguf(path, progress=False)
    assert path.name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not [found for found in cache.rglob("*") if found.suffix != ".lock" and found.name != "gguf"]
