"""The model: first loss, documents that cannot see each other, recomputation, mixed precision."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from model.architecture import ModelConfig
from model.initialization import initialize
from model.transformer import Transformer

TINY = ModelConfig.of_size("tiny")


def built(dtype: torch.dtype = torch.float32, scale: float = 1.0, **fields: Any) -> Transformer:
    """A tiny model; `scale` > 1 makes its weights large enough for attention to matter."""
    config = ModelConfig.of_size("tiny", **fields)
    model = Transformer(config)
    initialize(model, config, 1)
    model.compute_dtype = dtype
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale if parameter.ndim > 1 else 1)
    return model


def ids(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, TINY.vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))


EXPERTS = {"count": 4, "active": 2}
KINDS: dict[str, dict[str, Any]] = {
    "multi-query": {"num_kv_heads": 1},
    "qk-norm": {"qk_norm": True, "head_width": 32, "vocab_size": 500},
    "learned": {"positions": "learned", "max_positions": 1024, "norm": "layer", "biases": True, "activation": "gelu"},
    "sinusoidal": {"positions": "sinusoidal", "norm": "layer", "activation": "relu"},
    "biased swiglu": {"biases": True, "num_kv_heads": 4},
    "experts": {"experts": EXPERTS, "mlp_width": 64},
}


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_counted_parameters_are_the_parameters(tie: bool, kind: str) -> None:
    model = built(tie_embeddings=tie, **KINDS[kind])
    assert sum(parameter.numel() for parameter in model.parameters()) == model.config.num_parameters
    assert set(model.state_dict()) == set(dict(model.named_parameters()))  # no tables, no buffers in a checkpoint


@pytest.mark.parametrize("tie", [True, False])
def test_first_loss_is_that_of_guessing(tie: bool) -> None:
    losses = built(tie_embeddings=tie)(ids(4, 128), None, ids(4, 128, seed=1))
    assert losses.nll_BT.mean().item() == pytest.approx(math.log(TINY.vocab_size), rel=0.01)


def test_losses_are_those_of_the_logits() -> None:
    model, inputs, targets = built(scale=5), ids(2, 64), ids(2, 64, seed=1)
    losses = model(inputs, None, targets, 1e-2)
    logits = model(inputs)
    wanted = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    torch.testing.assert_close(losses.nll_BT.flatten(), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(losses.z_BT, logits.logsumexp(-1).square(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length", [64, 512, 1024])
def test_changing_a_document_leaves_the_others_unchanged_to_the_bit(length: int, dtype: torch.dtype) -> None:
    model = built(dtype, scale=5)
    first, second = length // 3, 2 * length // 3
    starts = [[0, first, second], [0]]
    inputs = ids(2, length)
    changed = inputs.clone()
    changed[0, first:second] = ids(1, second - first, seed=9)[0]
    with torch.no_grad():
        before, after = model(inputs, starts), model(changed, starts)
    assert not torch.equal(before[0, first:second], after[0, first:second])
    assert torch.equal(before[0, :first], after[0, :first])
    assert torch.equal(before[0, second:], after[0, second:])
    assert torch.equal(before[1], after[1])


@pytest.mark.parametrize("kind", KINDS)
def test_documents_are_isolated_in_every_kind_of_model(kind: str) -> None:
    """nanoVLM#201, profam#495: exactly in dense models; experts share products with rows of other documents."""
    model, inputs = built(scale=3, **KINDS[kind]), ids(1, 96).clamp(max=499)
    changed = inputs.clone()
    changed[0, 20:50] = 7
    with torch.no_grad():
        before, after = model(inputs, [[0, 20, 50]]), model(changed, [[0, 20, 50]])
        alone = model(inputs[:, 50:])
    assert not torch.equal(before[0, 20:50], after[0, 20:50])
    others = torch.cat((before[0, :20], before[0, 50:])), torch.cat((after[0, :20], after[0, 50:]))
    if kind == "experts":
        torch.testing.assert_close(*others, rtol=0, atol=1e-5)
    else:
        assert torch.equal(*others)
    torch.testing.assert_close(before[:, 50:], alone, rtol=0, atol=1e-4)  # positions restart


