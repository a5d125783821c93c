"""``train probes`` and ``train mask`` from the command line, and decoding with what they wrote."""

import json
import random
from pathlib import Path

import pytest

from multitoken.cli import main
from multitoken.models.backbone import Backbone
from support import byte_tokenizer, tiny_model


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MULTITOKEN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    tiny_model().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def corpus(tmp_path):
    rng = random.Random(0)
    header = {"schema": "multitoken.corpus/1", "fingerprint": Backbone(tiny_model()).fingerprint, "model": "tiny"}
    lines = [header] + [
        {
            "prompt": [rng.randrange(3, 260) for _ in range(6)],
            "answer": [rng.randrange(3, 260) for _ in range(14)],
            "source": "self",
            "finish": "length",
        }
        for _ in range(40)
    ]
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (["train", "probes", "--probes", "2"], "probes"),
        (["train", "mask", "--k-max", "4", "--rank", "2", "--targets", "q_proj", "--targets", "v_proj"], "gated-lora"),
        (["train", "mask", "--adapter", "lora", "--k-max", "3", "--teacher", "soft", "--prefix-loss"], "lora"),
        (["train", "mask", "--adapter", "full", "--k-max", "3", "--labels", "truth", "--fixed-k"], "full"),
    ],
)
def test_train_and_decode(model, corpus, tmp_path, capsys, command, kind):
    out = tmp_path / "out"
    pace = ["--steps", "3", "--batch", "2", "--regions", "3", "--held-out", "0.2", "--json", "--no-progress"]
    assert main([*command, "-m", model, "--data", corpus, "--out", str(out), *pace]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["kind"] == kind and facts["steps"] == 3 and facts["held_out"]["tau"] >= 1
    base = str(out) if kind == "full" else model
    options = ["-o", f"checkpoint={out}", "-o", "k=3"]
    for acceptance in ("verified", "static"):
        given = ["generate", "Hello", "-m", base, "--method", "mask", *options, "-o", f"acceptance={acceptance}"]
        assert main([*given, "--json", "--max-new-tokens", "8", "--no-progress"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["lossless"] == (acceptance == "verified" and kind != "lora")


def test_wrong_data_and_runtimes_are_one_line(model, corpus, tmp_path, capsys):
    given = ["train", "probes", "-m", model, "--out", str(tmp_path / "out"), "--no-progress"]
    assert main([*given, "--data", str(tmp_path / "none.jsonl")]) == 1
    assert "multitoken data synthesize" in capsys.readouterr().err
    assert main([*given, "--data", corpus, "--runtime", "packed"]) == 2
    assert "has no gradients" in capsys.readouterr().err
    text = Path(corpus).read_text().replace("llama-", "other-", 1)
    (tmp_path / "other.jsonl").write_text(text)
    assert main([*given, "--data", str(tmp_path / "other.jsonl")]) == 1
    assert "not by this model" in capsys.readouterr().err


@pytest.mark.parametrize("precision", [["--precision", "bfloat16"], ["--dtype", "bfloat16"]])
@pytest.mark.parametrize("adapter", ["gated-lora", "full"])
def test_half_precision(model, corpus, tmp_path, capsys, precision, adapter):
    """Mixed precision, or a base in half precision; what is trained stays in float32 or follows the base."""
    out = tmp_path / "out"
    given = ["train", "mask", "-m", model, "--data", corpus, "--out", str(out), "--adapter", adapter, *precision]
    assert main([*given, "--steps", "3", "--regions", "3", "--held-out", "0.2", "--k-max", "3", "--no-progress"]) == 0
    points = json.loads((out / "curve.json").read_text())["points"]
    assert 0 < points[-1]["loss"] < 20
