"""What a model costs: memory of a rank, bytes of a checkpoint, FLOPs per token. Formulas alone, no torch.

Exact are the states, counted parameter by parameter: fp32 weights, gradients and two moments, 16 bytes per parameter
(AdamW); FSDP gives rank 0 the first ceil(n / ranks) of the n rows of each tensor. Worked: the 131,392 parameters of
`tiny` are 2.1 MB on one rank and 1.05 MB on each of two.

Estimates, within 15 % of what was measured on the CPU: copies of the weights that are computed with, and what a
forward pass keeps for the backward one. Left out: the framework itself, temporaries, fragmentation.
"""

import math
from typing import Literal, NamedTuple

from model.architecture import ModelConfig
from model.config import PhaseRun

FP32_BYTES = 4
MOMENTS = 2
DENSE_LENGTH = 512  # up to here a CPU makes a mask of all pairs (model/attention.py)
COMPUTE_BYTES = {"bf16": 2, "fp32": 4}
# bf16 dense peak of one device, FLOP/s, by a part of the name that torch gives it (makers' data sheets, no sparsity)
PEAK_FLOPS = {
    "GB200": 2.5e15, "B200": 2.25e15, "H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12,
    "L40S": 362e12, "L4": 121e12, "RTX 4090": 165e12, "V100": 125e12, "MI300X": 1307e12,
}  # fmt: skip

Precision = Literal["bf16", "fp32"]


