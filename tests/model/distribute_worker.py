"""One rank of test_distribute.py: builds sharded models, takes two steps each, rank 0 saves what came out.

Run with the globals RANK, RANKS, INIT_METHOD, CASES and OUTPUT set.
"""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from model.config import ModelConfig, OptimizerConfig
from model.distribute import build_model, reduce_gradients, whole_tensor
from model.initialization import initialize
from model.loss import IGNORED
from model.optimizer import build_optimizer, clip_gradients, gradient_norm, set_step

# Sides that two ranks cannot share evenly: 257 tokens, an MLP of 65, and norms of 33 if it were not for the heads
UNEVEN = {"num_layers": 2, "width": 66, "num_heads": 3, "num_kv_heads": 1, "mlp_width": 65, "vocab_size": 257}
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
    config = ModelConfig.model_validate(UNEVEN | {"tie_embeddings": case.get("tie", True)})
    device = torch.device("cpu")
    model = build_model(config, case.get("precision", "fp32"), device, recompute=case.get("recompute", False))
    initialize(model, config, seed=1)
    optimizer = build_optimizer(model, OptimizerConfig())
    result: dict[str, Any] = {"losses": [], "norms": [], "is_sharded": [], "names": []}
    for step in range(2):
        total = backward(model, step, case.get("rows", ROWS // ranks), rank, ranks)
        norm = gradient_norm(model.parameters())
        if step == 0:
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
    result["is_sharded"] = [isinstance(parameter, DTensor) for parameter in model.parameters()]
    return result


def backward(model: Any, step: int, rows: int, rank: int, ranks: int) -> float:
    """Forward and backward over this rank's rows in micro-batches of `rows`; the global loss."""
    ids, targets, starts = batch(step)
    count = sum(VALID)
    share = ROWS // ranks
    total = torch.zeros(())
    for first in range(rank * share, (rank + 1) * share, rows):
        piece = slice(first, first + rows)
        reduce_gradients(model, first + rows >= (rank + 1) * share)
        losses = model(ids[piece], starts[piece], targets[piece], 1e-3)
        (losses.objective / count).backward()
        total += losses.nll_BT.sum() / count
    if ranks > 1:
        dist.all_reduce(total)
    return total.item()


def main(rank: int, ranks: int, init_method: str, cases: dict[str, dict[str, Any]], output: str) -> None:
    """All cases in one process group."""
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
    try:
        results = {name: run_case(case, rank, ranks) for name, case in cases.items()}
        if rank == 0:
            torch.save(results, output)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(RANK, RANKS, INIT_METHOD, CASES, OUTPUT)  # type: ignore[name-defined]  # noqa: F821
