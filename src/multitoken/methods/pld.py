"""Prompt lookup decoding: draft what followed the last tokens when they occurred before.

Source: A. Saxena, "Prompt Lookup Decoding", 2023. Where the source scans the context at each step, this keeps an index,
so a step costs the same at any length.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field, model_validator

from multitoken.engine.draft import ROOT, Draft
from multitoken.engine.row import Row
from multitoken.methods.ngram import NgramIndex
from multitoken.methods.registry import MethodOptions, NamedMethod, register


class PromptLookupOptions(MethodOptions):
    """Options of `PromptLookup`."""

    num_tokens: int = Field(10, ge=1, description="length of the drafted chain")
    max_ngram: int = Field(3, ge=1, description="longest n-gram to look up; longer matches win")
    min_ngram: int = Field(1, ge=1, description="shortest n-gram to look up")
    overlap: bool = Field(
        True, description="let a chain run on into itself where the match is nearer than its length (loops)"
    )

    @model_validator(mode="after")
    def _ordered(self) -> PromptLookupOptions:
        if self.min_ngram > self.max_ngram:
            raise ValueError(f"min_ngram {self.min_ngram} must not exceed max_ngram {self.max_ngram}")
        return self


@register
class PromptLookup(NamedMethod):
    """One chain, copied from the latest earlier occurrence of the longest n-gram that ends the text."""

    name = "pld"
    summary = "prompt lookup: copy what followed the same words before"
    Options = PromptLookupOptions
    options: PromptLookupOptions

    def start(self, row: Row) -> NgramIndex:
        return NgramIndex(self.options.min_ngram, self.options.max_ngram)

    def draft(self, rows: Sequence[Row]) -> Sequence[Draft]:
        return [self._chain(row) for row in rows]

    def _chain(self, row: Row) -> Draft:
        index: NgramIndex = row.state
        index.update(row.tokens)
        match = index.match(row.tokens)
        if match is None:
            return Draft()
        tokens = copied(row.tokens, match.next, self.options.num_tokens, self.options.overlap)
        return Draft(tokens, range(ROOT, len(tokens) - 1))


def copied(tokens: Sequence[int], start: int, count: int, overlap: bool) -> list[int]:
    """Up to ``count`` tokens from ``start`` on; with ``overlap`` the copy repeats itself beyond the end."""
    chain = list(tokens[start : start + count])
    if overlap:
        period = len(tokens) - start
        while len(chain) < count:
            chain.append(chain[len(chain) - period])
    return chain
