"""Drafting methods, each in a room of its own."""

from multitoken.methods.plain import Plain
from multitoken.methods.registry import MethodOptions, NamedMethod, available, create, register

__all__ = ["MethodOptions", "NamedMethod", "Plain", "available", "create", "register"]
