"""Trained heads that predict several tokens ahead, and a predictor of how many of them to believe."""

from multitoken.methods.heads.method import HeadsMethod, HeadsOptions

__all__ = ["HeadsMethod", "HeadsOptions"]
