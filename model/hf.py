"""Our weights in the shapes that transformers knows (`shapes.py` says which), and back.

Fused matrices are cut into theirs (q, k, v; gate, up) and joined again, GPT-2's and the experts' are turned over, so
export after import returns the same tensors. RoPE is half-split on both sides: no rows are permuted. An export holds
config.json, generation_config.json, safetensors, and the tokenizer as AutoTokenizer
loads it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from model.architecture import ModelConfig
from model.shapes import shape_of

BLOCK = re.compile(r"blocks\.(\d+)\.(.+)")
TURNED = "turned:"  # before a name: theirs is (in, out) where ours is (out, in), or the other way round

# Ours -> theirs, inside a block and outside of it. Several names: the rows of our matrix, cut in this order.
ATTENTION = {
    "attention_norm.weight": ("input_layernorm.weight",),
    "attention.qkv.weight": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "attention.output.weight": ("self_attn.o_proj.weight",),
    "mlp_norm.weight": ("post_attention_layernorm.weight",),
}
QK_NORM = {
    "attention.query_norm.weight": ("self_attn.q_norm.weight",),
    "attention.key_norm.weight": ("self_attn.k_norm.weight",),
}
DENSE = {
    "mlp.gate_up.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "mlp.down.weight": ("mlp.down_proj.weight",),
}
EXPERTS = {
    "mlp.router.weight": ("mlp.gate.weight",),
    "mlp.gate_up": (f"{TURNED}mlp.experts.gate_up_proj",),
    "mlp.down": (f"{TURNED}mlp.experts.down_proj",),
}
GPT2_BLOCK: dict[str, tuple[str, ...]] = {
    f"{our}.{kind}": (f"{TURNED if kind == 'weight' and 'norm' not in our else ''}{their}.{kind}",)
    for our, their in {
        "attention_norm": "ln_1",
        "attention.qkv": "attn.c_attn",
        "attention.output": "attn.c_proj",
        "mlp_norm": "ln_2",
        "mlp.up": "mlp.c_fc",
        "mlp.down": "mlp.c_proj",
    }.items()
    for kind in ("weight", "bias")
}
MODEL = {
    "embedding.weight": ("model.embed_tokens.weight",),
    "norm.weight": ("model.norm.weight",),
    "head.weight": ("lm_head.weight",),
}
GPT2_MODEL = {
    "embedding.weight": ("transformer.wte.weight",),
    "position_embedding.weight": ("transformer.wpe.weight",),
    "norm.weight": ("transformer.ln_f.weight",),
    "norm.bias": ("transformer.ln_f.bias",),
}
BLOCKS: dict[str, dict[str, tuple[str, ...]]] = {
    "llama": ATTENTION | DENSE,
    "qwen3": ATTENTION | QK_NORM | DENSE,
    "mixtral": ATTENTION | EXPERTS,
    "qwen3_moe": ATTENTION | QK_NORM | EXPERTS,
    "gpt2": GPT2_BLOCK,
}


@dataclass(frozen=True)
class SpecialIds:
    """What a generation needs to know of the tokenizer: texts and ids of its special tokens."""

    bos: tuple[str, int]
    eos: tuple[str, int]
    pad: tuple[str, int]


# --- weights -------------------------------------------------------------------------------------------------------


def to_theirs(config: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our weights under transformers' names."""
    shape = shape_of(config)
    theirs: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        names = _their_names(shape, name)
        for their, rows in zip(names, tensor.split(_rows(config, names, tensor.shape[0])), strict=True):
            theirs[their.removeprefix(TURNED)] = rows.transpose(-1, -2) if their.startswith(TURNED) else rows
    return theirs


