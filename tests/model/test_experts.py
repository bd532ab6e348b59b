"""Experts beside a plain loop over tokens; the router's losses, ties, loads; no token is dropped."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from model.architecture import ModelConfig
from model.experts import ROW_MULTIPLE, Experts, _places, grouped_products, loop, update_router_biases
from model.initialization import initialize
from model.transformer import Transformer

WIDTH = 16


def built(count: int = 4, active: int = 2, **experts: Any) -> Experts:
    config = ModelConfig.model_validate(
        {"num_layers": 1, "width": WIDTH, "num_heads": 1, "mlp_width": 24, "vocab_size": 256}
        | {"experts": {"count": count, "active": active, **experts}}
    )
    layer = Experts(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return layer


def tokens(rows: int = 2, length: int = 9) -> Tensor:
    return torch.randn((rows, length, WIDTH), generator=torch.Generator().manual_seed(1))


def one_by_one(layer: Experts, x_D: Tensor) -> Tensor:
    """One token through its experts, as the formula says."""
    probabilities_E = (layer.router.weight @ x_D).softmax(0)
    gates_K, chosen_K = probabilities_E.topk(layer.router.active)
    out_D = torch.zeros(WIDTH)
    for gate, expert in zip(gates_K / gates_K.sum(), chosen_K.tolist(), strict=True):
        gate_F, up_F = (x_D @ layer.gate_up[expert]).chunk(2)
        out_D = out_D + gate * ((F.silu(gate_F) * up_F) @ layer.down[expert])
    return out_D


@pytest.mark.parametrize(("count", "active"), [(2, 1), (4, 2), (8, 8)])
def test_equals_a_loop_over_tokens_in_values_and_gradients(count: int, active: int) -> None:
    layer, x_BTD = built(count, active), tokens().requires_grad_()
    out_BTD, _ = layer(x_BTD)
    wanted_BTD = torch.stack([torch.stack([one_by_one(layer, x_D) for x_D in row]) for row in x_BTD])
    torch.testing.assert_close(out_BTD, wanted_BTD, rtol=1e-5, atol=1e-6)
    inputs = (x_BTD, *layer.parameters())
    direction = torch.linspace(-1, 1, out_BTD.numel()).view_as(out_BTD)
    ours = torch.autograd.grad((out_BTD * direction).sum(), inputs)
    wanted = torch.autograd.grad((wanted_BTD * direction).sum(), inputs)
    for grad, wanted_grad in zip(ours, wanted, strict=True):
        torch.testing.assert_close(grad, wanted_grad, rtol=1e-4, atol=1e-5)


def test_an_expert_without_tokens_has_a_gradient_of_zeros() -> None:
    """A missing one would make ranks reduce different sizes, which aborts gloo."""
    layer = built(4, 1)
    with torch.no_grad():
        layer.router.weight.zero_()
        layer.router.weight[2] = 1.0
    out_BTD, routing = layer(tokens().abs())
    out_BTD.sum().backward()
    assert routing.loads_E.tolist() == [0, 0, 18, 0]  # all of them: none is dropped, whatever the load
    assert layer.down.grad is not None
    assert [bool(grad.any()) for grad in layer.down.grad] == [False, False, True, False]


def test_each_copy_has_a_row_of_its_expert_and_the_rest_holds_the_first_copy() -> None:
    order_M, counts = torch.tensor([5, 0, 2, 1, 3, 4]), [1, 0, 5]
    places_LK, copies_P, filled = _places(order_M, counts, torch.zeros((3, 2)))
    assert filled == [ROW_MULTIPLE, 0, ROW_MULTIPLE]
    assert places_LK.flatten()[order_M].tolist() == [0, *range(ROW_MULTIPLE, ROW_MULTIPLE + 5)]
    assert copies_P[places_LK.flatten()].tolist() == [0, 1, 2, 3, 4, 5]
    assert int(copies_P.sum()) == sum(range(6))


def test_places_stay_on_the_device_of_the_tokens() -> None:
    """The loop runs on CUDA, too, where the grouped product does not fit."""
    order_M, gates_LK = torch.arange(6, device="meta"), torch.zeros((3, 2), device="meta")
    places_LK, copies_P, _ = _places(order_M, [4, 2], gates_LK)
    assert {places_LK.device.type, copies_P.device.type} == {"meta"}


def test_ties_go_to_the_smaller_index() -> None:
    layer = built(8, 2)
    with torch.no_grad():
        layer.router.weight.zero_()
    gates_BTK, chosen_BTK, _ = layer.router(tokens(), None)
    assert (chosen_BTK == torch.tensor([0, 1])).all()
    assert (gates_BTK == 0.5).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_router_computes_in_fp32(dtype: torch.dtype) -> None:
    """Megatron-LM#1482: scores of bf16 weights and inputs in bf16 would tie."""
    layer = built(8, 2)
    gates_BTK, _, routing = layer.router(tokens().to(dtype), None)
    assert {gates_BTK.dtype, routing.balance.dtype, routing.z.dtype} == {torch.float32}
    exact = F.linear(tokens().to(dtype).double(), layer.router.weight.double()).softmax(-1).topk(2).values
    torch.testing.assert_close(gates_BTK, (exact / exact.sum(-1, keepdim=True)).float(), rtol=1e-5, atol=1e-6)
    assert layer(tokens().to(dtype))[0].dtype == dtype


