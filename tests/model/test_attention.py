"""Attention stays inside documents on every path; layouts from document starts."""

import pytest
import torch
from torch import Tensor

from model.attention import LONGEST_DENSE_MASK, Layout, attend, lay_out

STARTS = [[0, 3, 4, 40], [0]]


def batch(length: int) -> Tensor:
    return torch.zeros(2, length, dtype=torch.long)


def projections(length: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return tuple(torch.randn(2, length, heads, 8).to(dtype) for heads in (4, 2, 2))  # type: ignore[return-value]


def plain_attention(q_BTNH: Tensor, k_BTKH: Tensor, v_BTKH: Tensor, starts: list[list[int]]) -> Tensor:
    """One document, one head, one query at a time, in fp64."""
    out = torch.zeros_like(q_BTNH, dtype=torch.float64)
    for row, row_starts in enumerate(starts):
        for start, end in zip(row_starts, [*row_starts[1:], q_BTNH.shape[1]], strict=True):
            for head in range(4):
                q, k, v = (
                    x[row, start:end].double()
                    for x in (q_BTNH[:, :, head], k_BTKH[:, :, head // 2], v_BTKH[:, :, head // 2])
                )
                scores = (q @ k.T / 8**0.5).masked_fill(torch.ones(end - start, end - start).triu(1).bool(), -torch.inf)
                out[row, start:end, head] = scores.softmax(-1) @ v
    return out


def test_layout_restarts_positions() -> None:
    layout = lay_out([[0, 3, 4], [0]], batch(6), torch.float32)
    assert layout.positions_BT.tolist() == [[0, 1, 2, 0, 0, 1], [0, 1, 2, 3, 4, 5]]
    assert layout.mask_B1TT is not None
    assert layout.mask_B1TT[0, 0].isfinite().int().tolist() == [
        [1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 1, 1],
    ]  # fmt: skip


def test_kernel_follows_length() -> None:
    dense, long = (
        lay_out(STARTS, batch(length), torch.float32) for length in (LONGEST_DENSE_MASK, LONGEST_DENSE_MASK + 1)
    )
    assert dense.mask_B1TT is not None
    assert dense.document_lengths is None
    assert long.mask_B1TT is None
    assert long.document_lengths == [3, 1, 36, 473, 513]


def test_several_documents_are_attended_to_one_by_one_and_tiny_ones_together() -> None:
    """Less than half of the squares of the rows is theirs: most of a mask would be waste."""
    assert lay_out([[*range(0, 64, 8)]] * 2, batch(64), torch.float32).mask_B1TT is not None
    many = lay_out([[0, 20, 40], [0, 30]], batch(64), torch.bfloat16)
    assert many.mask_B1TT is None
    assert many.document_lengths == [20, 20, 24, 30, 34]
    inputs = projections(64, torch.bfloat16)
    wanted = plain_attention(*inputs, [[0, 20, 40], [0, 30]])
    out = attend(*inputs, many)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), wanted, rtol=0, atol=2e-2)


def test_no_starts_is_one_document_per_row() -> None:
    assert lay_out(None, batch(600), torch.float32).is_row_each
    assert lay_out([[], [0]], batch(600), torch.float32).is_row_each
    assert not lay_out([[0, 300], [0]], batch(600), torch.float32).is_row_each


@pytest.mark.parametrize("starts", [[[0]], [[1], [0]], [[0, 5, 5], [0]], [[0, 9], [0]], [[0, 5, 3], [0]]])
def test_wrong_starts_are_refused(starts: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="document_starts"):
        lay_out(starts, batch(9), torch.float32)


@pytest.mark.parametrize("starts", [STARTS, [[0], [0]]], ids=["several documents", "one a row"])
@pytest.mark.parametrize(
    ("length", "dtype", "tolerance"),
    [(64, torch.float32, 1e-6), (600, torch.float32, 1e-6), (64, torch.bfloat16, 2e-2), (600, torch.bfloat16, 2e-2)],
)
def test_equals_plain_attention(length: int, dtype: torch.dtype, tolerance: float, starts: list[list[int]]) -> None:
    q, k, v = projections(length, dtype)
    out = attend(q, k, v, lay_out(starts, batch(length), dtype))
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), plain_attention(q, k, v, starts), rtol=0, atol=tolerance)


def test_both_cpu_paths_agree_in_gradients() -> None:
    dense = lay_out(STARTS, batch(64), torch.float32)
    each = Layout(dense.positions_BT, document_lengths=[3, 1, 36, 24, 64])
    grads = []
    for layout in (dense, each):
        inputs = [x.requires_grad_() for x in projections(64)]
        grads.append(torch.autograd.grad(attend(inputs[0], inputs[1], inputs[2], layout).square().sum(), inputs))
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the variable-length kernel needs CUDA")
def test_variable_length_kernel_on_cuda() -> None:
    q, k, v = (x.cuda() for x in projections(600, torch.bfloat16))
    layout = lay_out(STARTS, batch(600).cuda(), torch.bfloat16)
    assert layout.boundaries is not None
    wanted = plain_attention(q.cpu(), k.cpu(), v.cpu(), STARTS)
    torch.testing.assert_close(attend(q, k, v, layout).cpu().double(), wanted, rtol=0, atol=2e-2)
