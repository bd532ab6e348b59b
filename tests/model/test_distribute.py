"""Two and four gloo ranks against one process: the same gradients, norms and weights, in every kind of split."""

import runpy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from model.architecture import ModelConfig
from model.distribute import build_model, check_sums
from model.initialization import initialize
from model.job import Settings
from model.ranks import Ranks
from model.transformer import Transformer
from tests.model.conftest import RankProcesses

WORKER = Path(__file__).with_name("distribute_worker.py")
EXPERTS = {"qk_norm": True, "experts": {"count": 3, "active": 2, "bias_rate": 1e-3}}
GPT2 = {"positions": "learned", "max_positions": 49, "norm": "layer", "biases": True, "activation": "gelu"}
SINUSOIDAL = {"positions": "sinusoidal", "activation": "relu", "tie_embeddings": False, "vocab_multiple": 64}
DDP = {"parallel": "ddp"}
CASES: dict[str, dict[str, Any]] = {  # each again as `rows` of one micro-batch: the same as what `same_as` names
    "tied": {},
    "untied": {"model": {"tie_embeddings": False}},
    "accumulated": {"rows": 1, "same_as": "tied"},
    "recomputed": {"settings": {"recompute": True}, "same_as": "tied"},
    "ddp": {"settings": DDP, "same_as": "tied"},
    "ddp accumulated": {"settings": DDP, "rows": 1, "same_as": "tied"},
    "hybrid": {"settings": {"shard_ranks": 2}, "same_as": "tied"},
    "gpt2": {"model": GPT2},
    "gpt2 ddp": {"model": GPT2, "settings": DDP, "same_as": "gpt2"},
    "sinusoidal": {"model": SINUSOIDAL, "rows": 1},
    "one element": {"model": SINUSOIDAL | {"qk_norm": True, "head_width": 1}},
    "sinusoidal ddp": {"model": SINUSOIDAL, "settings": DDP, "same_as": "sinusoidal"},
    "experts": {"model": EXPERTS},
    "experts accumulated": {"model": EXPERTS, "rows": 1, "same_as": "experts"},
    "experts ddp": {"model": EXPERTS | {"tie_embeddings": False}, "settings": DDP, "rows": 1},
    "bf16": {"precision": "bf16"},
    "experts bf16": {"model": EXPERTS, "precision": "bf16"},
}
EXACT = [name for name in CASES if not name.endswith("bf16")]
Results = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def alone() -> Results:
    run_case = runpy.run_path(str(WORKER))["run_case"]
    return {name: run_case(case, 0, 1) for name, case in CASES.items()}


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def together(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Results:
    """All cases in one group of processes."""
    folder = tmp_path_factory.mktemp("ranks")
    RankProcesses(folder).run(WORKER, request.param, CASES=CASES, OUTPUT=str(folder / "results.pt"))
    return dict(torch.load(folder / "results.pt"), ranks={"count": request.param})


def largest_difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """Relative to the largest value of all."""
    assert ours.keys() == theirs.keys()
    largest = max(float(tensor.abs().max()) for tensor in theirs.values())
    return max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) / largest


@pytest.mark.parametrize("case", EXACT)
def test_ranks_give_the_gradients_of_one_process(case: str, alone: Results, together: Results) -> None:
    """transformers#34191, torchtitan#1842: unequal numbers of targets per row; pytorch#144045: uneven, tiny sides."""
    ranks = together["ranks"]["count"]
    shared = (2, 2) if case == "hybrid" and ranks == 4 else (ranks,)  # copies x ranks that share one
    assert together[case]["meshes"] == {None if "ddp" in case else shared}
    assert alone[case]["meshes"] == {None}
    assert largest_difference(together[case]["gradients"], alone[case]["gradients"]) <= 1e-6
    assert together[case]["gradients"].keys() == together[case]["weights"].keys()
    assert together[case]["norms"] == pytest.approx(alone[case]["norms"], rel=1e-5)
    assert together[case]["losses"] == pytest.approx(alone[case]["losses"], rel=1e-6)
    assert largest_difference(together[case]["weights"], alone[case]["weights"]) <= 1e-4


@pytest.mark.parametrize("case", [name for name, case in CASES.items() if "same_as" in case])
def test_splits_and_wrappings_agree(case: str, alone: Results, together: Results) -> None:
    wanted = alone[CASES[case]["same_as"]]["gradients"]
    for results in (alone, together):
        assert largest_difference(results[case]["gradients"], wanted) <= 1e-6


def test_loads_are_those_of_the_whole_batch_and_biases_follow_them(alone: Results, together: Results) -> None:
    """Megatron-LM#1482, torchtitan#1226: biases stay fp32, equal on all ranks."""
    for case in ("experts", "experts accumulated"):
        loads_LE = alone["experts"]["loads"]
        assert loads_LE.sum(1).tolist() == [2 * 82, 2 * 82]  # each target's token passes two experts
        assert torch.equal(together[case]["loads"], loads_LE)
        for rank_biases in together[case]["biases"]:
            assert rank_biases.dtype == torch.float32
            assert torch.equal(rank_biases, 1e-3 * (loads_LE.mean(1, keepdim=True) - loads_LE).sign())
    assert all(biases.dtype == torch.float32 for biases in together["experts bf16"]["biases"])
    assert together["experts bf16"]["router_dtypes"] == {torch.float32}


