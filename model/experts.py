"""Mixture of experts: each token passes the few SwiGLUs that a router picks for it; no token is ever dropped.

Router (fp32 whatever the compute type): softmax over all experts, the `active` largest, their gates divided by their
sum. Equal scores go to the expert of the smaller index. Weights are stacked, [expert, in, out]: an expert without
tokens has a gradient of zeros, never none, so that all ranks reduce the same sizes.

Losses, sums over valid tokens (the caller divides by their global count, as for all losses):
- balance, per row of n valid tokens: n x E / (k n) x sum_i c_i P_i, c_i = valid tokens that chose expert i, P_i = mean
  probability of i. Even routing gives n. Worked: E = 8, k = 2, all tokens to two experts of probability 1/2: 4 n.
- router z: logsumexp squared.
Loss-free balancing (2408.15664): a bias, seen by selection alone, moves by `bias_rate` towards even loads once per
applied step (`update_router_biases`); it is a buffer, fp32, and part of the checkpoint.

CUDA in bf16: torch's grouped product. Elsewhere: a loop over experts, each a product of its own rows.

Shapes: B batch, T time, D width, F inner width, E experts, K active experts, L = B x T tokens,
M = L x K, sorted by expert.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.architecture import ExpertsConfig, ModelConfig

CACHED_ELEMENTS = 1 << 18  # of a piece of rows on the CPU: 0.5 MB of bf16


class Routing(NamedTuple):
    """What one layer's router did: two sums over valid tokens that carry gradients, and the loads."""

    balance: Tensor
    z: Tensor
    loads_E: Tensor  # valid tokens per expert, float32


class Experts(nn.Module):
    """The MLP of a block: gate-weighted sum of the chosen experts. `gate_up` holds gate, then up, side by side."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.experts is not None
        count, width, inner = config.experts.count, config.width, config.mlp_width
        self.router = Router(config.experts, width)
        self.gate_up = nn.Parameter(torch.empty(count, width, 2 * inner))
        self.down = nn.Parameter(torch.empty(count, inner, width))

    def forward(self, x_BTD: Tensor, valid_BT: Tensor | None = None) -> tuple[Tensor, Routing]:
        """Each token by itself. valid_BT: tokens that count in the losses and loads; None: all."""
        gates_BTK, chosen_BTK, routing = self.router(x_BTD, valid_BT)
        return self._mix(x_BTD, gates_BTK, chosen_BTK), routing

    @torch.compiler.disable  # rows per expert differ per batch: compiled, every batch would compile it anew
    def _mix(self, x_BTD: Tensor, gates_BTK: Tensor, chosen_BTK: Tensor) -> Tensor:
        active = chosen_BTK.shape[-1]
        order_M = chosen_BTK.flatten().sort(stable=True).indices
        counts_E = chosen_BTK.flatten().bincount(minlength=len(self.down))
        x_MD = _Spread.apply(x_BTD.flatten(0, 1), order_M, active)  # type: ignore[no-untyped-call]
        gate_up_MF = grouped_product(x_MD, self.gate_up.to(x_MD.dtype), counts_E)
        h_MF = _SwiGLU.apply(gate_up_MF)  # type: ignore[no-untyped-call]
        y_MD = grouped_product(h_MF, self.down.to(x_MD.dtype), counts_E)
        gates_LK = gates_BTK.flatten(0, 1).to(y_MD.dtype)
        out_LD: Tensor = _Collect.apply(y_MD, gates_LK, order_M)  # type: ignore[no-untyped-call]
        return out_LD.view_as(x_BTD)


class Router(nn.Module):
    """Which experts a token passes, and with which weight."""

    bias_E: Tensor | None

    def __init__(self, config: ExpertsConfig, width: int) -> None:
        super().__init__()
        self.active, self.bias_rate = config.active, config.bias_rate
        self.weight = nn.Parameter(torch.empty(config.count, width))
        self.register_buffer("bias_E", torch.zeros(config.count) if config.bias_rate else None)

    def forward(self, x_BTD: Tensor, valid_BT: Tensor | None) -> tuple[Tensor, Tensor, Routing]:
        """(gates fp32, experts, both (B, T, K) with the largest score first; what it did)."""
        logits_BTE = F.linear(x_BTD.float(), self.weight.float())
        probabilities_BTE = logits_BTE.softmax(-1)
        scores_BTE = probabilities_BTE.detach() if self.bias_E is None else probabilities_BTE.detach() + self.bias_E
        chosen_BTK = scores_BTE.sort(dim=-1, descending=True, stable=True).indices[..., : self.active]
        gates_BTK = probabilities_BTE.gather(-1, chosen_BTK)
        gates_BTK = gates_BTK / gates_BTK.sum(-1, keepdim=True)
        valid_BT1 = torch.ones_like(logits_BTE[..., :1]) if valid_BT is None else valid_BT[..., None].float()
        counts_BE = torch.zeros_like(logits_BTE[:, 0])
        counts_BE.scatter_add_(1, chosen_BTK.flatten(1), valid_BT1.expand_as(chosen_BTK).flatten(1))
        sums_BE, rows_B1 = (probabilities_BTE * valid_BT1).sum(1), valid_BT1.sum(1).clamp(min=1)
        balance = len(self.weight) / self.active * (counts_BE * sums_BE / rows_B1).sum()
        z = (logits_BTE.logsumexp(-1, keepdim=True).square() * valid_BT1).sum()
        return gates_BTK, chosen_BTK, Routing(balance, z, counts_BE.sum(0))


def update_router_biases(model: nn.Module, loads_LE: Tensor) -> None:
    """One step of loss-free balancing: biases of experts with less than the mean load rise, the others fall.

    loads_LE: tokens per layer and expert over the whole global batch, equal on all ranks
    """
    routers = [module for module in model.modules() if isinstance(module, Router)]
    for index, router in enumerate(routers):
        if router.bias_E is not None:
            loads_E = loads_LE[index]
            router.bias_E += router.bias_rate * (loads_E.mean() - loads_E).sign()


def grouped_product(x_MI: Tensor, weight_EIO: Tensor, counts_E: Tensor) -> Tensor:
    """Rows of x, sorted by expert, each times the matrix of its expert; counts_E: how many rows each has."""
    fits = x_MI.dtype == torch.bfloat16 and weight_EIO.shape[1] % 8 == 0 and weight_EIO.shape[2] % 8 == 0
    if x_MI.device.type == "cuda" and fits:  # its kernel wants rows of whole 16 bytes
        return F.grouped_mm(x_MI, weight_EIO, offs=counts_E.cumsum(0).to(torch.int32))
    product: Tensor = _GroupedProduct.apply(x_MI, weight_EIO, counts_E.tolist())  # type: ignore[no-untyped-call]
    return product


class _GroupedProduct(torch.autograd.Function):
    """The loop, written into whole tensors: autograd's own would make a zero tensor of all experts for each of them."""

    @staticmethod
    def forward(ctx: Any, x_MI: Tensor, weight_EIO: Tensor, counts: list[int]) -> Tensor:
        ctx.save_for_backward(x_MI, weight_EIO)
        ctx.counts = counts
        out_MO = x_MI.new_empty(len(x_MI), weight_EIO.shape[2])
        for x, weight, out in zip(x_MI.split(counts), weight_EIO, out_MO.split(counts), strict=True):
            torch.mm(x, weight, out=out)
        return out_MO

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x_MI, weight_EIO = ctx.saved_tensors
        grad_x_MI, grad_weight_EIO = torch.empty_like(x_MI), torch.empty_like(weight_EIO)
        pieces = (tensor.split(ctx.counts) for tensor in (x_MI, grads[0], grad_x_MI))
        for x, grad, grad_x, weight, grad_weight in zip(*pieces, weight_EIO, grad_weight_EIO, strict=True):
            torch.mm(grad, weight.T, out=grad_x)
            torch.mm(x.T, grad, out=grad_weight)  # zeros where an expert has no row
        return grad_x_MI, grad_weight_EIO, None


