"""The decoder-only transformer, as one would write it for one device: pre-norm blocks of attention and MLP or experts.

Positions restart with each document, whatever their kind. q, k, v are one matrix, and so are gate and up (fewer, longer
products); the output matrix is tied to the embedding by default. First values: `initialization.py`; experts:
`experts.py`; sharding, compilation: `distribute.py`.

Weights may be fp32 masters while the computation is bf16: every layer casts its weight to the type of its input, so
`compute_dtype` alone decides. Under FSDP the gathered weight has that type already and the cast does nothing.

Shapes: B batch, T time, D width, N query heads, K key-value heads, H head width, F MLP width, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from model.architecture import ModelConfig
from model.attention import DocumentStarts, Layout, attend, lay_out
from model.experts import Experts, Routing
from model.loss import IGNORED, TokenLosses, token_losses
from model.positions import rope_tables, rotate, sinusoids

Turns = tuple[Tensor, Tensor] | None  # cosines and sines at each token's position, with RoPE


class Transformer(nn.Module):
    """Token ids in, logits or losses out.

    `compute_dtype` and `rope_base` are settings of the run and of the phase, not weights: set them at any time.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.rope_base = config.rope_base
        self.compute_dtype = torch.float32
        self.embedding = nn.Embedding(config.vocab_rows, config.width)
        learned = config.positions == "learned"
        self.position_embedding = nn.Embedding(config.max_positions, config.width) if learned else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = norm_of(config)
        self.head = None if config.tie_embeddings else Linear(config.width, config.vocab_rows)

    def forward(
        self,
        ids_BT: Tensor,
        document_starts: DocumentStarts | None = None,
        targets_BT: Tensor | None = None,
        z_weight: float = 0.0,
    ) -> Tensor | TokenLosses:
        """Logits (B, T, V) in fp32; given targets (-100 = none), the losses of each token without whole logits.

        Padded rows of the vocabulary have no logits and no probability. With experts, `objective` holds their losses.
        """
        config = self.config
        config.check_length(ids_BT.shape[1])
        drops = self.training and config.dropout > 0
        layout = lay_out(document_starts, ids_BT, self.compute_dtype, drops=drops)
        if config.experts is not None and targets_BT is not None:
            layout = replace(layout, valid_BT=targets_BT != IGNORED)
        x_BTD, turns = self._embed(ids_BT, layout.positions_BT)
        routings: list[Routing] = []
        for block in self.blocks:
            x_BTD, routing = block(x_BTD, turns, layout)
            routings += [] if routing is None else [routing]
        x_BTD = self.norm(x_BTD)
        weight_VD = self.output_matrix
        if targets_BT is None:
            return F.linear(x_BTD, weight_VD.to(x_BTD.dtype)).float()[..., : config.vocab_size]
        padded_from = config.vocab_size if config.vocab_size < config.vocab_rows else None
        losses = token_losses(x_BTD, weight_VD, targets_BT, z_weight, padded_from)
        return _with_routing(losses, routings, config) if routings else losses

    @property
    def output_matrix(self) -> Tensor:
        """(V, D): the embedding, or an untied head; rows of the vocabulary's padding included."""
        return self.embedding.weight if self.head is None else self.head.weight

    def _embed(self, ids_BT: Tensor, positions_BT: Tensor) -> tuple[Tensor, Turns]:
        config, turns = self.config, None
        x_BTD = self.embedding(ids_BT).to(self.compute_dtype)
        if config.positions == "rope":
            cos_TH, sin_TH = rope_tables(ids_BT.shape[1], config.head_width, self.rope_base, ids_BT.device)
            turns = cos_TH[positions_BT], sin_TH[positions_BT]
        elif self.position_embedding is not None:
            x_BTD = x_BTD + self.position_embedding(positions_BT).to(x_BTD.dtype)
        else:  # scaled as in 1706.03762, else the sines, of size 1, would drown embeddings of 0.02
            table_TD = sinusoids(ids_BT.shape[1], config.width, ids_BT.device)
            x_BTD = (x_BTD * config.width**0.5 + table_TD[positions_BT]).to(x_BTD.dtype)
        return _drop(x_BTD, config.dropout, self.training), turns


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); beside x, what a router did."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.recompute = False  # activation checkpointing: keep the block's input, compute the rest again in backward
        self.dropout = config.dropout
        self.attention_norm = norm_of(config)
        self.attention = Attention(config)
        self.mlp_norm = norm_of(config)
        self.mlp = Experts(config) if config.experts else MLP(config)

    def forward(self, x_BTD: Tensor, turns: Turns, layout: Layout) -> tuple[Tensor, Routing | None]:
        """One residual step; `turns` are the cosines and sines at each token's position, None without RoPE."""
        if self.recompute and torch.is_grad_enabled():
            result: tuple[Tensor, Routing | None] = checkpoint(
                self._transform, x_BTD, turns, layout, use_reentrant=False
            )
            return result
        return self._transform(x_BTD, turns, layout)

    def _transform(self, x_BTD: Tensor, turns: Turns, layout: Layout) -> tuple[Tensor, Routing | None]:
        attended_BTD = self.attention(self.attention_norm(x_BTD), turns, layout)
        x_BTD = x_BTD + _drop(attended_BTD, self.dropout, self.training)
        routing = None
        if isinstance(self.mlp, Experts):
            out_BTD, routing = self.mlp(self.mlp_norm(x_BTD), layout.valid_BT)
        else:
            out_BTD = self.mlp(self.mlp_norm(x_BTD))
        return x_BTD + _drop(out_BTD, self.dropout, self.training), routing


