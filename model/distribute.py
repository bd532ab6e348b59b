"""How a model is spread over devices: recomputation, compilation, sharding, memory, applied from outside in this order.

1. recompute: inside each block, so that what is compiled next includes it;
2. compile: each block by itself (equal blocks share one compilation), before sharding, whose gathers stay outside;
3. FSDP2: every block is a unit, the rest (embedding, last norm, head) is the root's: tied matrices share one unit.
   fp32 masters and fp32 reduction; in bf16 the gathered copies are bf16, but for routers, units of their own in fp32.
   Hybrid: sharded over `shard_ranks` neighbours, replicated over the groups;
4. memory: the model was built on the meta device, now each rank gets room for its shard only;
5. DDP instead of 3: wrapped last (`replicate`), since it registers whole parameters.

Gradients are summed over ranks, never averaged: the loss is already divided by the global number of valid targets. gloo
has no pre-multiplied sum, hence the two settings of FSDP below; either alone fails or averages. DDP always averages:
there the loss is multiplied by the number of ranks.
"""

from typing import Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from model.architecture import ModelConfig
from model.experts import Experts
from model.job import Settings
from model.ranks import Ranks
from model.transformer import Block, Transformer

Precision = Literal["bf16", "fp32"]
# Lengths of a recipe x rows of a piece x kernels x with and without gradients. Past its own limit of 8, torch would go
# on uncompiled and say nothing, and a resumed run, which compiles the later ones alone, would differ in the last bits.
COMPILED_VARIANTS = 64
COMPUTE_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def build_model(
    config: ModelConfig, precision: Precision, device: torch.device, settings: Settings | None = None
) -> Transformer:
    """The model with room for its weights, which hold nothing yet: `initialize` or load them.

    Sharded over all ranks when a process group of more than one rank exists (unless `settings` want DDP), else whole.
    """
    settings = settings or Settings()
    with torch.device("meta"):
        model = Transformer(config)
    model.compute_dtype = COMPUTE_DTYPES[precision]
    if settings.compile_blocks:
        torch._dynamo.config.recompile_limit = COMPILED_VARIANTS
        torch._dynamo.config.fail_on_recompile_limit_hit = True
    for block in model.blocks:
        assert isinstance(block, Block)
        block.recompute = settings.recompute
        if settings.compile_blocks:
            block.compile(dynamic=False)
    if _is_shared() and settings.parallel == "fsdp":
        _shard(model, precision, _mesh(device, settings.shard_ranks))
    return model.to_empty(device=device)


def replicate(model: Transformer, settings: Settings) -> nn.Module:
    """What training calls: the model, wrapped where each rank holds all of it. Its weights need no values yet."""
    if not (_is_shared() and settings.parallel == "ddp"):
        return model
    # every rank draws or loads equal values itself; buffers change in step on all ranks
    return DistributedDataParallel(model, init_sync=False, broadcast_buffers=False, gradient_as_bucket_view=True)


def _is_shared() -> bool:
    return dist.is_initialized() and dist.get_world_size() > 1


def _mesh(device: torch.device, shard_ranks: int | None) -> DeviceMesh:
    """All ranks in one dimension, or groups of neighbours in a second one."""
    ranks = dist.get_world_size()
    if shard_ranks is None or shard_ranks == ranks:
        return init_device_mesh(device.type, (ranks,))
    shape = (ranks // shard_ranks, shard_ranks)
    return init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))


def _shard(model: Transformer, precision: Precision, mesh: DeviceMesh) -> None:
    # CPU ranks share one memory: freeing a gathered block after forward would save little and gather it twice
    reshard = mesh.device_type == "cuda"
    routers = [module.router for module in model.modules() if isinstance(module, Experts)]
    for unit in (*routers, *model.blocks, model):
        # Inputs are not cast: the rotary tables among them must stay fp32, and activations follow `compute_dtype`
        policy = MixedPrecisionPolicy(
            param_dtype=torch.float32 if unit in routers else COMPUTE_DTYPES[precision],
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,
        )
        fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard and unit is not model)
        assert isinstance(unit, FSDPModule)
        unit.set_force_sum_reduction_for_comms(True)
        unit.set_gradient_divide_factor(1.0)


def reduce_gradients(model: nn.Module, enabled: bool) -> None:
    """Whether the next forward and backward add gradients up over the ranks: only the last micro-batch needs to."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(enabled)
    elif isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = enabled  # as its no_sync() does


def loss_factor(model: nn.Module) -> float:
    """What a loss is multiplied by, so that gradients are sums over the ranks."""
    return float(dist.get_world_size()) if isinstance(model, DistributedDataParallel) else 1.0


def check_sums(ranks: Ranks, device: torch.device) -> None:
    """Raises RuntimeError when collectives don't add up here, as in some releases with gloo (pytorch#162338)."""
    if ranks.count == 1:
        return
    total = torch.full((2,), float(ranks.rank + 1), device=device)
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    scattered = torch.empty(1, device=device)
    dist.reduce_scatter_single(scattered, torch.full((ranks.count,), float(ranks.rank + 1), device=device))
    wanted = ranks.count * (ranks.count + 1) / 2
    if total.tolist() != [wanted, wanted] or scattered.item() != wanted:
        raise RuntimeError(
            f"collectives of torch {torch.__version__} on {device.type} are wrong: the sum of 1..{ranks.count} is "
            f"{total[0].item()} and {scattered.item()}, not {wanted}; use another release of torch"
        )


def whole_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A sharded tensor gathered from all ranks (each of them must call this), a plain one as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a sharded tensor, a plain one as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
