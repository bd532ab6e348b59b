"""Two gloo ranks against one process: the same gradients, norms and weights; recomputation and compilation."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from model.config import ModelConfig
from model.distribute import build_model
from model.initialization import initialize
from tests.model.conftest import RankProcesses

WORKER = Path(__file__).with_name("distribute_worker.py")
CASES: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied": {"tie": False},
    "accumulated": {"rows": 1},
    "recomputed": {"recompute": True},
    "bf16": {"precision": "bf16"},
}
Results = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def alone() -> Results:
    run_case = runpy.run_path(str(WORKER))["run_case"]
    return {name: run_case(case, 0, 1) for name, case in CASES.items()}


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("ranks")
    RankProcesses(folder).run(WORKER, 2, CASES=CASES, OUTPUT=str(folder / "results.pt"))
    return dict(torch.load(folder / "results.pt"))


def largest_difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """Relative to the largest value of all."""
    assert ours.keys() == theirs.keys()
    largest = max(float(tensor.abs().max()) for tensor in theirs.values())
    return max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) / largest


@pytest.mark.parametrize("case", [name for name in CASES if name != "bf16"])
def test_two_ranks_give_the_gradients_of_one_process(case: str, alone: Results, together: Results) -> None:
    assert all(together[case]["is_sharded"])
    assert not any(alone[case]["is_sharded"])
    assert largest_difference(together[case]["gradients"], alone[case]["gradients"]) <= 1e-6
    assert all(float(gradient.abs().sum()) > 0 for gradient in together[case]["gradients"].values())
    assert together[case]["norms"] == pytest.approx(alone[case]["norms"], rel=1e-5)
    assert together[case]["losses"] == pytest.approx(alone[case]["losses"], rel=1e-6)
    assert largest_difference(together[case]["weights"], alone[case]["weights"]) <= 1e-4


def test_splits_and_recomputation_agree(alone: Results, together: Results) -> None:
    for case in ("accumulated", "recomputed"):
        for results in (alone, together):
            assert largest_difference(results[case]["gradients"], results["tied"]["gradients"]) <= 1e-6


def test_tied_matrix_stays_one_parameter(together: Results) -> None:
    assert "head.weight" not in together["tied"]["weights"]
    assert "head.weight" in together["untied"]["weights"]


def test_bf16_keeps_fp32_masters_and_stays_close(alone: Results, together: Results) -> None:
    for results in (alone, together):
        assert {tensor.dtype for tensor in results["bf16"]["weights"].values()} == {torch.float32}
        assert results["bf16"]["losses"] == pytest.approx(results["tied"]["losses"], rel=1e-2)
    assert largest_difference(together["bf16"]["gradients"], alone["bf16"]["gradients"]) <= 1e-2


def test_compiled_blocks_agree_share_one_graph_and_keep_their_names() -> None:
    config = ModelConfig.of_size("tiny", num_layers=10)  # more than dynamo would compile anew one by one
    counters.clear()
    ids = torch.randint(0, 512, (2, 32), generator=torch.Generator().manual_seed(0))
    models = [build_model(config, "fp32", torch.device("cpu"), compile_blocks=compiled) for compiled in (False, True)]
    gradients = []
    for model in models:
        initialize(model, config, 1)
        model(ids, [[0, 9], [0, 3, 20]], ids).objective.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert largest_difference(gradients[1], gradients[0]) <= 1e-5
    assert counters["stats"]["unique_graphs"] == 1
    assert models[0].state_dict().keys() == models[1].state_dict().keys()
