"""First values of the weights: N(0, 0.02), output projections divided by sqrt(2 layers), norms 1 (GPT-2's rule).

Each parameter is drawn on the CPU by a generator of its own, seeded from (seed, name). So the values do not depend on
the number of ranks, the order of parameters, the device, sharding or wrapping, nor on a start on the meta device.
"""

import hashlib
import math

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from model.config import ModelConfig

INIT_STD = 0.02  # GPT-2's; also OLMo's and Megatron's default


def initialize(model: nn.Module, config: ModelConfig, seed: int) -> None:
    """Fills every parameter in place, plain or sharded. Each rank draws it whole and keeps its shard: no messages."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = draw(name, parameter.shape, config, seed)
            if isinstance(parameter, DTensor):
                mesh, placements = parameter.device_mesh, parameter.placements
                values = distribute_tensor(values.to(mesh.device_type), mesh, placements, src_data_rank=None)
            parameter.copy_(values)


def draw(name: str, shape: torch.Size, config: ModelConfig, seed: int) -> Tensor:
    """The first value of the parameter called `name`, fp32 on the CPU."""
    if (std := init_std(name, config)) is None:
        return torch.ones(shape)
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8]) >> 1)
    return torch.randn(shape, generator=generator) * std


def init_std(name: str, config: ModelConfig) -> float | None:
    """Standard deviation of a parameter's first values; None for a norm, which begins at 1.

    The two projections that write into the residual stream shrink with depth, so that its variance does not grow.
    """
    if name.endswith("norm.weight"):
        return None
    if name.endswith(("attention.output.weight", "mlp.down.weight")):
        return INIT_STD / math.sqrt(2 * config.num_layers)
    return INIT_STD
