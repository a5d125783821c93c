"""The bundled models themselves, from the real cache; the first run fetches what is missing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from multitoken.models.bundled import ensure_bundled

TEXTS = [
    "Hello, world!",
    "  two blanks lead",
    "a\n\n\n b\t\tc  \n",
    "1.  one\n\n2. two 1234",
    "naïve café — déjà vu",
    "你好，世界。こんにちは",
    "🦙👩‍👩‍👧 🇫🇷",
    "def f(x):\n    return x + 1\n",
    "I don't think it's 3.14 , is it ?",
]


@pytest.fixture(scope="module")
def smollm2() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(ensure_bundled("smollm2-135m"))


@pytest.fixture(scope="module")
def gemma3() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(ensure_bundled("gemma3-270m"))


@pytest.mark.parametrize("text", TEXTS)
def test_smollm2_text_comes_back(smollm2: PreTrainedTokenizerBase, text: str) -> None:
    assert smollm2.decode(smollm2.encode(text)) == text


def test_smollm2_ids(smollm2: PreTrainedTokenizerBase) -> None:
    assert smollm2.encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    assert smollm2.encode("Hello world! 123") == [19556, 905, 17, 216, 33, 34, 35]
    assert smollm2.encode("tips:\n\n1. Eat")[-4:] == smollm2.encode("\n\n") + smollm2.encode("1. Eat")


def test_smollm2_special_tokens(smollm2: PreTrainedTokenizerBase) -> None:
    ids = [smollm2.encode(token) for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    assert ids == [[0], [1], [2]]
    assert (smollm2.bos_token_id, smollm2.eos_token_id, smollm2.pad_token_id) == (1, 2, 2)
    assert smollm2.model_max_length == 8192


def test_smollm2_chat_template_and_answer(smollm2: PreTrainedTokenizerBase) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    text = smollm2.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert isinstance(text, str)
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n")
    model: Any = AutoModelForCausalLM.from_pretrained(ensure_bundled("smollm2-135m"), dtype=torch.float32)
    ids = torch.tensor([smollm2.encode(text, add_special_tokens=False)])
    answer = model.generate(ids, max_new_tokens=16, do_sample=False)[0, ids.shape[1] :]
    assert "Paris" in smollm2.decode(answer)
    assert answer[-1] == smollm2.eos_token_id


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS)
def test_gemma3_text_comes_back(gemma3: PreTrainedTokenizerBase, text: str) -> None:
    ids = gemma3.encode(text)
    assert ids[0] == gemma3.bos_token_id == 2
    assert gemma3.decode(ids[1:]) == text


@pytest.mark.slow
def test_gemma3_ids(gemma3: PreTrainedTokenizerBase) -> None:
    assert gemma3.encode("hello world") == [2, 23391, 1902]
    assert gemma3.encode("def f(x):\n    return x+1\n") == [
        *(2, 2063, 517, 236769, 236781, 1473, 107, 140, 2060, 1123, 236862, 236770, 107),
    ]
    assert gemma3.encode("<start_of_turn>", add_special_tokens=False) == [105]
    assert gemma3.eos_token_id == 1
    assert gemma3.chat_template is None


@pytest.mark.slow
def test_gemma3_goes_on(gemma3: PreTrainedTokenizerBase) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(ensure_bundled("gemma3-270m"), dtype=torch.float32)
    ids = torch.tensor([gemma3.encode("The capital of France is")])
    assert "France" in str(gemma3.decode(model.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :]))
