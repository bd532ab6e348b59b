"""One rank of test_distribute.py: builds sharded models, takes two steps each, rank 0 saves what came out.

Run with the globals RANK, RANKS, INIT_METHOD, CASES and OUTPUT set.
"""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from model.architecture import ModelConfig
from model.config import OptimizerConfig
from model.distribute import build_model, check_sums, loss_factor, reduce_gradients, replicate, whole_tensor
from model.experts import Router, update_router_biases
from model.initialization import initialize
from model.job import Settings
from model.loss import IGNORED
from model.optimizer import build_optimizer, clip_gradients, gradient_norm, set_step
from model.ranks import Ranks

# Sides that two ranks cannot share evenly: 257 tokens, an MLP of 65, and norms of 33 if it were not for the heads
UNEVEN = {"num_layers": 2, "width": 66, "num_heads": 3, "num_kv_heads": 1, "mlp_width": 65, "vocab_size": 257}
UNEVEN["vocab_multiple"] = 1
ROWS, LENGTH = 4, 48
VALID = (48, 3, 1, 30)  # targets per row


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor, list[list[int]]]:
    """Rows of one global batch with unequal documents and unequal numbers of targets."""
    generator = torch.Generator().manual_seed(step)
    ids, targets = torch.randint(0, 257, (2, ROWS, LENGTH), generator=generator)
    for row, valid in enumerate(VALID):
        targets[row, valid:] = IGNORED
    return ids, targets, [[0, 7], [0], [0, 20, 40], [0, 1]]


def run_case(case: dict[str, Any], rank: int, ranks: int) -> dict[str, Any]:
    """Two optimizer steps; the gradients of the first, both losses and norms, the weights at the end."""
    torch.set_num_threads(1)
    config = ModelConfig.model_validate(UNEVEN | case.get("model", {}))
    device = torch.device("cpu")
    settings = Settings.model_validate(case.get("settings", {}))
    if settings.shard_ranks and settings.shard_ranks > ranks:
        settings = Settings()
    model = build_model(config, case.get("precision", "fp32"), device, settings)
    replica = replicate(model, settings)
    initialize(model, config, seed=1)
    optimizer = build_optimizer(model, OptimizerConfig())
    result: dict[str, Any] = {"losses": [], "norms": [], "router_dtypes": set()}
    for router in (module for module in model.modules() if isinstance(module, Router)):
        router.register_forward_hook(lambda module, *_: result["router_dtypes"].add(module.weight.dtype))
    for step in range(2):
        total, loads = backward(replica, step, case.get("rows", ROWS // ranks), rank, ranks)
        norm = gradient_norm(model.parameters())
        if step == 0:
            if loads is not None:
                result["loads"] = loads
                update_router_biases(model, loads)
                biases = torch.stack(
                    [m.bias_E for m in model.modules() if isinstance(m, Router) and m.bias_E is not None]
                )
                result["biases"] = Ranks(rank, ranks).gather(biases)
            result["gradients"] = {
                n: whole_tensor(p.grad).clone() for n, p in model.named_parameters() if p.grad is not None
            }
        clip_gradients(model.parameters(), norm, 1.0)
        set_step(optimizer, OptimizerConfig(), lr=1e-2, weight_decay=0.1)
        optimizer.step()
        optimizer.zero_grad()
        result["losses"].append(total)
        result["norms"].append(norm.item())
    result["weights"] = {name: whole_tensor(p.detach()) for name, p in model.named_parameters()}
    result["meshes"] = {
        tuple(parameter.device_mesh.shape) if isinstance(parameter, DTensor) else None
        for parameter in model.parameters()
    }
    return result


def backward(model: Any, step: int, rows: int, rank: int, ranks: int) -> tuple[float, torch.Tensor | None]:
    """Forward and backward over this rank's rows in micro-batches of `rows`; the global loss, and loads of experts."""
    ids, targets, starts = batch(step)
    count = sum(VALID)
    share = ROWS // ranks
    total, loads = torch.zeros(()), None
    for first in range(rank * share, (rank + 1) * share, rows):
        piece = slice(first, first + rows)
        reduce_gradients(model, first + rows >= (rank + 1) * share)
        losses = model(ids[piece], starts[piece], targets[piece], 1e-3)
        (losses.objective / count * loss_factor(model)).backward()
        if losses.loads_LE is not None:
            loads = losses.loads_LE if loads is None else loads + losses.loads_LE
        total += losses.nll_BT.sum() / count
    for value in (total, loads) if ranks > 1 else ():
        if value is not None:
            dist.all_reduce(value)
    return total.item(), loads


def main(rank: int, ranks: int, init_method: str, cases: dict[str, dict[str, Any]], output: str) -> None:
    """All cases in one process group."""
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=ranks, timeout=timedelta(minutes=5))
    try:
        check_sums(Ranks(rank, ranks), torch.device("cpu"))
        results = {name: run_case(case, rank, ranks) for name, case in cases.items()}
        if rank == 0:
            torch.save(results, output)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(RANK, RANKS, INIT_METHOD, CASES, OUTPUT)  # type: ignore[name-defined]  # noqa: F821
