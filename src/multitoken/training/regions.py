"""Many prediction problems in one sequence.

A text of the model's own is laid out once; at chosen positions a *region* hangs from it: masks (or other slots) that
see the text up to there and their own region only, at the positions right behind. In the paper's layout (Kirchenbauer
et al., arXiv 2602.06019) the text that a region covers is repeated behind it; here it never left the sequence, which
gives each region the same view.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from multitoken.errors import DataError
from multitoken.methods.probe.survey import Chains, chain_block
from multitoken.models.backbone import Backbone
from multitoken.models.block import Block
from multitoken.training.corpus import Sample

IGNORED = -100  # a target that nothing is to be learned from


@dataclass(frozen=True, slots=True)
class Text:
    """A text and where it may be asked about.

    Attributes:
        tokens: ids.
        first: first position that may own a region: the last token of the prompt.
        end: the text's end-of-text token is its last token.
    """

    tokens: Sequence[int]
    first: int
    end: bool = False

    @classmethod
    def of(cls, sample: Sample, longest: int) -> Text | None:
        """Prompt and answer, cut to ``longest`` tokens; None where that leaves nothing to predict."""
        tokens = [*sample.prompt, *sample.answer]
        kept = tokens[:longest]
        first = len(sample.prompt) - 1
        if len(kept) < first + 3:
            return None
        return cls(kept, first, sample.finish == "stop" and len(kept) == len(tokens))


def texts_of(samples: Sequence[Sample], longest: int) -> list[Text]:
    """Those samples that something can be learned from. Raises `DataError` where there are none."""
    texts = [text for sample in samples if (text := Text.of(sample, longest)) is not None]
    if not texts:
        raise DataError(f"no sample has an answer within {longest} tokens; raise --longest, or make longer answers")
    return texts


def spread_owners(text: Text, regions: int, rng: random.Random) -> list[int]:
    """Up to ``regions`` positions, evenly spaced over the answer, from a random offset.

    The last possible owner is the one whose region begins with the text's last token.
    """
    places = len(text.tokens) - 1 - text.first
    count = min(regions, places)
    stride = places / count
    offset = rng.random() * stride
    return sorted({text.first + int(offset + i * stride) for i in range(count)})


def true_targets(text: Text, owners: Sequence[int], length: int) -> list[list[int]]:
    """What each region should predict, [C, length + 1]: the ``length + 1`` tokens behind each owner.

    Behind a finished text that is its end-of-text token, as in the paper; behind a cut one, nothing.
    """
    filler = text.tokens[-1] if text.end else IGNORED
    padded = [*text.tokens, *[filler] * (length + 1)]
    return [padded[owner + 1 : owner + length + 2] for owner in owners]


@dataclass(slots=True)
class Regions:
    """A batch of texts with regions of ``length`` slots.

    Attributes:
        chains: the layout.
        targets: true tokens behind each owner, int64 [C, length + 1], `IGNORED` where there are none.
    """

    chains: Chains
    targets: Tensor

    @property
    def length(self) -> int:
        return self.chains.slots.shape[1]

    def text_block(self) -> Block:
        """The texts alone."""
        block, width = self.chains.block, self.chains.width
        return Block(block.tokens[:, :width], block.positions[:, :width], block.visible[:, :width, :width])

    def region_block(self, fill: Tensor) -> Block:
        """The regions alone, which see texts that were read before them. ``fill``: as of `whole_block`."""
        block, width = self.chains.block, self.chains.width
        alone = Block(block.tokens[:, width:].clone(), block.positions[:, width:], block.visible[:, width:])
        return self._filled(alone, fill, self.chains.slots - width)

    def whole_block(self, fill: Tensor) -> Block:
        """Texts and regions.

        Args:
            fill: what the regions hold: masks, [length, d] floats, the same in every region; or tokens, int64
                [C, length].
        """
        block = self.chains.block
        whole = Block(block.tokens.clone(), block.positions, block.visible, probe_mask=block.probe_mask)
        return self._filled(whole, fill, self.chains.slots)

    def slots(self, block: Block) -> Tensor:
        """The regions' slots in one of the two blocks, as indices into the flattened block, int64 [C * length]."""
        columns = self.chains.slots - (self.chains.block.size - block.size)
        return (self.chains.row[:, None] * block.size + columns).flatten()

    def states(self, hidden: Tensor) -> Tensor:
        """Hidden states of the regions, [C, length, d], of those of one of the two blocks, [B, Q, d]."""
        columns = self.chains.slots - (self.chains.block.size - hidden.shape[1])
        return hidden[self.chains.row[:, None], columns]

    def owner_states(self, hidden: Tensor) -> Tensor:
        """Hidden states of the owners, [C, d], of those of the texts or of all, [B, Q, d]."""
        return hidden[self.chains.row, self.chains.owners]

    def _filled(self, block: Block, fill: Tensor, columns: Tensor) -> Block:
        if fill.is_floating_point():
            block.vectors = fill.expand(len(columns), -1, -1).flatten(0, 1)
            block.vector_index = self.slots(block)
        else:
            block.tokens[self.chains.row[:, None], columns] = fill
        return block


def lay_out(
    texts: Sequence[Text],
    owners: Sequence[Sequence[int]],
    length: int,
    backbone: Backbone,
    bidirectional: bool = False,
) -> Regions:
    """A region of ``length`` slots under each of ``owners`` (positions, per text)."""
    chains = chain_block([text.tokens for text in texts], owners, length, backbone.device, bidirectional)
    targets = [
        target for text, places in zip(texts, owners, strict=True) for target in true_targets(text, places, length)
    ]
    return Regions(chains, torch.tensor(targets, device=backbone.device))
