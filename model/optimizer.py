"""AdamW in two groups, and the global gradient norm; both for plain tensors and for FSDP's sharded ones.

`decayed` holds the matrices, `plain` what weight decay would only harm: norms and biases (one-dimensional) and
embeddings, the tied output matrix among them (OLMo 2, SmolLM3). The learning rate and the decay are set anew at every
step from the pure plan, so what a checkpoint remembers of them never overrides a recipe.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from model.config import OptimizerConfig


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW over the parameters of `model`. The learning rate is 0 until the first `set_step`."""
    groups: dict[str, list[nn.Parameter]] = {"decayed": [], "plain": []}
    for name, parameter in model.named_parameters():
        groups["decayed" if is_decayed(name, parameter) else "plain"].append(parameter)
    return torch.optim.AdamW(
        [{"params": parameters, "name": name} for name, parameters in groups.items() if parameters],
        lr=0.0,
        betas=config.betas,
        eps=config.eps,
        weight_decay=0.0,
        fused=True,  # one pass over each parameter
    )


def is_decayed(name: str, parameter: Tensor) -> bool:
    """Weight decay is for matrices that are no embedding."""
    return parameter.ndim >= 2 and not name.endswith("embedding.weight")


def set_step(optimizer: torch.optim.Optimizer, config: OptimizerConfig, lr: float, weight_decay: float) -> None:
    """Gives the next step its hyper-parameters: the recipe's, whatever a loaded state said."""
    for group in optimizer.param_groups:
        group["lr"] = lr
        group["betas"], group["eps"] = config.betas, config.eps
        group["weight_decay"] = weight_decay if group["name"] == "decayed" else 0.0


def last_update(optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: nn.Parameter) -> Tensor:
    """What the last step took from a parameter, weight decay included, from its moments: AdamW in its own words."""
    state, lr, (beta1, beta2) = optimizer.state[parameter], group["lr"], group["betas"]
    steps = float(state["step"])
    mean, square = (state[name].detach() for name in ("exp_avg", "exp_avg_sq"))
    step = lr * (mean / (1 - beta1**steps)) / ((square / (1 - beta2**steps)).sqrt() + group["eps"])
    decay = lr * group["weight_decay"]
    return step + (parameter.detach() + step) * (decay / (1 - decay))


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Euclidean norm over all gradients of all ranks, a plain 0-d tensor, equal on every rank.

    Nothing is clipped here: with one infinite gradient, clipping would make NaN of it and 0 of all others, so the
    caller looks at the norm first.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def clip_gradients(parameters: Iterable[nn.Parameter], norm: Tensor, max_norm: float) -> None:
    """Scales all gradients by max_norm / norm where the norm is larger; `norm` must be finite."""
    scale = max_norm / max(float(norm), max_norm)
    if scale < 1:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(scale)
