"""Plain decoding: nothing is drafted, each forward commits one token."""

from __future__ import annotations

from multitoken.methods.registry import NamedMethod, register


@register
class Plain(NamedMethod):
    """One token per forward: the reference for every other method."""

    name = "plain"
    summary = "one token per forward, the reference"