class _SwiGLU(torch.autograd.Function):
    """silu(gate) * up of gate and up side by side, piece by piece, so that what lies between stays in the cache."""

    @staticmethod
    def forward(ctx: Any, gate_up_MF: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up_MF)
        out_MF = gate_up_MF.new_empty(len(gate_up_MF), gate_up_MF.shape[1] // 2)
        for gate_up, out in _rows_in_cache(gate_up_MF, out_MF):
            gate, up = gate_up.chunk(2, dim=-1)
            torch.mul(F.silu(gate), up, out=out)
        return out_MF

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (gate_up_MF,) = ctx.saved_tensors
        grad_gate_up_MF = torch.empty_like(gate_up_MF)
        for gate_up, grad, grad_gate_up in _rows_in_cache(gate_up_MF, grads[0], grad_gate_up_MF):
            gate, up = gate_up.chunk(2, dim=-1)
            grad_gate, grad_up = grad_gate_up.chunk(2, dim=-1)
            torch.mul(grad, F.silu(gate), out=grad_up)
            torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=grad_gate)
        return grad_gate_up_MF


class _Spread(torch.autograd.Function):
    """A copy of each token for each of its experts, sorted by expert; back: the sum over a token's copies."""

    @staticmethod
    def forward(ctx: Any, x_LD: Tensor, order_M: Tensor, active: int) -> Tensor:
        ctx.save_for_backward(order_M)
        ctx.active = active
        return x_LD.index_select(0, order_M // active)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (order_M,) = ctx.saved_tensors
        return F.embedding_bag(_inverse(order_M).view(-1, ctx.active), grads[0], mode="sum"), None, None


class _Collect(torch.autograd.Function):
    """The sum of each token's rows times its gates: one pass, in which no weighted row is ever written."""

    @staticmethod
    def forward(ctx: Any, y_MD: Tensor, gates_LK: Tensor, order_M: Tensor) -> Tensor:
        ctx.save_for_backward(y_MD, gates_LK, order_M)
        places_LK = _inverse(order_M).view_as(gates_LK)
        return F.embedding_bag(places_LK, y_MD, mode="sum", per_sample_weights=gates_LK)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        y_MD, gates_LK, order_M = ctx.saved_tensors
        grad_y_MD, gates_M = torch.empty_like(y_MD), gates_LK.flatten().index_select(0, order_M)
        grad_gates_M = torch.empty_like(gates_M)
        pieces = _rows_in_cache(y_MD, order_M // gates_LK.shape[1], gates_M, grad_y_MD, grad_gates_M)
        for y, tokens, gates, grad_y, grad_gates in pieces:
            grad = grads[0].index_select(0, tokens)
            torch.sum(grad * y, dim=1, out=grad_gates)
            torch.mul(grad, gates[:, None], out=grad_y)
        return grad_y_MD, grad_gates_M.index_select(0, _inverse(order_M)).view_as(gates_LK), None


def _rows_in_cache(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Pieces of rows of all tensors; on CUDA, where each launch costs, all rows at once."""
    rows = CACHED_ELEMENTS // tensors[0].shape[1] if tensors[0].device.type == "cpu" else len(tensors[0])
    return zip(*(tensor.split(max(1, rows)) for tensor in tensors), strict=True)


def _inverse(order_M: Tensor) -> Tensor:
    inverse_M = torch.empty_like(order_M)
    return inverse_M.scatter_(0, order_M, torch.arange(len(order_M), device=order_M.device))
