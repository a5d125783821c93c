"""Probing (ESP): training-free multi-token prediction by synthetic vectors in embedding space."""

from multitoken.methods.probe.method import Probe, ProbeState
from multitoken.methods.probe.options import ProbeOptions

__all__ = ["Probe", "ProbeOptions", "ProbeState"]
