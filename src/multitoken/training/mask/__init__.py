"""Training probes and masks: vectors alone, with an adapter, or the whole model."""

from multitoken.training.mask.objective import MaskObjective, MaskSettings
from multitoken.training.mask.student import Student

__all__ = ["MaskObjective", "MaskSettings", "Student"]
