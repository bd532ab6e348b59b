"""One rank of test_cost.py: trains, notes what it holds, loads the checkpoint of step 3, trains its end again."""

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from model.checkpoint import tensors_digest, training_tensors
from model.checkpoint_files import read_metrics, step_key
from model.distribute import local_tensor
from model.job import Job
from model.ranks import Ranks
from model.trainer import Trainer
from model.training import Training

GIVEN: dict[str, Any] = globals()


def held_bytes(training: Training) -> dict[str, int]:
    """Bytes of this rank: weights, gradients of one more forward and backward pass, moments."""
    training.forward(training.probe).objective.backward()
    local = {
        "weights": [local_tensor(p) for p in training.parameters],
        "gradients": [local_tensor(p.grad) for p in training.parameters if p.grad is not None],
        "moments": [
            local_tensor(tensor)
            for name, tensor in training_tensors(training.model, training.optimizer).items()
            if name.startswith("optimizer.")
        ],
    }
    return {name: sum(tensor.numel() * tensor.element_size() for tensor in tensors) for name, tensors in local.items()}


def steps(job: Job, ranks: Ranks, attempt: str) -> tuple[Trainer, list[float]]:
    """Train to the end with a new trainer; its losses, those before a resume included."""
    trainer = Trainer(Job(**{**vars(job), "attempt": attempt}), ranks, lambda: False, lambda: False)
    trainer.run()
    ranks.wait()
    return trainer, read_metrics(job.store, step_key(job.checkpoints_folder, 6))["loss"].to_pylist()


def main(rank: int, ranks_count: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=GIVEN["INIT_METHOD"], rank=rank, world_size=ranks_count)
    job: Job = GIVEN["JOB"]
    ranks = Ranks.of_this_process()
    trainer, losses = steps(job, ranks, "a1")
    note: dict[str, Any] = {"losses": losses}
    training = trainer.training
    note["saved"] = tensors_digest(training_tensors(training.model, training.optimizer))
    again = Training(Job(**{**vars(job), "attempt": "a2"}), ranks)
    note["restored"] = tensors_digest(training_tensors(again.model, again.optimizer))
    note["bytes"] = held_bytes(again)
    if rank == 0:
        job.store.delete(f"{step_key(job.checkpoints_folder, 6)}/manifest.json")
    ranks.wait()
    note["losses_again"] = steps(job, ranks, "a3")[1]
    Path(job.scratch, f"note-{rank}.json").write_text(json.dumps(note))
    ranks.wait()
    dist.destroy_process_group()


main(GIVEN["RANK"], GIVEN["RANKS"])