class StateBytes(NamedTuple):
    """What one rank holds from step to step."""

    weights: int
    gradients: int
    moments: int

    @property
    def total(self) -> int:
        """All three."""
        return sum(self)


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter, by the name that the model gives it."""
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (config.vocab_rows, config.width)}
    if config.positions == "learned":
        shapes["position_embedding.weight"] = (config.max_positions, config.width)
    for layer in range(config.num_layers):
        shapes |= {f"blocks.{layer}.{name}": shape for name, shape in _block_shapes(config).items()}
    shapes |= _norm_shapes(config, "norm")
    if not config.tie_embeddings:
        shapes["head.weight"] = (config.vocab_rows, config.width)
    return shapes


def state_bytes(config: ModelConfig, shard_ranks: int = 1) -> StateBytes:
    """fp32 weights, gradients and moments of rank 0, whose tensors are shared by `shard_ranks` ranks (1 with DDP)."""
    held = sum(
        -(-shape[0] // shard_ranks) * math.prod(shape[1:]) * FP32_BYTES for shape in parameter_shapes(config).values()
    )
    return StateBytes(held, held, MOMENTS * held)


def checkpoint_bytes(config: ModelConfig) -> int:
    """Tensors of a checkpoint: fp32 weights, moments, and the biases of a loss-free router."""
    biases = config.num_layers * config.experts.count if config.experts and config.experts.bias_rate else 0
    return FP32_BYTES * ((1 + MOMENTS) * config.num_parameters + biases)


def copies_bytes(config: ModelConfig, precision: Precision, shard_ranks: int = 1, *, on_cuda: bool = False) -> int:
    """Weights in the type that is computed with, beside the masters: none in fp32 on one rank.

    On CUDA sharded blocks are let go of after their use: two of them and the root are there at once.
    """
    if precision == "fp32" and shard_ranks == 1:
        return 0
    whole = config.num_parameters
    block = sum(math.prod(shape) for shape in _block_shapes(config).values())
    if on_cuda and shard_ranks > 1:
        whole -= max(0, config.num_layers - 2) * block
    return whole * COMPUTE_BYTES[precision]


def activation_bytes(
    config: ModelConfig, rows: int, length: int, precision: Precision, *, recompute: bool = False, on_cuda: bool = False
) -> int:
    """What the forward pass of `rows` rows keeps: inputs of norms and of matrix products, heads, gates, the mask.

    RMSNorm keeps its input and the normed one in fp32 on the CPU, its input alone on CUDA. With recomputation each
    block keeps its input, and one block at a time is there whole. The loss keeps the gradient of its input and, in
    fp32, that of the output matrix.
    """
    width, experts, size = config.width, config.experts, COMPUTE_BYTES[precision]
    heads, kv_heads = config.num_heads * config.head_width, config.num_kv_heads * config.head_width
    hidden = config.mlp_width * (4 if config.activation == "swiglu" else 2)
    expert = (3 if on_cuda else 4) * config.mlp_width + 2 * width  # the CPU's loop keeps silu(gate), too
    mlp = hidden if experts is None else experts.active * expert + width
    norm = 2 * width * FP32_BYTES if config.norm == "rms" and not on_cuda else width * size
    heads_norm = 2 * (heads + kv_heads) * FP32_BYTES if config.qk_norm else 0
    block = 2 * (norm + width * size) + heads_norm + (3 * heads + 3 * kv_heads + mlp) * size
    kept = config.num_layers * width * size + block if recompute else config.num_layers * block
    mask = length * size if length <= DENSE_LENGTH and not on_cuda else 0
    return rows * length * (kept + norm + width * size + mask) + config.vocab_rows * width * FP32_BYTES


def flops_per_token(config: ModelConfig, length: int) -> float:
    """Of forward and backward (PaLM, 2204.02311, appendix B): 6 N + 12 layers x heads x head width x length.

    N: active weights that are multiplied with; an embedding that is only looked up is none. Recomputation and the
    causal half are not counted, as in every MFU that is published.
    """
    looked_up = 0 if config.tie_embeddings else config.vocab_rows * config.width
    looked_up += config.max_positions * config.width if config.positions == "learned" else 0
    multiplied = config.num_active_parameters - looked_up
    return 6.0 * multiplied + 12.0 * config.num_layers * config.num_heads * config.head_width * length


def peak_flops(device: str) -> float | None:
    """Peak of a device by its name, in bf16; None where it is not known, as for a CPU."""
    return next((peak for name, peak in PEAK_FLOPS.items() if name in device), None)


def model_flops_utilisation(run: PhaseRun, tokens_per_second: float, device: str, ranks: int) -> float | None:
    """MFU: share of the peak of all devices that forward and backward use; None where the peak is not known.

    The peaks are those of bf16, so that training in fp32 has none.
    """
    peak = peak_flops(device) if run.precision == "bf16" else None
    return tokens_per_second * flops_per_token(run.model, run.phase.sequence_length) / (peak * ranks) if peak else None


def _block_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    width, inner, heads = config.width, config.mlp_width, config.num_heads
    rows = (heads + 2 * config.num_kv_heads) * config.head_width
    shapes = _norm_shapes(config, "attention_norm") | _norm_shapes(config, "mlp_norm")
    shapes |= _linear_shapes(config, "attention.qkv", rows, width)
    shapes |= _linear_shapes(config, "attention.output", width, heads * config.head_width)
    if config.qk_norm:
        shapes |= {f"attention.{name}_norm.weight": (config.head_width,) for name in ("query", "key")}
    if config.experts:
        count = config.experts.count
        shapes["mlp.router.weight"] = (count, width)
        shapes |= {"mlp.gate_up": (count, width, 2 * inner), "mlp.down": (count, inner, width)}
        return shapes
    first, outputs = ("mlp.gate_up", 2 * inner) if config.activation == "swiglu" else ("mlp.up", inner)
    return shapes | _linear_shapes(config, first, outputs, width) | _linear_shapes(config, "mlp.down", width, inner)


def _linear_shapes(config: ModelConfig, name: str, outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
    bias: dict[str, tuple[int, ...]] = {f"{name}.bias": (outputs,)} if config.biases else {}
    return {f"{name}.weight": (outputs, inputs)} | bias


def _norm_shapes(config: ModelConfig, name: str) -> dict[str, tuple[int, ...]]:
    has_bias = config.norm == "layer" and config.biases
    return {f"{name}.{part}": (config.width,) for part in ("weight", *(["bias"] if has_bias else []))}
