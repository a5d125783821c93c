"""Corpora: what a model writes itself, in whole lines, and again from where it stopped."""

import json

import pytest

from multitoken.errors import DataError
from multitoken.models.loading import wrap
from multitoken.session.language_model import LanguageModel
from multitoken.session.output import Result
from multitoken.training.corpus import read_corpus
from multitoken.training.synthesize import Synthesis, question_prefix, synthesize
from support import byte_tokenizer, tiny_model


@pytest.fixture(scope="module")
def model():
    return wrap(tiny_model(), byte_tokenizer(), name="tiny")


def options(count, **changes):
    return Synthesis(count, **{"prompt_tokens": 12, "answer_tokens": 10, "rows": 4, **changes})


def by_number(path):
    return {record["number"]: record for record in map(json.loads, path.read_text().splitlines()[1:])}


def test_answers_are_the_models_own(model, tmp_path):
    out = tmp_path / "c.jsonl"
    assert synthesize(model, out, options(6), progress=False) == 6
    corpus = read_corpus(out, model.backbone.fingerprint)
    assert len(corpus.samples) == 6 and corpus.tokens == sum(len(sample.answer) for sample in corpus.samples)
    beginning = question_prefix(model.tokenizer)
    lm = LanguageModel(model)
    for sample in corpus.samples:
        assert sample.prompt[: len(beginning)] == beginning and sample.source == "self"
        result = lm.generate(sample.prompt, method="plain", max_new_tokens=10)
        assert isinstance(result, Result) and result.token_ids == sample.answer
    assert len({tuple(sample.prompt) for sample in corpus.samples}) == 6


def test_a_killed_run_goes_on_to_the_same_samples(model, tmp_path):
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    synthesize(model, whole, options(8), progress=False)
    lines = whole.read_bytes().splitlines(keepends=True)
    cut.write_bytes(b"".join(lines[:4]) + lines[4][:17])
    assert synthesize(model, cut, options(8), progress=False) == 5
    assert by_number(cut) == by_number(whole)
    assert read_corpus(cut).digest == read_corpus(whole).digest
    assert synthesize(model, cut, options(8), progress=False) == 0


def test_prompts_of_a_file_and_no_prompt_twice(model, tmp_path):
    out = tmp_path / "c.jsonl"
    synthesize(model, out, options(2), prompts=["hello", "hello", "good day"], progress=False)
    corpus = read_corpus(out)
    assert [sample.source for sample in corpus.samples] == ["file", "file"]
    with pytest.raises(DataError, match="lower --count"):
        synthesize(model, tmp_path / "d.jsonl", options(3), prompts=["a", "a", "b"], progress=False)


@pytest.mark.parametrize("change", [{"seed": 1}, {"answer_tokens": 9}, {"answer_temperature": 0.5}])
def test_other_options_do_not_mix_into_a_file(model, tmp_path, change):
    out = tmp_path / "c.jsonl"
    synthesize(model, out, options(2), progress=False)
    before = out.read_bytes()
    with pytest.raises(DataError, match="another --out"):
        synthesize(model, out, options(2, **change), progress=False)
    assert out.read_bytes() == before


def test_split_follows_from_the_tokens(model, tmp_path):
    out = tmp_path / "c.jsonl"
    synthesize(model, out, options(24), progress=False)
    corpus = read_corpus(out)
    train, held = corpus.split(0.3)
    assert train and held and len(train) + len(held) == 24
    corpus.samples.reverse()
    again = corpus.split(0.3)
    assert {sample.digest for sample in again[1]} == {sample.digest for sample in held}
    with pytest.raises(DataError, match="too few"):
        corpus.split(0.0001)


@pytest.mark.parametrize("text", ["", "{}\n", '{"schema": "other"}\n', "nonsense\n"])
def test_what_is_no_corpus_is_refused(tmp_path, text):
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match="is no corpus"):
        read_corpus(path)


def test_a_corpus_of_another_model_is_refused(model, tmp_path):
    out = tmp_path / "c.jsonl"
    synthesize(model, out, options(2), progress=False)
    with pytest.raises(DataError, match="was written by tiny"):
        read_corpus(out, "llama-0")