def from_theirs(config: ModelConfig, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of their checkpoint under our names, padding of the vocabulary 0. Raises KeyError when one is missing."""
    shape = shape_of(config)
    ours: dict[str, Tensor] = {}
    for name in _our_names(config, shape):
        pieces = [
            theirs[their.removeprefix(TURNED)].transpose(-1, -2) if their.startswith(TURNED) else theirs[their]
            for their in _their_names(shape, name)
        ]
        ours[name] = torch.cat(pieces).contiguous()
    padding = config.vocab_rows - config.vocab_size
    for name in ("embedding.weight", "head.weight"):
        if padding and name in ours:
            ours[name] = F.pad(ours[name], (0, 0, 0, padding))
    return ours


def trim_vocabulary(
    config: ModelConfig, weights: Mapping[str, Tensor], size: int
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The model without the embedding rows above the tokenizer's `size`, which stand for no token."""
    size, trimmed = min(size, config.vocab_size), dict(weights)
    for name in ("embedding.weight", "head.weight"):
        if name in trimmed:
            trimmed[name] = trimmed[name][:size]
    return config.model_copy(update={"vocab_size": size, "vocab_multiple": 1}), trimmed


def _their_names(shape: str, name: str) -> tuple[str, ...]:
    if not (match := BLOCK.fullmatch(name)):
        return (GPT2_MODEL if shape == "gpt2" else MODEL)[name]
    prefix = f"transformer.h.{match[1]}." if shape == "gpt2" else f"model.layers.{match[1]}."
    return tuple(
        f"{TURNED if their.startswith(TURNED) else ''}{prefix}{their.removeprefix(TURNED)}"
        for their in BLOCKS[shape][match[2]]
    )


def _our_names(config: ModelConfig, shape: str) -> list[str]:
    names = [f"blocks.{layer}.{name}" for layer in range(config.num_layers) for name in BLOCKS[shape]]
    outside = GPT2_MODEL if shape == "gpt2" else MODEL
    return names + [name for name in outside if name != "head.weight" or not config.tie_embeddings]


def _rows(config: ModelConfig, names: tuple[str, ...], rows: int) -> list[int]:
    """How many rows of our matrix go to each of theirs."""
    if len(names) == 3:
        return [config.head_width * heads for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
    return [rows // len(names)] * len(names)


# --- configs -------------------------------------------------------------------------------------------------------


def to_their_config(config: ModelConfig, max_positions: int, rope_base: float) -> PreTrainedConfig:
    """The same shape in transformers' words."""
    shape = shape_of(config)
    no_specials: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "vocab_size": config.vocab_size}
    if shape == "gpt2":
        drops = dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), config.dropout)
        return AutoConfig.for_model(
            shape,
            n_positions=config.max_positions,
            n_embd=config.width,
            n_layer=config.num_layers,
            n_head=config.num_heads,
            n_inner=config.mlp_width,
            activation_function="gelu_new" if config.activation == "gelu" else config.activation,
            layer_norm_epsilon=config.norm_eps,
            **drops,
            **no_specials,
        )
    return AutoConfig.for_model(
        shape,
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
        attention_dropout=config.dropout,
        **_experts_to_theirs(config),
        **no_specials,
    )


def _experts_to_theirs(config: ModelConfig) -> dict[str, Any]:
    if config.experts is None:
        return {"mlp_bias": False}
    return {
        "num_experts" if config.qk_norm else "num_local_experts": config.experts.count,
        "num_experts_per_tok": config.experts.active,
        "router_aux_loss_coef": config.experts.balance_weight,
        "sliding_window": None,
    } | ({"moe_intermediate_size": config.mlp_width, "norm_topk_prob": True} if config.qk_norm else {})


# --- models and folders --------------------------------------------------------------------------------------------


def build_theirs(
    config: ModelConfig, weights: Mapping[str, Tensor], max_positions: int, rope_base: float
) -> PreTrainedModel:
    """transformers' own model with our weights, ready to run or to save. Raises ValueError when no shape fits."""
    theirs = to_theirs(config, weights)
    if config.tie_embeddings:
        theirs["lm_head.weight"] = theirs[_their_names(shape_of(config), "embedding.weight")[0]]
    model = AutoModelForCausalLM.from_config(to_their_config(config, max_positions, rope_base))
    model = model.to(weights["norm.weight"].dtype)
    model.load_state_dict(theirs, strict=True)
    return model.eval()


def read_folder(folder: Path, config: ModelConfig) -> dict[str, Tensor]:
    """The weights of a folder that transformers saved, under our names, fp32. Raises KeyError when one is missing."""
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).state_dict()
    return from_theirs(config, theirs)


def save_theirs(
    model: PreTrainedModel, folder: Path, tokenizer_file: Path, special: SpecialIds, max_shard_size: str = "5GB"
) -> None:
    """Everything that `AutoModelForCausalLM` and `AutoTokenizer` need, in one folder."""
    ids = {"bos_token_id": special.bos[1], "eos_token_id": special.eos[1], "pad_token_id": special.pad[1]}
    for name, value in ids.items():
        setattr(model.config, name, value)
    model.generation_config = GenerationConfig(do_sample=True, **ids)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer_file),
        bos_token=special.bos[0],
        eos_token=special.eos[0],
        pad_token=special.pad[0],
        model_max_length=model.config.max_position_embeddings,
        clean_up_tokenization_spaces=False,  # "don 't" stays as it is: decoding must give the text back
    )
    tokenizer.save_pretrained(folder)
