"""Our weights in the shapes that transformers knows, and back.

| needs | shape |
|---|---|
| RoPE, RMSNorm, SwiGLU, no biases | Llama |

Fused matrices are cut into theirs (q, k, v; gate, up) and joined again, so export after import returns the same
tensors. RoPE is half-split on both sides: no rows are permuted. An export holds config.json, generation_config.json,
safetensors in pieces of at most MAX_SHARD_SIZE, and the tokenizer as AutoTokenizer loads it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from model.config import ModelConfig

MAX_SHARD_SIZE = "5GB"  # what hubs and downloads handle well
BLOCK = re.compile(r"blocks\.(\d+)\.(.+)")

# Ours -> theirs, inside a block and outside of it. Several names: the rows of our matrix, cut in this order.
LLAMA_BLOCK = {
    "attention_norm.weight": ("input_layernorm.weight",),
    "attention.qkv.weight": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "attention.output.weight": ("self_attn.o_proj.weight",),
    "mlp_norm.weight": ("post_attention_layernorm.weight",),
    "mlp.gate_up.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "mlp.down.weight": ("mlp.down_proj.weight",),
}
LLAMA_MODEL = {
    "embedding.weight": ("model.embed_tokens.weight",),
    "norm.weight": ("model.norm.weight",),
    "head.weight": ("lm_head.weight",),
}


@dataclass(frozen=True)
class SpecialIds:
    """What a generation needs to know of the tokenizer: texts and ids of its special tokens."""

    bos: tuple[str, int]
    eos: tuple[str, int]
    pad: tuple[str, int]


def to_llama(config: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our weights under transformers' names."""
    theirs: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        names = _llama_names(name)
        theirs |= zip(names, tensor.split(_rows(config, name, tensor.shape[0])), strict=True)
    return theirs


def from_llama(config: ModelConfig, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a Llama checkpoint under our names. Raises KeyError when one is missing."""
    return {name: torch.cat([theirs[their] for their in _llama_names(name)]) for name in _our_names(config)}


def llama_config(config: ModelConfig, max_positions: int, rope_base: float) -> LlamaConfig:
    """The same shape in transformers' words."""
    return LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.width,
        intermediate_size=config.mlp_width,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_width,
        rms_norm_eps=config.norm_eps,
        max_position_embeddings=max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": rope_base},
        tie_word_embeddings=config.tie_embeddings,
        attention_bias=False,
        mlp_bias=False,
        bos_token_id=None,
        eos_token_id=None,
    )


def read_llama_config(theirs: LlamaConfig) -> ModelConfig:
    """Our config for a Llama checkpoint. Raises ValueError for a variant that we do not have."""
    rope = theirs.rope_parameters or {}
    unknown = {
        "rope_type": (rope.get("rope_type", "default"), "default"),
        "attention_bias": (theirs.attention_bias, False),
        "mlp_bias": (theirs.mlp_bias, False),
        "hidden_act": (theirs.hidden_act, "silu"),
        "head_dim": (theirs.head_dim, theirs.hidden_size // theirs.num_attention_heads),
    }
    for name, (got, wanted) in unknown.items():
        if got != wanted:
            raise ValueError(f"config.json: {name} is {got!r}, only {wanted!r} can be imported")
    return ModelConfig(
        num_layers=theirs.num_hidden_layers,
        width=theirs.hidden_size,
        num_heads=theirs.num_attention_heads,
        num_kv_heads=theirs.num_key_value_heads,
        mlp_width=theirs.intermediate_size,
        vocab_size=theirs.vocab_size,
        norm_eps=theirs.rms_norm_eps,
        rope_base=rope.get("rope_theta", 10_000.0),
        tie_embeddings=theirs.tie_word_embeddings,
    )


def build_llama(
    config: ModelConfig, weights: Mapping[str, Tensor], max_positions: int, rope_base: float
) -> LlamaForCausalLM:
    """transformers' own model with our weights, ready to run or to save."""
    theirs = to_llama(config, weights)
    if config.tie_embeddings:
        theirs["lm_head.weight"] = theirs["model.embed_tokens.weight"]
    dtype = theirs["model.norm.weight"].dtype
    llama = LlamaForCausalLM(llama_config(config, max_positions, rope_base)).to(dtype)
    llama.load_state_dict(theirs, strict=True)
    return llama.eval()


def save_llama(llama: LlamaForCausalLM, folder: Path, tokenizer_file: Path, special: SpecialIds) -> None:
    """Everything that `AutoModelForCausalLM` and `AutoTokenizer` need, in one folder."""
    ids = {"bos_token_id": special.bos[1], "eos_token_id": special.eos[1], "pad_token_id": special.pad[1]}
    for name, value in ids.items():
        setattr(llama.config, name, value)
    llama.generation_config = GenerationConfig(do_sample=True, **ids)
    llama.save_pretrained(folder, max_shard_size=MAX_SHARD_SIZE)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer_file),
        bos_token=special.bos[0],
        eos_token=special.eos[0],
        pad_token=special.pad[0],
        model_max_length=llama.config.max_position_embeddings,
        clean_up_tokenization_spaces=False,  # "don 't" stays as it is: decoding must give the text back
    )
    tokenizer.save_pretrained(folder)


def trim_vocabulary(
    config: ModelConfig, weights: Mapping[str, Tensor], size: int
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The model without the embedding rows above the tokenizer's `size`, which stand for no token."""
    trimmed = dict(weights)
    for name in ("embedding.weight", "head.weight"):
        if name in trimmed:
            trimmed[name] = trimmed[name][:size]
    return config.model_copy(update={"vocab_size": min(size, config.vocab_size)}), trimmed


def _llama_names(name: str) -> tuple[str, ...]:
    if match := BLOCK.fullmatch(name):
        return tuple(f"model.layers.{match.group(1)}.{their}" for their in LLAMA_BLOCK[match.group(2)])
    return LLAMA_MODEL[name]


def _our_names(config: ModelConfig) -> list[str]:
    names = [f"blocks.{layer}.{name}" for layer in range(config.num_layers) for name in LLAMA_BLOCK]
    return names + [name for name in LLAMA_MODEL if name != "head.weight" or not config.tie_embeddings]


def _rows(config: ModelConfig, name: str, rows: int) -> list[int]:
    """How many rows of our matrix go to each of theirs."""
    if name.endswith("qkv.weight"):
        return [config.head_width * heads for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
    return [config.mlp_width] * 2 if name.endswith("gate_up.weight") else [rows]
