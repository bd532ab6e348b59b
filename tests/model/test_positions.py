"""RoPE: exact angles, the layout of transformers, fp32 tables, gradients."""

import math

import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from model.positions import rope_tables, rotate

CPU = torch.device("cpu")


def test_angles_follow_the_formula() -> None:
    cos_TH, sin_TH = rope_tables(2000, 8, 10_000.0, CPU)
    for position, feature in [(0, 0), (1, 0), (100, 1), (1999, 3), (1500, 2)]:
        angle = position / 10_000 ** (2 * feature / 8)
        assert cos_TH[position, feature].item() == pytest.approx(math.cos(angle), abs=2e-4)
        assert sin_TH[position, feature].item() == pytest.approx(math.sin(angle), abs=2e-4)


def test_docstring_example() -> None:
    cos_TH, _ = rope_tables(101, 4, 10_000.0, CPU)
    assert cos_TH[100].tolist() == pytest.approx([math.cos(100), math.cos(1)], abs=1e-5)


def test_tables_are_fp32_so_that_far_positions_differ() -> None:
    cos_TH, sin_TH = rope_tables(4096, 64, 10_000.0, CPU)
    assert cos_TH.dtype == sin_TH.dtype == torch.float32
    assert len({tuple(row) for row in torch.cat((cos_TH, sin_TH), 1)[3800:].tolist()}) == 296


def test_base_changes_slow_features_only() -> None:
    short, long = (rope_tables(64, 16, base, CPU)[0] for base in (10_000.0, 500_000.0))
    assert torch.equal(short[:, 0], long[:, 0])
    assert not torch.equal(short[:, 7], long[:, 7])


def turns(positions: list[list[int]], head_width: int) -> tuple[torch.Tensor, torch.Tensor]:
    cos_TH, sin_TH = rope_tables(64, head_width, 10_000.0, CPU)
    return cos_TH[torch.tensor(positions)], sin_TH[torch.tensor(positions)]


def test_rotation_equals_transformers() -> None:
    torch.manual_seed(0)
    q_BTNH, k_BTKH = torch.randn(2, 5, 4, 8), torch.randn(2, 5, 2, 8)
    cos, sin = turns([[0, 1, 2, 0, 1], [0, 1, 2, 3, 4]], 8)
    whole = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
    wanted = apply_rotary_pos_emb(q_BTNH.transpose(1, 2), k_BTKH.transpose(1, 2), *whole)
    for ours, theirs in zip((rotate(q_BTNH, cos, sin), rotate(k_BTKH, cos, sin)), wanted, strict=True):
        torch.testing.assert_close(ours, theirs.transpose(1, 2), rtol=0, atol=1e-6)


def test_products_depend_on_distance_alone() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)
    products = [
        (rotate(q, *turns([[a]], 8)) * rotate(k, *turns([[b]], 8))).sum().item()
        for a, b in [(3, 1), (33, 31), (60, 58)]
    ]
    assert products == pytest.approx([products[0]] * 3, abs=1e-5)


def test_gradient_is_that_of_the_formula() -> None:
    torch.manual_seed(0)
    x_BTNH = torch.randn(2, 3, 2, 8, requires_grad=True)
    upstream = torch.randn(2, 3, 2, 8)
    cos, sin = turns([[0, 1, 2], [5, 6, 7]], 8)
    [ours] = torch.autograd.grad(rotate(x_BTNH, cos, sin), x_BTNH, upstream)
    first, second = x_BTNH.chunk(2, -1)
    c, s = cos[:, :, None], sin[:, :, None]
    plain = torch.cat((first * c - second * s, second * c + first * s), -1)
    [wanted] = torch.autograd.grad(plain, x_BTNH, upstream)
    torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-6)


def test_bf16_is_rounded_once() -> None:
    torch.manual_seed(0)
    x_BTNH = torch.randn(1, 4, 2, 8).bfloat16()
    cos, sin = turns([[0, 17, 40, 63]], 8)
    turned = rotate(x_BTNH, cos, sin)
    assert turned.dtype == torch.bfloat16
    assert torch.equal(turned, rotate(x_BTNH.float(), cos, sin).bfloat16())
