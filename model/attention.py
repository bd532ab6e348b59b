"""Causal attention inside documents: a token sees itself and the earlier tokens of its own document, nothing else.

A row of a pack holds several documents; `document_starts` says where each begins. What the kernels need is derived
from it once per forward pass (`lay_out`) and shared by all blocks:

| device | kernel |
|---|---|
| CPU, CUDA in fp32 or with dropout: each row one document | one causal call |
| CPU, up to 512 tokens: few or tiny documents | one call with an additive mask of B x T x T floats |
| CPU else; CUDA in fp32 or with dropout | one causal call per document: cost does not grow with T squared |
| CUDA in bf16 | torch's variable-length flash attention over all documents of the batch end to end |

Few: their squares fill more than half of B x T x T; tiny: under 16 tokens on average, where calls cost more than a mask
wastes (measured: 0.4 to 0.8 of its time for 2 to 10 documents a row, twice that for 40 in a row of 256). On the CPU a
document of up to 512 tokens by itself is computed in fp32 whatever the type: torch's bf16 kernel takes twice as long
there. Masked weights are exactly 0 and tokens are rows of their own in every matrix product, so changing one document
leaves the logits of the others unchanged to the bit.

Shapes: B batch, T time, D width, N query heads, K key-value heads, H head width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

LONGEST_DENSE_MASK = 512  # tokens; at 512 a mask of 16 rows in fp32 is 16 MB, and it grows with the square
TINY_DOCUMENT = 16  # tokens

DocumentStarts = Sequence[Sequence[int]]  # per row: ascending positions, the first one 0


@dataclass(frozen=True)
class Layout:
    """Where the documents of a batch lie, as the chosen kernel wants it; exactly one of the last four is set."""

    positions_BT: Tensor
    valid_BT: Tensor | None = None  # tokens that count in the losses of a router; None: all
    is_row_each: bool = False
    mask_B1TT: Tensor | None = None
    document_lengths: list[int] | None = None
    boundaries: Tensor | None = None


def lay_out(
    document_starts: DocumentStarts | None, like_BT: Tensor, dtype: torch.dtype, *, drops: bool = False
) -> Layout:
    """The layout of a batch of the shape and device of `like_BT`. Without starts each row is one document.

    drops: attention weights will be dropped, which the variable-length kernel can't
    """
    rows, length = like_BT.shape
    starts = [[0]] * rows if document_starts is None else [list(row) or [0] for row in document_starts]
    _check_starts(starts, rows, length)
    flat = torch.tensor([row * length + start for row in range(rows) for start in starts[row]])
    sizes = torch.diff(flat, append=torch.tensor([rows * length]))
    first = torch.repeat_interleave(flat, sizes).view(rows, length)
    positions = (torch.arange(rows * length).view(rows, length) - first).to(like_BT.device)
    if like_BT.device.type == "cuda" and dtype in (torch.bfloat16, torch.float16) and not drops:
        return Layout(positions, boundaries=_boundaries(flat, rows * length).to(like_BT.device))
    if len(sizes) == rows:
        return Layout(positions, is_row_each=True)
    are_few = 2 * int(sizes.square().sum()) > rows * length**2
    are_tiny = rows * length < TINY_DOCUMENT * len(sizes)
    if like_BT.device.type == "cpu" and length <= LONGEST_DENSE_MASK and (are_few or are_tiny):
        allowed = (first[:, :, None] == first[:, None, :]).tril()
        mask = torch.zeros(allowed.shape, dtype=dtype).masked_fill_(allowed.logical_not_(), float("-inf"))
        return Layout(positions, mask_B1TT=mask[:, None])
    return Layout(positions, document_lengths=sizes.tolist())


def attend(q_BTNH: Tensor, k_BTKH: Tensor, v_BTKH: Tensor, layout: Layout, dropout: float = 0.0) -> Tensor:
    """softmax(q k / sqrt(H)) v within documents; query heads share key-value heads in groups of N / K.

    dropout: share of the weights that become 0 (the rest grows to match)
    """
    if layout.boundaries is not None:
        return _attend_varlen(q_BTNH, k_BTKH, v_BTKH, layout.boundaries)
    if layout.mask_B1TT is None and not layout.is_row_each:
        return _attend_each_document(q_BTNH, k_BTKH, v_BTKH, layout, dropout)
    q, k, v = (x.transpose(1, 2) for x in (q_BTNH, k_BTKH, v_BTKH))
    out = F.scaled_dot_product_attention(q, k, v, layout.mask_B1TT, dropout, layout.is_row_each, enable_gqa=True)
    return out.transpose(1, 2)


def _attend_varlen(q_BTNH: Tensor, k_BTKH: Tensor, v_BTKH: Tensor, boundaries: Tensor) -> Tensor:
    q, k, v = (x.flatten(0, 1) for x in (q_BTNH, k_BTKH, v_BTKH))
    longest = q_BTNH.shape[1]  # an upper bound: the true maximum would make a compiled block recompile per batch
    out = varlen_attn(q, k, v, boundaries, boundaries, longest, longest, window_size=(-1, 0), enable_gqa=True)
    assert isinstance(out, Tensor)  # a tuple comes back only with return_aux
    return out.view_as(q_BTNH)


@torch.compiler.disable  # the loop differs per batch; compiled, every batch would compile it anew
def _attend_each_document(q_BTNH: Tensor, k_BTKH: Tensor, v_BTKH: Tensor, layout: Layout, dropout: float) -> Tensor:
    assert layout.document_lengths is not None
    # split, not slices: the gradient of a slice is a zero tensor of the whole batch
    end_to_end = (x.flatten(0, 1).transpose(0, 1)[None] for x in (q_BTNH, k_BTKH, v_BTKH))
    documents = zip(*(x.split(layout.document_lengths, 2) for x in end_to_end), strict=True)
    outputs = [_attend_document(q, k, v, dropout) for q, k, v in documents]
    return torch.cat(outputs, 2)[0].transpose(0, 1).view_as(q_BTNH)


def _attend_document(q_1NTH: Tensor, k_1KTH: Tensor, v_1KTH: Tensor, dropout: float) -> Tensor:
    exact = q_1NTH.device.type == "cpu" and q_1NTH.shape[2] <= LONGEST_DENSE_MASK
    q, k, v = (x.float() if exact else x for x in (q_1NTH, k_1KTH, v_1KTH))
    out = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, enable_gqa=True)
    return out.to(q_1NTH.dtype)


def _boundaries(flat_starts: Tensor, total: int) -> Tensor:
    """Cumulative lengths, filled up with empty documents to a power of two: few shapes to compile."""
    size = 1 << len(flat_starts).bit_length()
    boundaries = torch.full((size + 1,), total, dtype=torch.int32)
    boundaries[: len(flat_starts)] = flat_starts
    return boundaries


def _check_starts(starts: list[list[int]], rows: int, length: int) -> None:
    if len(starts) != rows:
        raise ValueError(f"document_starts has {len(starts)} rows, the batch has {rows}")
    for row, row_starts in enumerate(starts):
        ascending = all(a < b for a, b in pairwise(row_starts))
        if row_starts[0] != 0 or row_starts[-1] >= length or not ascending:
            raise ValueError(f"document_starts of row {row} must ascend from 0 below {length}, got {row_starts[:8]}")
