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

CUDA in bf16: torch's grouped product. Elsewhere: a loop over experts, each with products of its own rows.

Shapes: B batch, T time, D width, F inner width, E experts, K active experts, L = B x T tokens,
M = L x K, sorted by expert, P = M and what fills each expert's rows up to a multiple.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.architecture import ExpertsConfig, ModelConfig

CACHED_ELEMENTS = 1 << 18  # of a piece of rows on the CPU: 0.5 MB of bf16
ROW_MULTIPLE = 32  # of an expert on the CPU


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
        order_M = chosen_BTK.flatten().sort(stable=True).indices
        counts_E = chosen_BTK.flatten().bincount(minlength=len(self.down))
        x_LD, gates_LK = x_BTD.flatten(0, 1), gates_BTK.flatten(0, 1).to(x_BTD.dtype)
        # rows of whole 16 bytes are what its kernel wants
        fits = x_LD.dtype == torch.bfloat16 and all(size % 8 == 0 for size in self.gate_up.shape[1:])
        mix = grouped_products if x_LD.device.type == "cuda" and fits else loop
        return mix(x_LD, gates_LK, self.gate_up, self.down, order_M, counts_E).view_as(x_BTD)


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
        logsumexp_BT1 = logits_BTE.logsumexp(-1, keepdim=True)
        probabilities_BTE = (logits_BTE - logsumexp_BT1).exp()
        scores_BTE = probabilities_BTE.detach() if self.bias_E is None else probabilities_BTE.detach() + self.bias_E
        chosen_BTK = scores_BTE.sort(dim=-1, descending=True, stable=True).indices[..., : self.active]
        gates_BTK = probabilities_BTE.gather(-1, chosen_BTK)
        gates_BTK = gates_BTK / gates_BTK.sum(-1, keepdim=True)
        valid_BT1 = torch.ones_like(logits_BTE[..., :1]) if valid_BT is None else valid_BT[..., None].float()
        counts_BE = torch.zeros_like(logits_BTE[:, 0])
        counts_BE.scatter_add_(1, chosen_BTK.flatten(1), valid_BT1.expand_as(chosen_BTK).flatten(1))
        sums_BE, rows_B1 = (probabilities_BTE * valid_BT1).sum(1), valid_BT1.sum(1).clamp(min=1)
        balance = len(self.weight) / self.active * (counts_BE * sums_BE / rows_B1).sum()
        z = (logsumexp_BT1.square() * valid_BT1).sum()
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


def loop(
    x_LD: Tensor, gates_LK: Tensor, gate_up_EDF: Tensor, down_EFD: Tensor, order_M: Tensor, counts_E: Tensor
) -> Tensor:
    """The mixture, one expert after the other. order_M sorts by expert, counts_E says how many rows each has."""
    weights = gate_up_EDF, down_EFD
    out_LD: Tensor = _Loop.apply(x_LD, gates_LK, *weights, order_M, counts_E.tolist())  # type: ignore[no-untyped-call]
    return out_LD


def grouped_products(
    x_LD: Tensor, gates_LK: Tensor, gate_up_EDF: Tensor, down_EFD: Tensor, order_M: Tensor, counts_E: Tensor
) -> Tensor:
    """The same by torch's grouped product: in bf16, rows of whole 16 bytes."""
    ends_E = counts_E.cumsum(0).to(torch.int32)
    x_MD = _Spread.apply(x_LD, order_M, gates_LK.shape[1])  # type: ignore[no-untyped-call]
    h_MF = _SwiGLU.apply(F.grouped_mm(x_MD, gate_up_EDF.to(x_MD.dtype), offs=ends_E))  # type: ignore[no-untyped-call]
    y_MD = F.grouped_mm(h_MF, down_EFD.to(x_MD.dtype), offs=ends_E)
    out_LD: Tensor = _Collect.apply(y_MD, gates_LK, order_M)  # type: ignore[no-untyped-call]
    return out_LD