class Attention(nn.Module):
    """Grouped-query attention; `qkv` holds the rows of all query heads, then key heads, then value heads."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.num_heads, config.num_kv_heads, config.num_kv_heads
        self.head_width, self.dropout = config.head_width, config.dropout
        self.qkv = Linear(config.width, sum(self.heads) * config.head_width, config.biases)
        self.query_norm, self.key_norm = (
            RMSNorm(config.head_width, config.norm_eps) if config.qk_norm else None for _ in range(2)
        )
        self.output = Linear(config.num_heads * config.head_width, config.width, config.biases)

    def forward(self, x_BTD: Tensor, turns: Turns, layout: Layout) -> Tensor:
        """Mixes each token with the earlier ones of its document."""
        parts = self.qkv.parts(x_BTD, [heads * self.head_width for heads in self.heads])
        q_BTNH, k_BTKH, v_BTKH = (part.unflatten(-1, (-1, self.head_width)) for part in parts)
        if self.query_norm is not None and self.key_norm is not None:
            q_BTNH, k_BTKH = self.query_norm(q_BTNH), self.key_norm(k_BTKH)
        if turns is not None:
            q_BTNH, k_BTKH = rotate(q_BTNH, *turns), rotate(k_BTKH, *turns)
        dropout = self.dropout if self.training else 0.0
        return self.output(attend(q_BTNH, k_BTKH, v_BTKH, layout, dropout).flatten(2))


class MLP(nn.Module):
    """SwiGLU (arXiv 2002.05202): down(silu(gate(x)) * up(x)), `gate_up` holds the rows of gate, then of up.

    GELU (tanh form, as GPT-2) and ReLU have no gate: down(activation(up(x))).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = config.activation
        if self.activation == "swiglu":
            self.gate_up = Linear(config.width, 2 * config.mlp_width, config.biases)
        else:
            self.up = Linear(config.width, config.mlp_width, config.biases)
        self.down = Linear(config.mlp_width, config.width, config.biases)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Each token by itself."""
        if self.activation == "swiglu":
            gate_BTF, up_BTF = self.gate_up.parts(x_BTD, 2 * [self.down.in_features])
            return self.down(F.silu(gate_BTF) * up_BTF)
        up_BTF = self.up(x_BTD)
        return self.down(F.relu(up_BTF) if self.activation == "relu" else F.gelu(up_BTF, approximate="tanh"))


class Linear(nn.Linear):
    """In the type of its input."""

    def __init__(self, inputs: int, outputs: int, bias: bool = False) -> None:
        super().__init__(inputs, outputs, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        """x W^T + b."""
        return F.linear(input, self.weight.to(input.dtype), None if self.bias is None else self.bias.to(input.dtype))

    def parts(self, input: Tensor, sizes: list[int]) -> list[Tensor]:
        """The same in parts of these widths, a product each: backward need not join their gradients by a copy."""
        weights = self.weight.to(input.dtype).split(sizes)
        biases = [None] * len(sizes) if self.bias is None else self.bias.to(input.dtype).split(sizes)
        return [F.linear(input, weight, bias) for weight, bias in zip(weights, biases, strict=True)]


class RMSNorm(nn.Module):
    """x / rms(x) * weight (arXiv 1910.07467)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Normalises the last dimension; the mean square is taken in fp32."""
        return F.rms_norm(x_BTD, self.weight.shape, self.weight.to(x_BTD.dtype), self.eps)


class LayerNorm(RMSNorm):
    """(x - mean(x)) / deviation(x) * weight + bias (arXiv 1607.06450)."""

    def __init__(self, width: int, eps: float, bias: bool) -> None:
        super().__init__(width, eps)
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Normalises the last dimension."""
        bias_D = None if self.bias is None else self.bias.to(x_BTD.dtype)
        return F.layer_norm(x_BTD, self.weight.shape, self.weight.to(x_BTD.dtype), bias_D, self.eps)


def norm_of(config: ModelConfig) -> RMSNorm:
    """A norm of the residual stream."""
    if config.norm == "layer":
        return LayerNorm(config.width, config.norm_eps, config.biases)
    return RMSNorm(config.width, config.norm_eps)


def _drop(x_BTD: Tensor, dropout: float, training: bool) -> Tensor:
    return F.dropout(x_BTD, dropout, training) if dropout else x_BTD


def _with_routing(losses: TokenLosses, routings: Sequence[Routing], config: ModelConfig) -> TokenLosses:
    """Adds the means of the layers' losses: their weights then hold for any depth."""
    assert config.experts is not None
    balance = torch.stack([routing.balance for routing in routings]).mean()
    z = torch.stack([routing.z for routing in routings]).mean()
    return losses._replace(
        objective=losses.objective + config.experts.balance_weight * balance + config.experts.router_z_weight * z,
        balance=balance.detach(),
        router_z=z.detach(),
        loads_LE=torch.stack([routing.loads_E for routing in routings]).detach(),
    )
