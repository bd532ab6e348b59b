"""Run in ranks by test_checkpoint.py: saves or loads a sharded model of odd sizes, and writes what it holds as JSON."""

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from model.checkpoint import Checkpoints, Loaded, training_tensors
from model.checkpoint_files import TrainState
from model.ranks import Ranks
from tasks.storage import Storage

GIVEN: dict[str, Any] = globals()


def main(rank: int, ranks: int) -> None:
    dist.init_process_group("gloo", init_method=GIVEN["INIT_METHOD"], rank=rank, world_size=ranks)
    try:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(65, 3), nn.Linear(3, 1))  # dims that 2 ranks can't share evenly
        fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        checkpoints = Checkpoints(
            Storage(GIVEN["ROOT"]),
            "train/x/checkpoints",
            Path(GIVEN["SCRATCH"]),
            GIVEN["ATTEMPT"],
            Ranks.of_this_process(),
        )
        if GIVEN["SAVE"]:
            for _ in range(3):
                model(torch.ones(2, 65)).sum().backward()
                optimizer.step()
            checkpoints.save(training_tensors(model, optimizer), GIVEN["STATE"], GIVEN["METRICS"], healthy=True)
        loaded: Loaded | None = None
        if not GIVEN["SAVE"]:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()
            loaded = checkpoints.load_newest(training_tensors(model, optimizer))
        whole = {
            name: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).tolist()
            for name, tensor in training_tensors(model, optimizer).items()
        }
        state: TrainState = GIVEN["STATE"]
        found = {"tensors": whole, "state": loaded.state == state if loaded else None}
        Path(GIVEN["SCRATCH"], f"{GIVEN['ATTEMPT']}-{rank}.json").write_text(json.dumps(found))
    finally:
        dist.destroy_process_group()


main(GIVEN["RANK"], GIVEN["RANKS"])
