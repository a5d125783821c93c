"""Self-distilled masks: a trained model proposes several tokens in one forward."""

from multitoken.methods.mask.method import Mask
from multitoken.methods.mask.options import MaskOptions

__all__ = ["Mask", "MaskOptions"]
