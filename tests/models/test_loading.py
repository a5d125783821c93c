"""Loading from folders: what works, and one line for everything that does not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from multitoken.errors import ModelError, OptionError
from multitoken.models import attention
from multitoken.models.loading import load_model, resolve
from scripted import generate
from support import BASE, byte_tokenizer, reference, tiny_model

PROMPT = [7, 30, 200, 41, 9]


def saved(folder: Path, family: str = "llama") -> Path:
    module = tiny_model(family)
    module.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return saved(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def broken(checkpoint, tmp_path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


@pytest.mark.parametrize("attn", ["auto", "multitoken", "sdpa", "eager"])
def test_a_folder(checkpoint, attn):
    loaded = load_model(str(checkpoint), attn=attn, device="cpu")
    assert (loaded.name, loaded.dtype, loaded.capabilities.family) == (str(checkpoint), "float32", "llama")
    assert loaded.eos == {2} and loaded.tokenizer.decode(loaded.tokenizer("häus").input_ids) == "häus"
    row = generate(loaded.backbone, [PROMPT], max_new_tokens=8)[0]
    assert row.output == reference(tiny_model(), PROMPT, 8)


@pytest.mark.parametrize(("dtype", "expected"), [("bfloat16", "bfloat16"), ("float16", "float16"), ("auto", "float32")])
def test_dtypes(checkpoint, dtype, expected):
    assert load_model(str(checkpoint), dtype=dtype, device="cpu").dtype == expected


def test_families_with_scores_of_their_own_get_their_own_attention(tmp_path):
    folder = str(saved(tmp_path / "gemma", "gemma2"))
    loaded = load_model(folder, device="cpu")
    assert loaded.backbone.module.config._attn_implementation == "eager"
    assert generate(loaded.backbone, [PROMPT], max_new_tokens=8)[0].output == reference(tiny_model("gemma2"), PROMPT, 8)
    for attn in ("multitoken", "sdpa"):
        with pytest.raises(OptionError, match=f"^attn='{attn}': gemma2 soft-caps"):
            load_model(folder, device="cpu", attn=attn)


def test_families_found_to_need_eager_attention_get_it(tmp_path):
    """gpt_oss has attention sinks, which the block kernel refuses."""
    config = AutoConfig.for_model(
        "gpt_oss", **{**BASE, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 12}
    )
    module = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    module.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), device="cpu")
    assert loaded.backbone.module.config._attn_implementation == "eager"
    assert generate(loaded.backbone, [PROMPT], max_new_tokens=8)[0].output == reference(module, PROMPT, 8)
    with pytest.raises(ModelError, match=r"s_aux.*attn='eager'"):
        load_model(str(tmp_path), device="cpu", attn=attention.NAME)


@pytest.mark.parametrize(
    ("option", "value"),
    [("dtype", "int4"), ("attn", "flash"), ("device", "gpu"), ("device", "cuda:99"), ("device", "")],
)
def test_unknown_options(checkpoint, option, value):
    if value == "cuda:99" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(OptionError, match=f"^{option}='{value}': ") as caught:
        load_model(str(checkpoint), **{option: value})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("/nowhere/model", "no such folder"),
        ("./nowhere", "no such folder"),
        ("~/no/such/model", "no such folder"),
        ("a/b/c", "no such folder"),
        ("/nowhere/model.gguf", "no such file"),
        ("missing.gguf", "no such file"),
    ],
)
def test_nothing_there(name, reason):
    with pytest.raises(ModelError, match=f"^{name}: {reason}; give"):
        resolve(name)


def test_an_unknown_name(monkeypatch):
    """A hub id that cannot be reached: the bundled names are offered."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"no-such-model.*smollm2-135m") as caught:
        load_model("no-such-model", device="cpu", progress=False)
    assert "\n" not in str(caught.value)


def one_line(folder: Path, reason: str) -> None:
    with pytest.raises(ModelError, match=reason) as caught:
        load_model(str(folder), device="cpu", progress=False)
    assert "\n" not in str(caught.value) and folder.name in str(caught.value)


def test_a_folder_without_a_config(tmp_path):
    one_line(tmp_path, "has no config.json")


def test_a_config_that_is_not_json(broken):
    (broken / "config.json").write_text("{")
    one_line(broken, "cannot load model")


def test_a_config_of_an_unknown_family(broken):
    (broken / "config.json").write_text(json.dumps({"model_type": "nonesuch"}))
    one_line(broken, "nonesuch")


def test_weights_cut_short(broken):
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    one_line(broken, "cannot load model")


def test_weights_that_are_something_else(broken):
    (broken / "model.safetensors").write_bytes(b"not a checkpoint" * 10)
    one_line(broken, "cannot load model")


def test_no_weights(broken):
    (broken / "model.safetensors").unlink()
    one_line(broken, "cannot load model")


def test_weights_that_lack_a_tensor(broken):
    """Transformers would fill it with random numbers."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(broken / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    one_line(broken, "lacks 1 weight.*up_proj")


def test_weights_of_another_size(broken):
    config = json.loads((broken / "config.json").read_text())
    config["intermediate_size"] = 48
    (broken / "config.json").write_text(json.dumps(config))
    one_line(broken, "copy")


def test_no_tokenizer(broken):
    for path in broken.glob("tokenizer*"):
        path.unlink()
    one_line(broken, "cannot load model")


def test_a_gguf_that_is_something_else(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"not a gguf file at all" * 100)
    with pytest.raises(ModelError, match=r"model\.gguf") as caught:
        load_model(str(path), device="cpu", progress=False)
    assert "\n" not in str(caught.value)


def test_unsupported_is_refused_before_any_weight_is_read(broken):
    (broken / "config.json").write_text(AutoConfig.for_model("qwen3_next").to_json_string())
    (broken / "model.safetensors").unlink()
    one_line(broken, "qwen3_next has layers of kind linear_attention")
