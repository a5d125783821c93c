"""Linear layers whose weights are laid out once for the processor's matrix kernels.

Both give a row of the input the same bits whatever other rows lie beside it, so a block gives each of its slots what a
forward of that slot alone would give (on some processors, a packed row that is quite alone is the exception). Neither
can be trained or moved: they hold no weight as PyTorch knows it.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from multitoken.errors import ModelError
from multitoken.models.runtime import opaque

# The layout for a batch of one is another one, whose sums differ in the last bit from those of larger batches.
ROWS_HINT = 8
ACTIVATION_LEVELS, ZERO_POINT = 127, 128
# Without VNNI, pairs of 8-bit products are added in 16 bits and saturate; one bit less in the weights prevents it.
WEIGHT_LEVELS_VNNI, WEIGHT_LEVELS = 127, 63
SMALLEST = 1e-12

_mkldnn: Any = torch.ops.mkldnn
_quantized: Any = torch.ops.quantized
_linear: Any = getattr(_mkldnn, "_linear_pointwise", None)


def can_pack() -> bool:
    """Whether this build of PyTorch has the packed kernels."""
    return torch.backends.mkldnn.is_available() and _linear is not None


def can_quantise() -> bool:
    """Whether this build of PyTorch has 8-bit kernels for this processor."""
    return "fbgemm" in torch.backends.quantized.supported_engines


class PackedLinear(nn.Module):
    """A linear layer in oneDNN's blocked layout, which streams the weights once for a whole block.

    Half precision is computed in float32 and rounded once where the processor has no units for it.

    Args:
        weight: [out, in].
        bias: [out] or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._compute = weight.dtype if _native(weight.dtype) else torch.float32
        self._weight = _mkldnn._reorder_linear_weight(weight.detach().to(self._compute).contiguous(), ROWS_HINT)
        self._bias = None if bias is None else bias.detach().to(self._compute)
        self.least_rows = 1  # of a product; see `multitoken.models.runtime.exact.pair_rows`

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out], in the dtype of ``x``."""
        _refuse_gradient(x)
        if x.dtype == self._compute:
            return opaque.product(self, x, self.out_features)
        return opaque.product(self, x.to(self._compute), self.out_features).to(x.dtype)

    def product(self, x: Tensor) -> Tensor:
        """The same in the dtype that is computed in."""
        if self.least_rows > 1 and x.numel() == self.in_features:
            pair = _linear(x.reshape(1, -1).expand(2, -1).contiguous(), self._weight, self._bias, "none", [], "")
            return pair[:1].reshape(*x.shape[:-1], self.out_features)
        return _linear(x, self._weight, self._bias, "none", [], "")

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self._bias is not None}"


class QuantisedLinear(nn.Module):
    """A linear layer with 8-bit weights (one scale per output) and 8-bit inputs (one scale per row).

    Sums are exact integers. The scale of a row comes from that row alone: a scale shared by a whole block, as dynamic
    quantisation usually has it, would make a token depend on the candidates beside it.

    Args:
        weight: [out, in].
        bias: [out] or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        levels = WEIGHT_LEVELS_VNNI if torch.cpu._is_vnni_supported() else WEIGHT_LEVELS
        full = weight.detach().float().contiguous()
        scale = full.abs().amax(1).clamp_min(SMALLEST) / levels
        zeros = torch.zeros(len(full), dtype=torch.int64)
        with warnings.catch_warnings():  # quantised tensors are to be removed one day; their kernels have no heir yet
            warnings.simplefilter("ignore")
            quantised = torch.quantize_per_channel(full, scale.double(), zeros, 0, torch.qint8)
            engine = torch.backends.quantized.engine
            torch.backends.quantized.engine = "fbgemm"
            # In a tuple, since tracing a model would take a handle among its attributes apart.
            self._handle = (_quantized.linear_prepack(quantised, None),)
            torch.backends.quantized.engine = engine
        self._bias = None if bias is None else bias.detach().float()

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out], in the dtype of ``x``."""
        _refuse_gradient(x)
        full = x.float()
        largest = full.abs().amax(-1, keepdim=True).clamp_min(SMALLEST)
        out = opaque.product(self, full / largest, self.out_features).mul_(largest)
        return (out if self._bias is None else out.add_(self._bias)).to(x.dtype)

    def product(self, x: Tensor) -> Tensor:
        """Product with an input between -1 and 1, float32, without the bias."""
        return _quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            x, 1 / ACTIVATION_LEVELS, ZERO_POINT, self._handle[0]
        )

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self._bias is not None}, 8 bit"


def _native(dtype: torch.dtype) -> bool:
    if dtype == torch.bfloat16:
        return bool(_mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def _refuse_gradient(x: Tensor) -> None:
    if x.requires_grad and torch.is_grad_enabled():
        raise ModelError("packed weights have no gradient; load the model with runtime='eager' to train through it")