def test_padding_of_the_vocabulary_has_no_probability() -> None:
    """Megatron-Bridge#5375, litgpt#1334: large padded rows change neither logits nor losses, and learn nothing."""
    model, inputs = built(vocab_size=500, tie_embeddings=False), ids(2, 32).clamp(max=499)
    assert model.head is not None
    assert model.head.weight.shape == (512, 64)
    with torch.no_grad():
        model.head.weight[500:] = 100.0
    assert model(inputs).shape == (2, 32, 500)
    losses = model(inputs, None, inputs, 1e-2)
    wanted = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), inputs.flatten(), reduction="none")
    torch.testing.assert_close(losses.nll_BT.flatten(), wanted, rtol=1e-5, atol=1e-5)
    losses.objective.backward()
    assert model.head.weight.grad is not None
    assert not model.head.weight.grad[500:].any()


@pytest.mark.parametrize("length", [32, 600])
@pytest.mark.parametrize("recompute", [False, True])
def test_dropout_follows_the_seed_and_only_training_has_it(length: int, recompute: bool) -> None:
    model, inputs = built(dropout=0.3, scale=3), ids(1, length)
    for block in model.blocks:
        block.recompute = recompute  # type: ignore[assignment]

    def seeded(seed: int) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        model.zero_grad()
        model(inputs, [[0, 9]], inputs).objective.backward()
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    first, again, other = seeded(1), seeded(1), seeded(2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])
    plain = built(scale=3)
    model.eval()
    with torch.no_grad():
        assert torch.equal(model(inputs), plain(inputs))


@pytest.mark.parametrize("length", [64, 1024])
def test_positions_restart_so_a_document_reads_the_same_anywhere(length: int) -> None:
    model = built(scale=5)
    inputs = ids(1, length)
    with torch.no_grad():
        packed = model(inputs, [[0, 20]])
        alone = model(inputs[:, 20:])
        joined = model(inputs)
    torch.testing.assert_close(packed[:, 20:], alone, rtol=0, atol=1e-4)
    assert float((joined[:, 20:] - alone).abs().max()) > 0.1  # so the test would see a leak


def test_position_matters_and_its_base_belongs_to_the_phase() -> None:
    model, inputs = built(scale=5), ids(1, 64)
    with torch.no_grad():
        before = model(inputs)
        model.rope_base = 500_000.0
        assert not torch.allclose(before, model(inputs), atol=1e-2)
        model.rope_base = model.config.rope_base
        assert torch.equal(before, model(inputs))


def gradients(model: Transformer, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    model(inputs, [[0, 9], [0]], targets, 1e-4).objective.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_recomputation_changes_no_bit(dtype: torch.dtype) -> None:
    model, inputs, targets = built(dtype), ids(2, 64), ids(2, 64, seed=1)
    kept = {name: grad.clone() for name, grad in gradients(model, inputs, targets).items()}
    for block in model.blocks:
        block.recompute = True  # type: ignore[assignment]
    again = gradients(model, inputs, targets)
    assert kept.keys() == again.keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(kept[name], grad) for name, grad in again.items())


def test_bf16_computes_in_bf16_with_fp32_weights_and_gradients() -> None:
    inputs, targets = ids(2, 64), ids(2, 64, seed=1)
    plain, mixed = (gradients(built(dtype), inputs, targets) for dtype in (torch.float32, torch.bfloat16))
    for name, grad in mixed.items():
        assert grad.dtype == torch.float32, name
        error = float((grad - plain[name]).norm() / plain[name].norm())
        assert 1e-5 < error < 0.05, (name, error)


def test_gradients_are_those_of_finite_differences() -> None:
    model, inputs, targets = built(scale=3), ids(2, 32), ids(2, 32, seed=1)
    grads = gradients(model, inputs, targets)
    generator = torch.Generator().manual_seed(0)
    direction = {name: torch.randn(grad.shape, generator=generator) for name, grad in grads.items()}
    slope = sum(float((grads[name] * step).sum()) for name, step in direction.items())
    losses: list[float] = []
    for shift in (1e-3, -2e-3):  # to one side, then through the middle to the other
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.add_(direction[name], alpha=shift)
            losses.append(float(model(inputs, [[0, 9], [0]], targets, 1e-4).objective))
    assert (losses[0] - losses[1]) / 2e-3 == pytest.approx(slope, rel=2e-2)
