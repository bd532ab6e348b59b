"""Position tables: rotary (RoPE, arXiv 2104.09864), half-split as in transformers: feature i turns with i + H/2; and
sinusoidal (arXiv 1706.03762), whose features are the sines, then the cosines, of the same angles at base 10,000.

Angle of feature i at position p: p / base^(2i / H). Worked: H = 4, base 10,000, p = 100 gives 100 and 1 radians.
Tables are fp32 whatever the compute type: bf16 has 8 bits of mantissa, so positions above 256 would collide. They are
made when needed and never stored in a checkpoint: the base belongs to a phase, not to the weights.

Shapes: B batch, T time, D width, N heads, H head width.
"""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

SINUSOID_BASE = 10_000.0
CACHED_TABLES = 8  # (length, base) pairs alive at once: training length, held-out length, and the phase before


@lru_cache(maxsize=CACHED_TABLES)
def rope_tables(length: int, head_width: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each (length, head_width / 2), fp32."""
    exponents = torch.arange(0, head_width, 2, dtype=torch.float32, device=device) / head_width
    angles = torch.arange(length, dtype=torch.float32, device=device)[:, None] * (1.0 / base**exponents)
    return angles.cos(), angles.sin()


def sinusoids(length: int, width: int, device: torch.device) -> Tensor:
    """Sinusoidal positions (length, width), fp32."""
    cos_TH, sin_TH = rope_tables(length, width, SINUSOID_BASE, device)
    return torch.cat((sin_TH, cos_TH), -1)


def rotate(x_BTNH: Tensor, cos_BTH: Tensor, sin_BTH: Tensor) -> Tensor:
    """Turns each pair of features (i, i + H/2) by its angle; computed in fp32, returned in x's type."""
    return _Rotation.apply(x_BTNH, cos_BTH, sin_BTH)  # type: ignore[no-untyped-call]


class _Rotation(torch.autograd.Function):
    """Saves no activations: the gradient of a rotation is the rotation back. Half the time of autograd's own on CPU."""

    @staticmethod
    def forward(ctx: Any, x_BTNH: Tensor, cos_BTH: Tensor, sin_BTH: Tensor) -> Tensor:
        ctx.save_for_backward(cos_BTH, sin_BTH)
        return _turn(x_BTNH, cos_BTH, sin_BTH, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos_BTH, sin_BTH = ctx.saved_tensors
        return _turn(grads[0], cos_BTH, sin_BTH, -1), None, None


def _turn(x_BTNH: Tensor, cos_BTH: Tensor, sin_BTH: Tensor, direction: int) -> Tensor:
    halves = x_BTNH.float().unflatten(-1, (2, -1))
    cos, sin = cos_BTH[:, :, None], sin_BTH[:, :, None]
    turned = halves * cos[..., None, :]
    turned[..., 0, :].addcmul_(halves[..., 1, :], sin, value=-direction)
    turned[..., 1, :].addcmul_(halves[..., 0, :], sin, value=direction)
    return turned.flatten(-2).to(x_BTNH.dtype)