def test_tiny_parameters_have_gradients(together: Results) -> None:
    """pytorch#144045: a bias of one element per rank or fewer."""
    for case, least in (("gpt2", 65), ("one element", 1)):
        gradients = together[case]["gradients"]
        assert min(gradient.numel() for gradient in gradients.values()) == least
        assert all(gradient.abs().sum() > 0 for gradient in gradients.values())


def test_tied_matrix_stays_one_parameter(together: Results) -> None:
    """torchtitan#2495, #2522: after wrapping, drawing and loading."""
    assert "head.weight" not in together["tied"]["weights"]
    assert "head.weight" in together["untied"]["weights"]


@pytest.mark.parametrize(("reduced", "scattered"), [(1.0, 3.0), (3.0, 1.0), (3.0, 1.5)])
def test_sums_of_collectives_are_checked(monkeypatch: pytest.MonkeyPatch, reduced: float, scattered: float) -> None:
    """pytorch#162338: gloo of one release summed where it should average, and the reverse."""
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor, op: tensor.fill_(reduced))
    monkeypatch.setattr(torch.distributed, "reduce_scatter_single", lambda out, tensor: out.fill_(scattered))
    check_sums(Ranks(), torch.device("cpu"))  # one process asks nothing
    with pytest.raises(RuntimeError, match=rf"the sum of 1\.\.2 is {reduced} and {scattered}, not 3\.0"):
        check_sums(Ranks(0, 2), torch.device("cpu"))


def test_bf16_keeps_fp32_masters_and_stays_close(alone: Results, together: Results) -> None:
    for results in (alone, together):
        assert {tensor.dtype for tensor in results["bf16"]["weights"].values()} == {torch.float32}
        assert results["bf16"]["losses"] == pytest.approx(results["tied"]["losses"], rel=1e-2)
    assert largest_difference(together["bf16"]["gradients"], alone["bf16"]["gradients"]) <= 1e-2


@pytest.mark.parametrize("recompute", [False, True])
def test_recomputation_runs_each_block_again_in_the_backward_pass(recompute: bool) -> None:
    config = ModelConfig.of_size("tiny")
    model = build_model(config, "fp32", torch.device("cpu"), Settings(recompute=recompute))
    initialize(model, config, 1)
    passes = []
    for index, block in enumerate(model.blocks):
        block.attention.register_forward_hook(lambda *_, index=index: passes.append(index))  # type: ignore[union-attr]
    ids = torch.arange(32).view(2, 16)
    model(ids, [[0], [0]], ids).objective.backward()
    assert passes == [0, 1, 1, 0] if recompute else [0, 1]


def test_bf16_is_added_up_in_fp32(together: Results) -> None:
    """A sum of two or four numbers of 8 bits has more of them."""
    for gradient in together["bf16"]["gradients"].values():
        assert not torch.equal(gradient, gradient.bfloat16().float())


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.chaos)])
def test_compiled_blocks_agree_share_one_graph_and_keep_their_names(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graphs are the same with either backend; inductor makes a C++ compiler work for a minute."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    torch._dynamo.reset()
    config = ModelConfig.of_size("tiny", num_layers=10)  # more than dynamo would compile anew one by one
    counters.clear()
    ids = torch.randint(0, 512, (2, 32), generator=torch.Generator().manual_seed(0))
    models = [
        build_model(config, "fp32", torch.device("cpu"), Settings(compile_blocks=compiled))
        for compiled in (False, True)
    ]
    gradients = []
    for model in models:
        initialize(model, config, 1)
        model(ids, [[0, 9], [0, 3, 20]], ids).objective.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert largest_difference(gradients[1], gradients[0]) <= 1e-5
    assert counters["stats"]["unique_graphs"] == 1
    assert models[0].state_dict().keys() == models[1].state_dict().keys()


@pytest.fixture
def compiled_model(monkeypatch: pytest.MonkeyPatch) -> Transformer:
    """Without a C++ compiler's work: what torch compiles anew is the same with either backend."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch._dynamo.reset()
    config = ModelConfig.of_size("tiny")
    model = build_model(config, "fp32", torch.device("cpu"), Settings(compile_blocks=True))
    initialize(model, config, 1)
    return model


def test_blocks_of_many_lengths_are_all_compiled(compiled_model: Transformer) -> None:
    """torch stops at 8 by itself, silently: a run whose length grows would differ from one resumed at a late length."""
    counters.clear()
    for length in range(8, 18):
        compiled_model(torch.zeros((1, length), dtype=torch.int64))
    assert counters["stats"]["unique_graphs"] == 10


def test_documents_that_vary_compile_nothing_anew(compiled_model: Transformer) -> None:
    counted = []
    for first in (16, 20, 24, 28):
        counters.clear()
        compiled_model(torch.zeros((1, 64), dtype=torch.int64), [[0, first, 32, 40]])
        counted.append(counters["stats"]["unique_graphs"])
    assert counted[0] > 0
    assert counted[1:] == [0, 0, 0]
