"""The model object: prompts, methods, limits, streaming, batches, errors."""

from __future__ import annotations

import resource

import pytest
import torch

import multitoken
from multitoken import Draft, LanguageModel, Method, OptionError
from multitoken.engine.draft import ROOT
from multitoken.models.loading import wrap
from support import byte_tokenizer, tiny_model

PROMPTS = ["hello", "b", "héé 😀", "a much longer prompt, to make the batch ragged"]
METHODS = ["plain", "probe", "fused", "auto", "pld", "lookahead", "stand"]


class Oracle(Method):
    """Drafts the known continuation, ``width`` tokens at a time, so that spans are long."""

    name = "oracle"

    def __init__(self, known: dict[tuple[int, ...], list[int]], width: int):
        self.known, self.width = known, width

    def draft(self, rows):
        drafts = []
        for row in rows:
            rest = self.known[row.request.prompt][row.generated :][: self.width]
            drafts.append(Draft(tokens=rest, parents=list(range(ROOT, len(rest) - 1))))
        return drafts


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULTITOKEN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return LanguageModel(wrap(tiny_model(), byte_tokenizer(), name="tiny"))


@pytest.fixture(scope="module")
def plain(model):
    return [model.generate(prompt, method="plain", max_new_tokens=40) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def oracle(model, plain):
    known = {tuple(model.encode(p)): r.token_ids for p, r in zip(PROMPTS, plain, strict=True)}
    return Oracle(known, 6)


@pytest.mark.parametrize("method", METHODS)
def test_batches_equal_plain_one_by_one(model, plain, method):
    results = model.generate(PROMPTS, method=method, max_new_tokens=40, batch_size=3)
    assert [r.token_ids for r in results] == [r.token_ids for r in plain]
    assert [r.text for r in results] == [r.text for r in plain]


@pytest.mark.parametrize("method", METHODS)
def test_streams_join_to_the_text(model, plain, method):
    chunks = list(model.stream(PROMPTS[2], method=method, max_new_tokens=40))
    assert "".join(chunk.text for chunk in chunks) == plain[2].text
    assert sum(chunk.span for chunk in chunks) == 40
    assert chunks[-1].result is not None and chunks[-1].result.text == plain[2].text
    assert all(chunk.result is None for chunk in chunks[:-1])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("options", [dict(temperature=1.0), dict(temperature=0.8, top_p=0.9, repetition_penalty=1.3)])
def test_same_seed_same_text(model, method, options):
    a = model.generate("seed", method=method, max_new_tokens=30, seed=7, **options)
    b = model.generate("seed", method="plain", max_new_tokens=30, seed=7, **options)
    c = model.generate("seed", method="plain", max_new_tokens=30, seed=8, **options)
    assert a.token_ids == b.token_ids != c.token_ids


def test_spans_of_a_perfect_drafter(model, plain, oracle):
    result = model.generate(PROMPTS[0], method=oracle, max_new_tokens=40)
    assert result.token_ids == plain[0].token_ids
    assert result.prefill_tokens + sum(result.spans) == result.completion_tokens == 40
    assert result.forwards == len(result.spans) and result.tau == sum(result.spans) / len(result.spans) > 5
    assert result.drafted[0] == result.accepted[0]


@pytest.mark.parametrize("width", [0, 2, 6])
def test_a_stop_string_ends_ids_and_text_together(model, plain, oracle, width):
    whole = plain[0].text
    stop = whole[12:15]
    cut = whole.index(stop)
    result = model.generate(PROMPTS[0], method=Oracle(oracle.known, width), max_new_tokens=40, stop=stop, logprobs=0)
    assert result.text == whole[:cut] and result.finish_reason == "stop"
    assert result.completion_tokens == len(result.token_ids) == len(result.logprobs)
    assert result.prefill_tokens + sum(result.spans) == result.completion_tokens
    assert result.token_ids == plain[0].token_ids[: result.completion_tokens]
    chunks = list(
        model.stream(PROMPTS[0], method=Oracle(oracle.known, width), max_new_tokens=40, stop=stop, logprobs=0)
    )
    assert "".join(chunk.text for chunk in chunks) == whole[:cut]
    assert chunks[-1].result.token_ids == result.token_ids


def test_stop_tokens_minimum_and_eos(model, plain, oracle):
    ids = plain[0].token_ids
    target = ids[20]
    first = ids.index(target)
    result = model.generate(PROMPTS[0], method=oracle, max_new_tokens=40, stop_token_ids=[target])
    assert result.token_ids == ids[: first + 1] and result.finish_reason == "stop"
    late = model.generate(PROMPTS[0], method=oracle, max_new_tokens=40, stop_token_ids=[target], min_tokens=first + 2)
    assert late.completion_tokens >= first + 2 and target not in late.token_ids[: first + 2]
    plainly = model.generate(
        PROMPTS[0], method="plain", max_new_tokens=40, stop_token_ids=[target], min_tokens=first + 2
    )
    assert late.token_ids == plainly.token_ids


def test_eos_inside_a_span(plain):
    target = plain[0].token_ids[10]
    loaded = wrap(tiny_model(), byte_tokenizer(), name="tiny")
    loaded.eos = frozenset({target})
    model = LanguageModel(loaded)
    ids = plain[0].token_ids
    method = Oracle({tuple(model.encode(PROMPTS[0])): ids}, 6)
    result = model.generate(PROMPTS[0], method=method, max_new_tokens=40)
    assert result.token_ids == ids[: ids.index(target) + 1] and result.finish_reason == "stop"
    on = model.generate(PROMPTS[0], method=method, max_new_tokens=40, ignore_eos=True)
    assert on.token_ids == ids and on.finish_reason == "length"


def test_logprobs_equal_plain(model, oracle):
    a = model.generate(PROMPTS[0], method=oracle, max_new_tokens=20, logprobs=3)
    b = model.generate(PROMPTS[0], method="plain", max_new_tokens=20, logprobs=3)
    for x, y in zip(a.logprobs, b.logprobs, strict=True):
        assert x.token == y.token and x.logprob == pytest.approx(y.logprob, abs=1e-4)
        assert [t for t, _ in x.top] == [t for t, _ in y.top] and x.top[0][1] >= x.logprob - 1e-9


def test_processors_see_the_true_history(model, oracle):
    seen: list[tuple[int, ...]] = []

    def record(ids, scores):
        seen.append(tuple(ids[0].tolist()))
        return scores

    result = model.generate(PROMPTS[0], method=oracle, max_new_tokens=20, processors=[record])
    whole = (*model.encode(PROMPTS[0]), *result.token_ids)
    assert seen == [whole[: len(whole) - 20 + i] for i in range(20)]


def test_one_token(model, plain):
    result = model.generate(PROMPTS[0], method="probe", max_new_tokens=1)
    assert result.token_ids == plain[0].token_ids[:1] and result.forwards == 0 and result.tau == 0


def test_messages_raw_and_ids(model):
    ids = model.encode("hi")
    assert model.encode([{"role": "user", "content": "hi"}]) == ids
    assert model.encode(ids) == ids
    assert model.encode("hi", raw=True) == byte_tokenizer()("hi")["input_ids"]


BAD = [
    (dict(max_new_tokens=0), "max_new_tokens"),
    (dict(max_new_tokens=True), "max_new_tokens"),
    (dict(temperature="hot"), "temperature"),
    (dict(temperature=-1), "temperature"),
    (dict(method="prob"), "plain, probe"),
    (dict(blok_size=3), "blok_size"),
    (dict(method="probe", block_size=2, probes=3), "block_size"),
    (dict(stop=""), "stop"),
    (dict(min_tokens=9, max_new_tokens=3), "min_tokens"),
    (dict(logit_bias={999: 1.0}), "logit_bias"),
]


@pytest.mark.parametrize(("options", "named"), BAD)
def test_bad_options_name_themselves(model, options, named):
    with pytest.raises(OptionError, match=named):
        model.generate("hi", **options)


@pytest.mark.parametrize("prompt", ["", [], [{"role": "user"}], [{"role": "user", "content": 3}], "x" * 400])
def test_bad_prompts(model, prompt):
    with pytest.raises(OptionError, match=r"prompt|messages"):
        model.generate(prompt, method="plain")


def test_an_abandoned_stream_leaves_the_model_usable(model, plain):
    stream = model.stream(PROMPTS[0], method="plain", max_new_tokens=40)
    next(stream)
    stream.close()
    assert model.generate(PROMPTS[0], method="plain", max_new_tokens=40).text == plain[0].text


def test_a_thousand_requests_leave_memory_flat(model):
    def run(count: int) -> int:
        for start in range(0, count, 50):
            model.generate([f"request {i}" for i in range(start, start + 50)], method="fused", max_new_tokens=4)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    run(200)
    before = run(200)
    assert run(1000) - before < 20_000  # kB


def test_public_names_resolve():
    for name in multitoken.__all__:
        assert getattr(multitoken, name) is not None
    with pytest.raises(AttributeError):
        _ = multitoken.nothing


def test_thousands_of_tokens_do_not_share_state(model):
    torch.manual_seed(3)
    before = torch.initial_seed()
    model.generate("x", method="stand", max_new_tokens=5, temperature=1.0)
    assert torch.initial_seed() == before  # the caller's random state is left alone
