"""Formulas of memory and work against a model that is there: parameter by parameter, and what a forward pass keeps."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from model.architecture import ModelConfig
from model.attention import LONGEST_DENSE_MASK
from model.checkpoint import training_tensors
from model.checkpoint_files import read_metrics, step_key
from model.config import PhaseRun
from model.cost import (
    DENSE_LENGTH,
    activation_bytes,
    checkpoint_bytes,
    copies_bytes,
    flops_per_token,
    model_flops_utilisation,
    parameter_shapes,
    peak_flops,
    state_bytes,
)
from model.distribute import build_model
from model.initialization import initialize
from model.job import Job, Settings
from model.optimizer import build_optimizer
from model.trainer import train
from tasks.storage import Storage

WORKER = Path(__file__).with_name("uneven_worker.py")
EXPERTS: dict[str, Any] = {"count": 4, "active": 2}
GPT2 = {"positions": "learned", "norm": "layer", "activation": "gelu", "biases": True, "num_kv_heads": 4}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "untied": {"tie_embeddings": False, "vocab_size": 300},
    "qk-norm": {"qk_norm": True},
    "gpt2": GPT2,
    "experts": {"experts": EXPERTS | {"bias_rate": 1e-3}},
    "relu": {"activation": "relu", "positions": "sinusoidal"},
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_parameter_is_counted(name: str) -> None:
    config = ModelConfig.of_size("tiny", **SHAPES[name])
    model = build_model(config, "fp32", torch.device("cpu"))
    assert parameter_shapes(config) == {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert sum(map(math.prod, parameter_shapes(config).values())) == config.num_parameters
    tensors = training_tensors(model, build_optimizer(model, PhaseRun.model_fields["optimizer"].default))
    assert checkpoint_bytes(config) == sum(tensor.nbytes for tensor in tensors.values())
    assert state_bytes(config).total == 16 * config.num_parameters


@pytest.mark.parametrize("length", [64, 640])
@pytest.mark.parametrize("name", ["llama", "qk-norm", "gpt2", "experts"])
def test_what_a_forward_pass_keeps_is_estimated(name: str, length: int) -> None:
    config = ModelConfig.of_size("tiny", num_layers=3, **SHAPES[name])
    for recompute in (False, True):
        kept = kept_bytes(config, 4, length, recompute)
        estimate = activation_bytes(config, 4, length, "fp32", recompute=recompute)
        if recompute:  # the block that is computed again is there in the backward pass only
            estimate -= activation_bytes(config, 4, length, "fp32") - activation_bytes(
                config.model_copy(update={"num_layers": 2}), 4, length, "fp32"
            )
        assert estimate == pytest.approx(kept, rel=0.15)
    assert DENSE_LENGTH == LONGEST_DENSE_MASK
    assert activation_bytes(config, 4, length, "bf16") < activation_bytes(config, 4, length, "fp32")


def kept_bytes(config: ModelConfig, rows: int, length: int, recompute: bool) -> int:
    """Bytes of the storages that autograd holds after a forward pass, weights left out."""
    model = build_model(config, "fp32", torch.device("cpu"), Settings(recompute=recompute))
    initialize(model, config, 1)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    held: dict[int, int] = {}
    alive: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        alive.append(tensor)
        if storage.data_ptr() not in weights:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = torch.randint(0, config.vocab_size, (rows, length), generator=torch.Generator().manual_seed(0))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(ids, None, ids, 1e-4)
    return sum(held.values())


def test_copies_are_those_of_the_computing_type() -> None:
    config = ModelConfig.of_size("tiny", num_layers=6)
    assert copies_bytes(config, "fp32") == 0
    assert copies_bytes(config, "bf16") == 2 * config.num_parameters
    assert copies_bytes(config, "fp32", 2) == 4 * config.num_parameters  # FSDP gathers
    assert copies_bytes(config, "bf16", 2, on_cuda=True) < copies_bytes(config, "bf16", 2)


def test_flops_are_those_of_palm_by_hand() -> None:
    config = ModelConfig.of_size("tiny")  # 2 layers, width 64, 4 heads and 2 key-value heads of 16, MLP 192, 512 tokens
    multiplied = 512 * 64 + 2 * (64 * (4 + 2 * 2 + 4) * 16 + 3 * 64 * 192 + 2 * 64) + 64
    assert multiplied == config.num_parameters
    assert flops_per_token(config, 256) == 6 * multiplied + 12 * 2 * 4 * 16 * 256
    untied = config.model_copy(update={"tie_embeddings": False})
    assert flops_per_token(untied, 256) == flops_per_token(config, 256)
    experts = ModelConfig.of_size("tiny", experts=EXPERTS)
    assert flops_per_token(experts, 1) < 6 * experts.num_parameters


def test_peaks_are_known_by_name() -> None:
    assert peak_flops("NVIDIA H200") == 989e12
    assert peak_flops("NVIDIA A100-SXM4-80GB") == 312e12
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_flops("cpu, 2 threads") is None


def test_utilisation_is_of_all_devices_and_of_bf16() -> None:
    phase = {
        "name": "main", "tokens": 64, "weights": {"web": 1}, "batch": 1, "sequence_length": 64, "schedule": {"lr": 1},
    }  # fmt: skip
    run = PhaseRun.model_validate({"model": {"size": "1b"}, "phase": phase})
    speed = 8 * 0.4 * 989e12 / flops_per_token(run.model, 64)
    assert model_flops_utilisation(run, speed, "NVIDIA H100 80GB HBM3", 8) == pytest.approx(0.4)
    assert model_flops_utilisation(run, speed, "cpu, 2 threads", 8) is None
    assert model_flops_utilisation(run.model_copy(update={"precision": "fp32"}), speed, "NVIDIA H100", 8) is None


def test_uneven_shards_come_back_whole_and_take_what_the_formula_says(
    store: Storage, make_pack: Any, tmp_path: Path, rank_processes: Any
) -> None:
    """torchtitan#809, #1136, #1702: sides that two ranks can't share evenly restored wrongly, and the loss jumped."""
    model = ModelConfig.of_size(
        "tiny", width=65, head_width=16, mlp_width=65, vocab_size=257, vocab_multiple=1, tie_embeddings=False
    )
    phase = {
        "name": "main", "tokens": 6 * 4 * 32, "weights": {"web": 1}, "batch": 4, "sequence_length": 32,
        "schedule": {"lr": 1e-2},
    }  # fmt: skip
    run = PhaseRun.model_validate({"model": model, "phase": phase, "precision": "fp32"})
    settings = Settings(threads=1, checkpoint_steps=3, micro_batch_rows=2)
    job = Job(run, (make_pack("web", [90]),), store, "train/x", "a1", str(tmp_path), settings)
    rank_processes.run(WORKER, 2, JOB=job)
    notes = [json.loads((tmp_path / f"note-{rank}.json").read_text()) for rank in (0, 1)]
    for note in notes:
        assert note["restored"] == note["saved"]  # every byte that this rank held, weights and moments
        assert note["losses_again"] == note["losses"]
    expected = state_bytes(model, 2)
    assert notes[0]["bytes"] == {
        "weights": expected.weights,
        "gradients": expected.gradients,
        "moments": expected.moments,
    }
    assert notes[1]["bytes"]["weights"] < expected.weights
    one = Job(run, job.packs, store, "train/one", "a1", str(tmp_path), settings)
    train(one)
    alone = read_metrics(store, step_key(one.checkpoints_folder, 6))["loss"].to_pylist()
    assert alone == pytest.approx(notes[0]["losses"], abs=1e-5)