class _Loop(torch.autograd.Function):
    """All in one: what is between an expert's products stays in the cache, weights' gradients go where they belong."""

    @staticmethod
    def forward(ctx: Any, x_LD: Tensor, gates_LK: Tensor, *weights_and_routes: Any) -> Tensor:
        gate_up_EDF, down_EFD, order_M, counts = weights_and_routes
        ctx.weight_dtypes = gate_up_EDF.dtype, down_EFD.dtype
        gate_up_EDF, down_EFD = gate_up_EDF.to(x_LD.dtype), down_EFD.to(x_LD.dtype)
        places_LK, copies_P, ctx.counts = _places(order_M, counts, gates_LK)
        x_PD = x_LD.index_select(0, copies_P // gates_LK.shape[1])
        gate_up_PF = x_LD.new_empty(len(x_PD), gate_up_EDF.shape[2])
        silu_PF, h_PF = x_LD.new_empty(2, len(x_PD), down_EFD.shape[1])
        y_PD = torch.empty_like(x_PD)
        pieces = (tensor.split(ctx.counts) for tensor in (x_PD, gate_up_PF, silu_PF, h_PF, y_PD))
        for x, gate_up, silu, h, y, gate_up_weight, down in zip(*pieces, gate_up_EDF, down_EFD, strict=True):
            torch.mm(x, gate_up_weight, out=gate_up)
            _swiglu(gate_up, silu, h)
            torch.mm(h, down, out=y)
        routes = gates_LK, places_LK, copies_P
        ctx.save_for_backward(*routes, gate_up_EDF, down_EFD, x_PD, gate_up_PF, silu_PF, h_PF, y_PD)
        return F.embedding_bag(places_LK, y_PD, mode="sum", per_sample_weights=gates_LK)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gates_LK, places_LK, copies_P, gate_up_EDF, down_EFD, x_PD, gate_up_PF, *activations, y_PD = ctx.saved_tensors
        gates_P = torch.zeros_like(y_PD[:, 0]).scatter_(0, places_LK.flatten(), gates_LK.flatten())
        grad_y_PD = grads[0].index_select(0, copies_P // gates_LK.shape[1])
        grad_gates_LK = (grad_y_PD * y_PD).sum(1).index_select(0, places_LK.flatten()).view_as(gates_LK)
        grad_y_PD *= gates_P[:, None]
        grad_x_PD = torch.empty_like(x_PD)
        grad_weights = [
            torch.empty_like(weight, dtype=dtype)
            for weight, dtype in zip((gate_up_EDF, down_EFD), ctx.weight_dtypes, strict=True)
        ]
        rows = x_PD, gate_up_PF, *activations, grad_y_PD, grad_x_PD
        pieces = (tensor.split(ctx.counts) for tensor in rows)
        for x, gate_up, silu, h, grad_y, grad_x, gate_up_weight, down, *grad_weight in zip(
            *pieces, gate_up_EDF, down_EFD, *grad_weights, strict=True
        ):
            grad_gate_up = _swiglu_backward(gate_up, silu, grad_y @ down.T)
            _multiply(x.T, grad_gate_up, grad_weight[0])
            _multiply(h.T, grad_y, grad_weight[1])
            torch.mm(grad_gate_up, gate_up_weight.T, out=grad_x)
        return F.embedding_bag(places_LK, grad_x_PD, mode="sum"), grad_gates_LK, *grad_weights, None, None


def _places(order_M: Tensor, counts: list[int], gates_LK: Tensor) -> tuple[Tensor, Tensor, list[int]]:
    """(the row of each token's copies; the copy in each row; rows per expert), each expert's rows filled up.

    oneDNN compiles a product anew for each number of rows, which in bf16 takes several times as long as the product;
    filled up to a multiple, batches share a few numbers. Rows without a copy hold the first copy, with a gate of 0.
    """
    filled = [-(-count // ROW_MULTIPLE) * ROW_MULTIPLE for count in counts]
    counts_E, spare_E = order_M.new_tensor(counts), order_M.new_tensor(filled) - order_M.new_tensor(counts)
    shifts_M = (spare_E.cumsum(0) - spare_E).repeat_interleave(counts_E, output_size=len(order_M))
    rows_M = torch.arange(len(order_M), device=order_M.device) + shifts_M
    copies_P = order_M.new_zeros(sum(filled)).scatter_(0, rows_M, order_M)
    return torch.empty_like(order_M).scatter_(0, order_M, rows_M).view_as(gates_LK), copies_P, filled


def _swiglu(gate_up_MF: Tensor, silu_MF: Tensor, h_MF: Tensor) -> None:
    """Writes silu(gate) and silu(gate) * up."""
    for gate_up, silu, h in _rows_in_cache(gate_up_MF, silu_MF, h_MF):
        gate, up = gate_up.chunk(2, dim=-1)
        torch.mul(torch.ops.aten.silu.out(gate, out=silu), up, out=h)


def _swiglu_backward(gate_up_MF: Tensor, silu_MF: Tensor, grad_h_MF: Tensor) -> Tensor:
    """The gradient of gate and up side by side; grad_h_MF is written over."""
    grad_gate_up_MF = torch.empty_like(gate_up_MF)
    for gate_up, silu, grad_h, grad_gate_up in _rows_in_cache(gate_up_MF, silu_MF, grad_h_MF, grad_gate_up_MF):
        gate, up = gate_up.chunk(2, dim=-1)
        grad_gate, grad_up = grad_gate_up.chunk(2, dim=-1)
        torch.mul(grad_h, silu, out=grad_up)
        torch.ops.aten.silu_backward.grad_input(grad_h.mul_(up), gate, grad_input=grad_gate)
    return grad_gate_up_MF


def _multiply(rows_IM: Tensor, grad_MO: Tensor, out_IO: Tensor) -> None:
    """Into the type of a weight's gradient; zeros where there is no row."""
    if out_IO.dtype == grad_MO.dtype:
        torch.mm(rows_IM, grad_MO, out=out_IO)
    else:
        out_IO.copy_(rows_IM @ grad_MO)


class _SwiGLU(torch.autograd.Function):
    """silu(gate) * up of gate and up side by side; nothing but those is kept for backward."""

    @staticmethod
    def forward(ctx: Any, gate_up_MF: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up_MF)
        gate, up = gate_up_MF.chunk(2, dim=-1)
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (gate_up_MF,) = ctx.saved_tensors
        return _swiglu_backward(gate_up_MF, F.silu(gate_up_MF.chunk(2, dim=-1)[0]), grads[0])


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
        gates_M = gates_LK.flatten().index_select(0, order_M)
        grad_MD = grads[0].index_select(0, order_M // gates_LK.shape[1])
        grad_gates_M = (grad_MD * y_MD).sum(1)
        return grad_MD * gates_M[:, None], grad_gates_M.index_select(0, _inverse(order_M)).view_as(gates_LK), None


def _rows_in_cache(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Pieces of rows of all tensors; on CUDA, where each launch costs, all rows at once."""
    rows = CACHED_ELEMENTS // tensors[0].shape[1] if tensors[0].device.type == "cpu" else len(tensors[0])
    return zip(*(tensor.split(max(1, rows)) for tensor in tensors), strict=True)


def _inverse(order_M: Tensor) -> Tensor:
    inverse_M = torch.empty_like(order_M)
    return inverse_M.scatter_(0, order_M, torch.arange(len(order_M), device=order_M.device))
