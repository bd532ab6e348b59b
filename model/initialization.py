"""First values of the weights: normal, norms 1, biases 0. `ModelConfig.initialization` names the spread:

| scheme | matrices and embeddings | the two projections that write into the residual stream, divided by | of |
|---|---|---|---|
| gpt2 | 0.02 | sqrt(2 layers) | GPT-2, Megatron |
| normal | 0.02 | 1 | OLMo |
| current_depth | 0.02 | sqrt(2 (layer + 1)) | torchtitan, lingua |
| fan_in | 1 / sqrt(inputs) | sqrt(2 layers) | lingua |
| small | sqrt(2 / (5 width)) | sqrt(2 layers) | GPT-NeoX, 2312.16903 |

Worked: small at width 640 gives 0.025. Dividing by the depth keeps the variance of the stream from growing with it.
Each parameter is drawn on the CPU by a generator of its own, seeded from (seed, name). So the values do not depend on
the number of ranks, the order of parameters, the device, sharding or wrapping, nor on a start on the meta device.
"""

import hashlib
import math
import re
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from model.architecture import ModelConfig

INIT_STD = 0.02  # GPT-2's; also OLMo's and Megatron's default
INTO_RESIDUAL_STREAM = re.compile(r"blocks\.(\d+)\.(attention\.output\.weight|mlp\.down(\.weight)?)$")


def initialize(model: nn.Module, config: ModelConfig, seed: int) -> None:
    """Fills every parameter in place, plain or sharded. Each rank draws it whole and keeps its shard: no messages.

    Buffers (the biases of loss-free balancing) begin at 0.
    """
    with torch.no_grad():
        for buffer in model.buffers():
            buffer.zero_()
        for name, parameter in model.named_parameters():
            values = draw(name, parameter.shape, config, seed)
            if isinstance(parameter, DTensor):
                mesh, placements = parameter.device_mesh, parameter.placements
                values = distribute_tensor(values.to(mesh.device_type), mesh, placements, src_data_rank=None)
            parameter.copy_(values)


def draw(name: str, shape: torch.Size, config: ModelConfig, seed: int) -> Tensor:
    """The first value of the parameter called `name`, fp32 on the CPU."""
    if name.endswith("norm.weight"):
        return torch.ones(shape)
    if name.endswith("bias"):
        return torch.zeros(shape)
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8]) >> 1)
    return torch.randn(shape, generator=generator) * init_std(name, shape, config)


def init_std(name: str, shape: Sequence[int], config: ModelConfig) -> float:
    """Standard deviation of the first values of a matrix, an embedding or stacked experts."""
    std = {"fan_in": shape[1] ** -0.5, "small": math.sqrt(2 / (5 * config.width))}.get(config.initialization, INIT_STD)
    if config.initialization == "normal" or not (match := INTO_RESIDUAL_STREAM.match(name)):
        return std
    layers = int(match[1]) + 1 if config.initialization == "current_depth" else config.num_layers
    return std / math.sqrt(2 * layers)
