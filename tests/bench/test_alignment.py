"""The alignment curve."""

from __future__ import annotations

import pytest
import torch

from multitoken.bench.alignment import measure_alignment, probe_text, summarize, write
from multitoken.errors import OptionError
from multitoken.methods.plain import Plain
from support import tiny_backbone, tiny_model

PROMPT = [7, 8, 9, 40, 41]


def test_a_probe_that_is_the_true_token_aligns_fully(backbone):
    """A probe whose vector is the embedding of the token in its place is that token: cosine 1 at every depth."""
    text = [*PROMPT, *write(backbone, PROMPT, Plain(), 12, frozenset())]
    owner = 8
    vector = backbone.embed(torch.tensor(text[owner + 1]))
    cosines, hits = probe_text(backbone, text, torch.tensor([owner]), vector, top_k=1)
    torch.testing.assert_close(cosines, torch.ones_like(cosines), atol=1e-4, rtol=0)
    assert hits.tolist() == [True], "greedy text: the true token's own best candidate is what follows"


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text"])
def test_states_equal_those_of_ordinary_forwards(family):
    """The probe's cosines equal those from Transformers' own hidden states of two separate forwards."""
    backbone, module = tiny_backbone(family), tiny_model(family)
    torch.manual_seed(1)
    text, owner = torch.randint(6, 260, (9,)).tolist(), 5
    vector = torch.randn(backbone.width)
    cosines, _ = probe_text(backbone, text, torch.tensor([owner]), vector, top_k=3)
    ids = torch.tensor([text])
    truth = module(input_ids=ids, output_hidden_states=True).hidden_states
    embeds = torch.cat([backbone.embed(ids[:, : owner + 1]), vector[None, None]], dim=1)
    probed = module(inputs_embeds=embeds, output_hidden_states=True).hidden_states
    # The last of Transformers' states has the final norm applied; ours has not.
    for depth in range(len(truth) - 1):
        expected = torch.nn.functional.cosine_similarity(truth[depth][0, owner + 1], probed[depth][0, owner + 1], dim=0)
        assert float(cosines[depth, 0]) == pytest.approx(float(expected), abs=1e-3)
    assert len(cosines) == len(truth)


def test_measure(backbone):
    seen = []

    def mean(prompt):
        return backbone.embed(torch.tensor(prompt)).mean(0)

    found = measure_alignment(
        backbone, [PROMPT, PROMPT[::-1]], Plain(), mean, tokens=20, positions=6, top_k=100, progress=seen.append
    )
    assert seen == [1, 2]
    assert found.hit_count + found.miss_count == 12
    for curve, count in ((found.hits, found.hit_count), (found.misses, found.miss_count)):
        assert (curve is None) == (count == 0)
        assert curve is None or (len(curve) == 4 and all(-1 <= c <= 1 for c in curve))
    assert found.to_dict()["hit_rate"] == found.hit_count / 12


def test_summary():
    cosines = torch.tensor([[0.5, 0.7, 0.1], [0.2, 0.2, 0.2]], dtype=torch.float64)
    found = summarize(cosines, torch.tensor([True, True, False]), 14)
    assert found.hits == pytest.approx([0.6, 0.2])
    assert found.misses == pytest.approx([0.1, 0.2])
    assert found.auc == pytest.approx([1.0, 0.5])
    assert summarize(cosines[:, :2], torch.tensor([True, True]), 1).auc is None


@pytest.mark.parametrize("option", ["tokens", "positions", "top_k"])
def test_bad_numbers(backbone, option):
    with pytest.raises(OptionError, match=option):
        measure_alignment(backbone, [PROMPT], Plain(), lambda _: torch.zeros(64), **{option: 0})  # type: ignore[arg-type]
