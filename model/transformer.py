"""The decoder-only transformer, as one would write it for one device: pre-norm blocks of attention and a gated MLP.

Choices: RMSNorm (no mean, no bias); RoPE on queries and keys, positions restarting with each document; grouped-query
attention; SwiGLU; no biases; the output matrix tied to the embedding by default; q, k, v and gate, up are one matrix
each (fewer, longer products). First values: `initialization.py`; sharding, compilation: `distribute.py`.

Weights may be fp32 masters while the computation is bf16: every layer casts its weight to the type of its input, so
`compute_dtype` alone decides. Under FSDP the gathered weight has that type already and the cast does nothing.

Shapes: B batch, T time, D width, N query heads, K key-value heads, H head width, F MLP width, V vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from model.attention import DocumentStarts, Layout, attend, lay_out
from model.config import ModelConfig
from model.loss import TokenLosses, token_losses
from model.positions import rope_tables, rotate


class Transformer(nn.Module):
    """Token ids in, logits or losses out.

    `compute_dtype` and `rope_base` are settings of the run and of the phase, not weights: set them at any time.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.rope_base = config.rope_base
        self.compute_dtype = torch.float32
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config)
        self.head = None if config.tie_embeddings else Linear(config.width, config.vocab_size)

    def forward(
        self,
        ids_BT: Tensor,
        document_starts: DocumentStarts | None = None,
        targets_BT: Tensor | None = None,
        z_weight: float = 0.0,
    ) -> Tensor | TokenLosses:
        """Logits (B, T, V) in fp32; given targets (-100 = none), the losses of each token without whole logits."""
        layout = lay_out(document_starts, ids_BT, self.compute_dtype)
        cos_TH, sin_TH = rope_tables(ids_BT.shape[1], self.config.head_width, self.rope_base, ids_BT.device)
        turns = cos_TH[layout.positions_BT], sin_TH[layout.positions_BT]
        x_BTD = self.embedding(ids_BT).to(self.compute_dtype)
        for block in self.blocks:
            x_BTD = block(x_BTD, turns, layout)
        x_BTD = self.norm(x_BTD)
        weight_VD = self.embedding.weight if self.head is None else self.head.weight
        if targets_BT is None:
            return F.linear(x_BTD, weight_VD.to(x_BTD.dtype)).float()
        return token_losses(x_BTD, weight_VD, targets_BT, z_weight)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.recompute = False  # activation checkpointing: keep the block's input, compute the rest again in backward
        self.attention_norm = RMSNorm(config)
        self.attention = Attention(config)
        self.mlp_norm = RMSNorm(config)
        self.mlp = MLP(config)

    def forward(self, x_BTD: Tensor, turns: tuple[Tensor, Tensor], layout: Layout) -> Tensor:
        """One residual step; `turns` are the cosines and sines at each token's position."""
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(self._transform, x_BTD, turns, layout, use_reentrant=False)
        return self._transform(x_BTD, turns, layout)

    def _transform(self, x_BTD: Tensor, turns: tuple[Tensor, Tensor], layout: Layout) -> Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), turns, layout)
        return x_BTD + self.mlp(self.mlp_norm(x_BTD))


class Attention(nn.Module):
    """Grouped-query attention; `qkv` holds the rows of all query heads, then key heads, then value heads."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.num_heads, config.num_kv_heads, config.num_kv_heads
        self.head_width = config.head_width
        self.qkv = Linear(config.width, sum(self.heads) * config.head_width)
        self.output = Linear(config.width, config.width)

    def forward(self, x_BTD: Tensor, turns: tuple[Tensor, Tensor], layout: Layout) -> Tensor:
        """Mixes each token with the earlier ones of its document."""
        heads, kv_heads, _ = self.heads
        qkv_BTNH = self.qkv(x_BTD).unflatten(-1, (-1, self.head_width))
        qk_BTNH, v_BTKH = qkv_BTNH.split((heads + kv_heads, kv_heads), dim=2)
        q_BTNH, k_BTKH = rotate(qk_BTNH, *turns).split((heads, kv_heads), dim=2)
        return self.output(attend(q_BTNH, k_BTKH, v_BTKH, layout).flatten(2))


class MLP(nn.Module):
    """SwiGLU (arXiv 2002.05202): down(silu(gate(x)) * up(x)); `gate_up` holds the rows of gate, then of up."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up = Linear(config.width, 2 * config.mlp_width)
        self.down = Linear(config.mlp_width, config.width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Each token by itself."""
        gate_BTF, up_BTF = self.gate_up(x_BTD).chunk(2, dim=-1)
        return self.down(F.silu(gate_BTF) * up_BTF)


class Linear(nn.Linear):
    """Without bias, in the type of its input."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        """x W^T."""
        return F.linear(input, self.weight.to(input.dtype))


class RMSNorm(nn.Module):
    """x / rms(x) * weight (arXiv 1910.07467)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.width))
        self.eps = config.norm_eps

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Normalises the last dimension; the mean square is taken in fp32."""
        return F.rms_norm(x_BTD, self.weight.shape, self.weight.to(x_BTD.dtype), self.eps)
