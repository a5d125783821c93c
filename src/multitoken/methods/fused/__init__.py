"""Fused drafting: several sources of candidates in one tree."""

from multitoken.methods.fused.method import Fused, FusedOptions

__all__ = ["Fused", "FusedOptions"]