def test_balancing_loss_is_one_per_token_when_even_and_more_when_not() -> None:
    layer = built(4, 2)
    with torch.no_grad():
        layer.router.weight.zero_()
    _, _, even = layer.router(tokens(), None)  # probabilities are even, the choice is not: k experts get all
    assert even.balance.item() == pytest.approx(18)
    with torch.no_grad():
        layer.router.weight[:2] = 10.0
    _, _, uneven = layer.router(tokens().abs(), None)
    assert uneven.balance.item() == pytest.approx(18 * 2, rel=1e-3)  # E / k: two of four experts have everything


def test_losses_and_loads_count_valid_tokens_alone_and_add_up_over_rows() -> None:
    layer, x_BTD = built(), tokens(3)
    valid_BT = torch.ones((3, 9), dtype=torch.bool)
    valid_BT[1, 4:] = False
    valid_BT[2] = False
    _, _, all_rows = layer.router(x_BTD, valid_BT)
    _, _, first = layer.router(x_BTD[:1], None)
    _, _, second = layer.router(x_BTD[1:2, :4], None)
    for both, parts in zip(all_rows, zip(first, second, strict=True), strict=True):
        torch.testing.assert_close(both, parts[0] + parts[1], rtol=1e-5, atol=1e-5)
    assert all_rows.loads_E.sum().item() == 2 * 13


def test_biases_move_the_choice_and_never_the_gates() -> None:
    layer = built(4, 1, bias_rate=1e-3)
    assert layer.router.bias_E is not None
    _, before, routing = layer.router(tokens(), None)
    layer.router.bias_E += torch.tensor([0.0, 0.0, 0.0, 5.0])
    gates_BTK, after, _ = layer.router(tokens(), None)
    assert (after == 3).all()
    assert not torch.equal(before, after)
    assert (gates_BTK == 1).all()
    assert routing.loads_E.sum() == 18


def test_biases_reach_even_loads_and_are_part_of_the_state() -> None:
    config = ModelConfig.of_size("tiny", mlp_width=32, experts={"count": 4, "active": 1, "bias_rate": 1e-3})
    model = Transformer(config)
    initialize(model, config, 1)
    ids = torch.randint(0, 512, (4, 64), generator=torch.Generator().manual_seed(0))
    spread = []
    for _ in range(80):
        with torch.no_grad():
            loads_LE = model(ids, None, ids).loads_LE
        update_router_biases(model, loads_LE)
        spread.append(float(loads_LE.std(1).max()))
    assert min(spread[-10:]) < spread[0] / 2
    biases = [tensor for name, tensor in model.state_dict().items() if name.endswith("router.bias_E")]
    assert len(biases) == 2
    assert all(bias.dtype == torch.float32 and bias.any() for bias in biases)


def test_grouped_products_equal_the_loop_in_values_and_gradients() -> None:
    """What CUDA in bf16 calls, run here: nothing chooses the second of three experts."""
    generator = torch.Generator().manual_seed(0)
    shapes = (6, 8), (6, 2), (3, 8, 32), (3, 16, 8)
    inputs = [torch.randn(shape, generator=generator).bfloat16().requires_grad_() for shape in shapes]
    order_M, counts_E = torch.tensor([0, 2, 5, 7, 8, 10, 1, 3, 4, 6, 9, 11]), torch.tensor([6, 0, 6])
    x_LD, gates_LK, gate_up_EDF, down_EFD = inputs
    outs_LD = [mix(x_LD, gates_LK, gate_up_EDF, down_EFD, order_M, counts_E) for mix in (loop, grouped_products)]
    torch.testing.assert_close(*outs_LD, rtol=2e-2, atol=5e-2)
    direction = torch.linspace(-1, 1, outs_LD[0].numel()).view_as(outs_LD[0]).bfloat16()
    grads = [torch.autograd.grad((out_LD * direction).sum(), inputs) for out_LD in outs_LD]
    for ours, grouped in zip(*grads, strict=True):
        torch.testing.assert_close(ours, grouped, rtol=2e-2, atol=0.2)
    assert not grads[0][2][1].any()


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_gradients_of_weights_have_the_type_of_the_weights_and_bf16_products(weights: torch.dtype) -> None:
    """fp32 masters in one process; gathered copies in bf16 under FSDP."""
    layer = built()
    layer.gate_up, layer.down = (
        torch.nn.Parameter(p.detach().bfloat16().to(weights)) for p in (layer.gate_up, layer.down)
    )
    out_BTD, _ = layer(tokens().bfloat16())
    out_BTD.sum().backward()
    for parameter in (layer.gate_up, layer.down):
        assert parameter.grad is not None
        assert parameter.grad.dtype == weights
        assert torch.equal(parameter.grad, parameter.grad.bfloat16().to(weights))


def test_losses_of_routers_join_the_objective() -> None:
    fields: dict[str, Any] = {
        "mlp_width": 32,
        "experts": {"count": 4, "active": 2, "balance_weight": 0.5, "router_z_weight": 0.25},
    }
    config = ModelConfig.of_size("tiny", **fields)
    model = Transformer(config)
    initialize(model, config, 1)
    ids = torch.randint(0, 512, (2, 16), generator=torch.Generator().manual_seed(0))
    losses = model(ids, None, ids, 0.0)
    wanted = losses.nll_BT.sum() + 0.5 * losses.balance + 0.25 * losses.router_z
    torch.testing.assert_close(losses.objective.detach(), wanted)
    assert losses.loads_LE.shape == (2, 4)
    assert losses.balance.item() == pytest.approx(32, rel=0.05)  # nearly even at first
