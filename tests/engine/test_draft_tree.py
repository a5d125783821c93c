"""Trees of candidates and probes, and their layout in a block, against the definitions."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from multitoken.engine.draft import ROOT, Draft, tree_shape
from multitoken.engine.layout import layout, prefill_layout
from multitoken.engine.row import Request, Row
from multitoken.methods.plain import Plain


@st.composite
def drafts(draw, vectors: bool | None = None) -> Draft:
    nodes = draw(st.integers(0, 8))
    parents = [draw(st.integers(ROOT, node - 1)) for node in range(nodes)]
    probes = draw(st.integers(0, 6))
    parents += [draw(st.integers(ROOT, slot - 1)) for slot in range(nodes, nodes + probes)]
    tokens = list(range(100, 100 + nodes))
    with_vectors = draw(st.booleans()) if vectors is None else vectors
    if probes and with_vectors:
        return Draft(tokens, parents, vectors=torch.arange(float(probes))[:, None].repeat(1, 3))
    return Draft(tokens, parents, probe_tokens=list(range(500, 500 + probes)))


def path(draft: Draft, slot: int) -> list[int]:
    """The slot and its ancestors, by following parents."""
    found = []
    while slot != ROOT:
        found.append(slot)
        slot = draft.parents[slot]
    return found


def names(draft: Draft) -> list[tuple]:
    """What a slot is, independent of its index: its token or probe number, and those of its ancestors."""
    labels: list[tuple] = [("node", token) for token in draft.tokens]
    if draft.vectors is not None:
        labels += [("probe", float(vector[0])) for vector in draft.vectors]
    else:
        labels += [("probe", token) for token in draft.probe_tokens or []]
    return [tuple(labels[slot] for slot in path(draft, slot)) for slot in range(draft.slots)]


@given(drafts())
def test_shape(draft):
    shape = draft.shape
    for slot in range(draft.slots):
        assert shape.depths[slot] == len(path(draft, slot))
        assert set(shape.ancestors[slot].nonzero()[0].tolist()) == set(path(draft, slot))


@pytest.mark.parametrize("parents", [(0,), (-2,), (ROOT, 1), (ROOT, 0, 5)])
def test_parents_come_first(parents):
    with pytest.raises(ValueError, match="does not precede"):
        tree_shape(parents)


@given(drafts(), st.integers(0, 5))
def test_trimmed_keeps_all_that_is_not_too_deep(draft, depth):
    trimmed = draft.trimmed(depth)
    assert names(trimmed) == [name for name in names(draft) if len(name) <= depth]
    assert trimmed.nodes == sum(1 for name in names(draft) if name[0][0] == "node" and len(name) <= depth)


@given(drafts())
def test_owned_probes_hang_from_their_anchor_by_probes_only(draft):
    for anchor in range(ROOT, draft.nodes):
        expected = []
        for slot in range(draft.nodes, draft.slots):
            above = draft.parents[slot]
            while above >= draft.nodes:
                above = draft.parents[above]
            if above == anchor:
                expected.append(slot)
        assert draft.owned(anchor) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        dict(tokens=[1, 2], parents=[ROOT]),
        dict(tokens=[1], parents=[ROOT, 0]),
        dict(tokens=[], parents=[ROOT], vectors=torch.zeros(2, 3)),
        dict(tokens=[], parents=[ROOT], probe_tokens=[1, 2]),
        dict(tokens=[1], parents=[ROOT], vectors=torch.zeros(1, 3)),
        dict(tokens=[], parents=[ROOT], vectors=torch.zeros(1, 3), probe_tokens=[1]),
        dict(tokens=[1], parents=[ROOT], sources=["a", "b"]),
    ],
)
def test_drafts_that_do_not_add_up_are_refused(wrong):
    with pytest.raises(ValueError, match="need as many"):
        Draft(**wrong)


@given(st.lists(st.tuples(drafts(vectors=True), st.integers(0, 9), st.integers(1, 4)), min_size=1, max_size=4))
def test_layout(parts):
    """Each slot's token, position and view, row by row, against the definition."""
    rows = []
    for _, cached, pending in parts:
        row = Row.of(Request(tuple(range(cached + pending)), Plain()))
        row.pending = pending
        rows.append(row)
    made = [part[0] for part in parts]
    plan = layout(rows, made, 3, torch.device("cpu"))
    block = plan.block
    assert block.first_row == 3 and block.rows == len(rows)
    assert block.size == max(pending + draft.slots for draft, _, pending in parts) == max(plan.sizes)
    vectors = {}
    if block.vectors is not None and block.vector_index is not None:
        vectors = dict(zip(block.vector_index.tolist(), block.vectors, strict=True))
    assert (block.probe_mask is None) == (not any(draft.probes for draft in made))
    for b, (draft, cached, pending) in enumerate(parts):
        assert block.tokens[b, :pending].tolist() == list(range(cached, cached + pending))
        assert block.tokens[b, pending : pending + draft.nodes].tolist() == list(draft.tokens)
        for i in range(block.size):
            probe = pending + draft.nodes <= i < pending + draft.slots
            if block.probe_mask is not None:
                assert bool(block.probe_mask[b, i]) == probe
            if probe and draft.vectors is not None:
                assert torch.equal(vectors.pop(b * block.size + i), draft.vectors[i - pending - draft.nodes])
            if i < pending:
                seen, position = set(range(i + 1)), cached + i
            elif i < pending + draft.slots:
                ancestors = path(draft, i - pending)
                seen = set(range(pending)) | {pending + slot for slot in ancestors}
                position = cached + pending - 1 + len(ancestors)
            else:
                seen, position = {i}, int(block.positions[b, i])
            assert set(block.visible[b, i].nonzero().flatten().tolist()) == seen
            assert int(block.positions[b, i]) == position
    assert not vectors


def test_prefill_layout():
    row = Row.of(Request(tuple(range(10, 20)), Plain()))
    row.pending = 7
    plan = prefill_layout(row, 2, 4, torch.device("cpu"))
    assert plan.block.tokens.tolist() == [[13, 14, 15, 16]]
    assert plan.block.positions.tolist() == [[3, 4, 5, 6]]
    assert plan.block.first_row == 2 and plan.certain == [4] and plan.sizes == [4]


def test_probe_tokens_are_laid_out():
    row = Row.of(Request((5,), Plain()))
    plan = layout([row], [Draft([7], [ROOT, 0, 1], probe_tokens=[8, 9])], 0, torch.device("cpu"))
    assert plan.block.tokens.tolist() == [[5, 7, 8, 9]]
    assert plan.block.vectors is None
    assert plan.block.probe_mask is not None and plan.block.probe_mask.tolist() == [[False, False, True, True]]


def test_a_random_tree_is_walked_by_tokens():
    rng = random.Random(0)
    parents = [rng.randint(ROOT, node - 1) for node in range(20)]
    draft = Draft(list(range(20)), parents)
    assert all(draft.children[(parent, node)] == node for node, parent in enumerate(parents))
