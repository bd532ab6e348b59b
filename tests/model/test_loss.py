"""Cross-entropy and z-loss: equal to torch's, in any split, without whole logits."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from model import loss
from model.loss import IGNORED, token_losses

VOCABULARY, WIDTH = 50, 16


def make(rows: int = 4, length: int = 64, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, output matrix, targets with 64, 3, 1 and 30 valid ones."""
    torch.manual_seed(0)
    x_BTD = torch.randn(rows, length, WIDTH).to(dtype).requires_grad_()
    weight_VD = torch.randn(VOCABULARY, WIDTH).to(dtype).requires_grad_()
    targets_BT = torch.randint(0, VOCABULARY, (rows, length))
    for row, valid in enumerate([64, 3, 1, 30][:rows]):
        targets_BT[row, valid:] = IGNORED
    return x_BTD, weight_VD, targets_BT


def plain_objective(x_BTD: Tensor, weight_VD: Tensor, targets_BT: Tensor, z_weight: float) -> Tensor:
    logits = (x_BTD @ weight_VD.T).float().flatten(0, 1)
    targets = targets_BT.flatten()
    z = logits.logsumexp(-1).square()[targets != IGNORED].sum()
    return F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum") + z_weight * z


@pytest.fixture(params=[1, 7, 64, 10_000], ids="{} tokens a chunk".format)
def chunk_tokens(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setitem(loss.CHUNK_LOGITS, "cpu", request.param * VOCABULARY)
    return int(request.param)


@pytest.mark.usefixtures("chunk_tokens")
@pytest.mark.parametrize("z_weight", [0.0, 1e-2])
def test_loss_and_gradients_equal_torch(z_weight: float) -> None:
    x_BTD, weight_VD, targets_BT = make()
    wanted = plain_objective(x_BTD, weight_VD, targets_BT, z_weight)
    wanted_grads = torch.autograd.grad(wanted * 3, (x_BTD, weight_VD))
    ours = token_losses(x_BTD, weight_VD, targets_BT, z_weight)
    torch.testing.assert_close(ours.objective, wanted, rtol=1e-6, atol=0)
    for grad, wanted_grad in zip(
        torch.autograd.grad(ours.objective * 3, (x_BTD, weight_VD)), wanted_grads, strict=True
    ):
        torch.testing.assert_close(grad, wanted_grad, rtol=1e-5, atol=1e-5)


def test_parts_are_reported_apart_and_masked_alike() -> None:
    x_BTD, weight_VD, targets_BT = make()
    losses = token_losses(x_BTD, weight_VD, targets_BT, 0.5)
    valid = targets_BT != IGNORED
    logits = x_BTD @ weight_VD.T
    nll = F.cross_entropy(logits.flatten(0, 1), targets_BT.clamp(0).flatten(), reduction="none").view_as(targets_BT)
    torch.testing.assert_close(losses.nll_BT, nll.where(valid, 0.0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(losses.z_BT, logits.logsumexp(-1).square().where(valid, 0.0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(losses.objective, losses.nll_BT.sum() + 0.5 * losses.z_BT.sum())
    assert not losses.nll_BT.requires_grad
    assert not losses.z_BT.requires_grad


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_unequal_valid_tokens_give_one_loss_in_any_split(rows: int) -> None:
    x_BTD, weight_VD, targets_BT = make()
    count = int((targets_BT != IGNORED).sum())
    assert count == 98
    whole = plain_objective(x_BTD, weight_VD, targets_BT, 1e-4) / count
    wanted = torch.autograd.grad(whole, (x_BTD, weight_VD))
    total = torch.zeros(())
    for start in range(0, 4, rows):
        piece = slice(start, start + rows)
        losses = token_losses(x_BTD[piece], weight_VD, targets_BT[piece], 1e-4)
        (losses.objective / count).backward()
        total += losses.objective.detach() / count
    torch.testing.assert_close(total, whole.detach(), rtol=1e-6, atol=0)
    for tensor, grad in zip((x_BTD, weight_VD), wanted, strict=True):
        assert tensor.grad is not None
        assert float((tensor.grad - grad).abs().max()) <= 1e-6 * float(grad.abs().max())


class Sizes(TorchDispatchMode):
    """Notes the largest tensor that any operation made."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.largest = max([self.largest, *(t.numel() for t in tree_leaves(result) if isinstance(t, Tensor))])
        return result


@pytest.mark.parametrize("chunk_tokens", [7], indirect=True)
@pytest.mark.parametrize("with_gradient", [False, True])
def test_whole_logits_never_exist(chunk_tokens: int, with_gradient: bool) -> None:
    x_BTD, weight_VD, targets_BT = make()
    sizes = Sizes()  # type: ignore[no-untyped-call]
    with sizes, torch.set_grad_enabled(with_gradient):
        losses = token_losses(x_BTD, weight_VD, targets_BT, 1e-2)
        if with_gradient:
            losses.objective.backward()
    assert sizes.largest == max(x_BTD.numel(), chunk_tokens * VOCABULARY) < targets_BT.numel() * VOCABULARY


def test_nothing_valid_is_zero_not_nan() -> None:
    x_BTD, weight_VD, targets_BT = make()
    losses = token_losses(x_BTD, weight_VD, torch.full_like(targets_BT, IGNORED), 1.0)
    losses.objective.backward()
    assert losses.objective.item() == 0
    assert x_BTD.grad is not None
    assert x_BTD.grad.abs().sum() == 0


def test_without_gradient_nothing_is_saved() -> None:
    x_BTD, weight_VD, targets_BT = make()
    with torch.no_grad():
        losses = token_losses(x_BTD, weight_VD, targets_BT)
    assert losses.objective.grad_fn is None
    torch.testing.assert_close(losses.objective, plain_objective(x_BTD, weight_VD, targets_BT, 0.0).detach())


def test_large_logits_do_not_overflow() -> None:
    x_BTD, weight_VD, targets_BT = make()
    losses = token_losses(x_BTD * 1e4, weight_VD, targets_BT)
    assert losses.objective.isfinite()


def test_bf16_inputs_fp32_losses() -> None:
    x_BTD, weight_VD, targets_BT = make(dtype=torch.bfloat16)
    losses = token_losses(x_BTD, weight_VD.float(), targets_BT, 1e-4)  # an fp32 master weight is cast
    wanted = plain_objective(x_BTD, weight_VD, targets_BT, 1e-4)
    assert losses.nll_BT.dtype == torch.float32
    torch.testing.assert_close(losses.objective, wanted, rtol=1e-5, atol=0)
    grads = torch.autograd.grad(losses.objective, (x_BTD, weight_VD))
    for grad, wanted_grad in zip(grads, torch.autograd.grad(wanted, (x_BTD, weight_VD)), strict=True):
        assert grad.dtype == torch.bfloat16
        torch.testing.assert_close(grad, wanted_grad, rtol=2e-2, atol=2e-2 * float(wanted_grad.abs().max()))


def test_a_second_backward_through_the_same_losses_is_refused() -> None:
    """Gradients are scaled in place; scaled twice they would be wrong without a word."""
    x_BTD, weight_VD, targets_BT = make()
    objective = token_losses(x_BTD, weight_VD, targets_BT).objective
    objective.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        objective.backward()
