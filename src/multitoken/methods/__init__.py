"""Drafting methods, each in a room of its own."""

from multitoken.methods.auto import Auto
from multitoken.methods.draft import DraftModel
from multitoken.methods.fused import Fused
from multitoken.methods.heads import HeadsMethod
from multitoken.methods.lookahead import Lookahead
from multitoken.methods.mask import Mask
from multitoken.methods.plain import Plain
from multitoken.methods.pld import PromptLookup
from multitoken.methods.probe import Probe
from multitoken.methods.registry import MethodOptions, NamedMethod, available, create, register
from multitoken.methods.stand import Stand

__all__ = [
    "Auto",
    "DraftModel",
    "Fused",
    "HeadsMethod",
    "Lookahead",
    "Mask",
    "MethodOptions",
    "NamedMethod",
    "Plain",
    "Probe",
    "PromptLookup",
    "Stand",
    "available",
    "create",
    "register",
]
