"""`auto`: the draft that pays on the machine at hand."""

from multitoken.methods.auto.method import Auto, AutoOptions

__all__ = ["Auto", "AutoOptions"]
