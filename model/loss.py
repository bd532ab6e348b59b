"""Cross-entropy and z-loss over the vocabulary without ever holding all logits.

Chunk by chunk: logits, losses and, when a gradient is wanted, the gradient at once (softmax - one-hot, which needs the
logits anyway), so the peak is one chunk and nothing is computed twice. Worked: 8 rows of 4,096 tokens at a vocabulary
of 131,072 would be 17 GB of fp32 logits; a chunk is 0.5 GB.

Sums, never means: the caller divides by the number of valid targets of the whole global batch, so that the result does
not depend on how the batch was split into ranks and micro-batches. z-loss (logsumexp squared, PaLM, arXiv 2204.02311)
is masked by the same targets and reported apart.

Shapes: B batch, T time, D width, V vocabulary, C tokens of a chunk.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

IGNORED = -100  # target of a token that has none: padding, the last token of a document
# Logits of one chunk. CPU: 8 MB of fp32 stay in the cache; CUDA: 0.5 GB keep the matrix products long.
CHUNK_LOGITS = {"cpu": 1 << 21, "cuda": 1 << 27}


class TokenLosses(NamedTuple):
    """Losses of a micro-batch. Only `objective` carries a gradient."""

    objective: Tensor  # sum of nll + z_weight * z: divide by the global number of valid targets, then backward
    nll_BT: Tensor  # nats per token, fp32, 0 where the target is ignored
    z_BT: Tensor  # logsumexp squared per token, fp32, 0 where ignored
    balance: Tensor | None = None  # experts: sum over valid tokens of the balancing loss, mean over layers
    router_z: Tensor | None = None  # experts: the same of the routers' logsumexp squared
    loads_LE: Tensor | None = None  # experts: valid tokens that each expert of each layer got


def token_losses(
    x_BTD: Tensor, weight_VD: Tensor, targets_BT: Tensor, z_weight: float = 0.0, vocab_size: int | None = None
) -> TokenLosses:
    """Losses of predicting `targets_BT` (IGNORED = none) from the final hidden states and the output matrix.

    vocab_size: rows of the matrix that stand for tokens, the first ones; the others have probability 0
    """
    wants_gradient = torch.is_grad_enabled() and (x_BTD.requires_grad or weight_VD.requires_grad)
    flat = x_BTD.flatten(0, 1), weight_VD.to(x_BTD.dtype), targets_BT.flatten()
    objective, nll, z = _ChunkedCrossEntropy.apply(*flat, z_weight, vocab_size, wants_gradient)  # type: ignore[no-untyped-call]
    return TokenLosses(objective, nll.view_as(targets_BT), z.view_as(targets_BT))


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_LD: Tensor,
        weight_VD: Tensor,
        targets_L: Tensor,
        z_weight: float,
        vocab_size: int | None,
        wants_gradient: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        nll_L, z_L = torch.zeros(2, len(x_LD), dtype=torch.float32, device=x_LD.device)
        wanted = slice(None if wants_gradient else 0)
        grad_x_LD = torch.empty_like(x_LD[wanted])
        grad_weight_VD = torch.zeros_like(weight_VD[wanted], dtype=torch.float32)
        step = max(1, min(len(x_LD), CHUNK_LOGITS[x_LD.device.type] // len(weight_VD)))
        # Written anew by each chunk: memory of its own for each would cost more than what is computed in it
        product_CV, product_VD = x_LD.new_empty(step, len(weight_VD)), torch.empty_like(weight_VD[wanted])
        fp32_CV = product_CV.float()  # itself in fp32
        for chunk in (slice(start, start + step) for start in range(0, len(x_LD), step)):
            x_CD, memory = x_LD[chunk], (product_CV[: len(x_LD[chunk])], fp32_CV[: len(x_LD[chunk])])
            logits_CV = _logits(x_CD, weight_VD, vocab_size, *memory)
            _losses_to_gradient(logits_CV, targets_L[chunk], z_weight, (nll_L[chunk], z_L[chunk]))
            if wants_gradient:
                grad_logits_CV = _copied(logits_CV, memory[0])
                torch.mm(grad_logits_CV, weight_VD, out=grad_x_LD[chunk])
                grad_weight_VD += torch.mm(grad_logits_CV.T, x_CD, out=product_VD)
        ctx.save_for_backward(grad_x_LD, grad_weight_VD)
        ctx.weight_dtype = weight_VD.dtype
        ctx.mark_non_differentiable(nll_L, z_L)
        return nll_L.sum() + z_weight * z_L.sum(), nll_L, z_L

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_x_LD, grad_weight_VD = ctx.saved_tensors
        scale = grads[0]  # in place: a second backward through the same losses is refused by torch
        grads_of_inputs = grad_x_LD.mul_(scale.to(grad_x_LD.dtype)), grad_weight_VD.mul_(scale).to(ctx.weight_dtype)
        return *grads_of_inputs, None, None, None, None


def _logits(x_CD: Tensor, weight_VD: Tensor, vocab_size: int | None, product_CV: Tensor, fp32_CV: Tensor) -> Tensor:
    """Logits of a chunk in fp32, in the memory given."""
    logits_CV = _copied(torch.mm(x_CD, weight_VD.T, out=product_CV), fp32_CV)
    if vocab_size is not None:
        logits_CV[:, vocab_size:] = float("-inf")
    return logits_CV


def _copied(tensor: Tensor, memory: Tensor) -> Tensor:
    """In the type of `memory`, and there; as it is where it has that type."""
    return tensor if tensor.dtype == memory.dtype else memory.copy_(tensor)


def _losses_to_gradient(logits_CV: Tensor, targets_C: Tensor, z_weight: float, out: tuple[Tensor, Tensor]) -> None:
    """Writes nll and z of a chunk into `out`, d objective / d logits over the logits. One exponential per logit."""
    valid_C = targets_C != IGNORED
    wanted_C1 = targets_C.where(valid_C, 0)[:, None]
    wanted_logits_C = logits_CV.gather(1, wanted_C1)[:, 0]
    largest_C1 = logits_CV.amax(1, keepdim=True)
    exp_CV = logits_CV.sub_(largest_C1).exp_()
    sum_C = exp_CV.sum(1)
    logsumexp_C = largest_C1[:, 0] + sum_C.log()
    nll_C, z_C = out
    nll_C.copy_(torch.where(valid_C, logsumexp_C - wanted_logits_C, 0.0))
    z_C.copy_(torch.where(valid_C, logsumexp_C.square(), 0.0))
    softmax_weight_C = torch.where(valid_C, (1 + 2 * z_weight * logsumexp_C) / sum_C, 0.0)
    grad_CV = exp_CV.mul_(softmax_weight_C[:, None])
    grad_CV.scatter_add_(1, wanted_C1, -valid_C.to(grad_CV.dtype)[:, None])
