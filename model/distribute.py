"""How a model is spread over devices: recomputation, compilation, sharding, memory, applied from outside in this order.

1. recompute: inside each block, so that what is compiled next includes it;
2. compile: each block by itself (equal blocks share one compilation), before sharding, whose gathers stay outside;
3. FSDP2: every block is a unit, the rest (embedding, last norm, head) is the root's: tied matrices share one unit.
   fp32 masters and fp32 reduction; in bf16 the gathered copies are bf16;
4. memory: the model was built on the meta device, now each rank gets room for its shard only.

Gradients are summed over ranks, never averaged: the loss is already divided by the global number of valid targets. gloo
has no pre-multiplied sum, hence the two settings below; either alone fails or averages.
"""

from typing import Literal

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from model.config import ModelConfig
from model.transformer import Block, Transformer

Precision = Literal["bf16", "fp32"]
COMPUTE_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def build_model(
    config: ModelConfig,
    precision: Precision,
    device: torch.device,
    *,
    recompute: bool = False,
    compile_blocks: bool = False,
) -> Transformer:
    """The model with room for its weights, which hold nothing yet: `initialize` or load them.

    Sharded over all ranks when a process group of more than one rank exists, whole otherwise.
    """
    with torch.device("meta"):
        model = Transformer(config)
    model.compute_dtype = COMPUTE_DTYPES[precision]
    for block in model.blocks:
        assert isinstance(block, Block)
        block.recompute = recompute
        if compile_blocks:
            block.compile(dynamic=False)
    if dist.is_initialized() and dist.get_world_size() > 1:
        _shard(model, precision, device)
    return model.to_empty(device=device)


def _shard(model: Transformer, precision: Precision, device: torch.device) -> None:
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    # Inputs are not cast: the rotary tables among them must stay fp32, and activations follow `compute_dtype` anyhow
    policy = MixedPrecisionPolicy(
        param_dtype=COMPUTE_DTYPES[precision], reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    # CPU ranks share one memory: freeing a gathered block after forward would save little and gather it twice
    reshard = device.type == "cuda"
    for unit in (*model.blocks, model):
        fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard and unit is not model)
        assert isinstance(unit, FSDPModule)
        unit.set_force_sum_reduction_for_comms(True)
        unit.set_gradient_divide_factor(1.0)


def reduce_gradients(model: Transformer, enabled: bool) -> None:
    """Whether the next backward adds its gradients up over the ranks: only the last micro-batch of a step needs to."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(enabled)


def whole_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A sharded tensor gathered from all ranks (each of them must call this), a plain one as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
