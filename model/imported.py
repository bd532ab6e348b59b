"""A model's settings from the config.json of transformers. No torch and no transformers here: a recipe is read with it.

Written by every release since the field had its name: RoPE stands in `rope_parameters`, or in `rope_theta` and
`rope_scaling`. A variant that we do not have is refused with the field's name.
"""

from collections.abc import Mapping
from typing import Any

from model.architecture import ModelConfig
from model.shapes import SHAPES

# Field -> the only value that we have a place for, where the field is there at all
ONLY_WITH: dict[str, Any] = {
    "attention_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
    "use_sliding_window": False,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}
GPT2_ACTIVATIONS = {"gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "relu": "relu"}


def model_of(theirs: Mapping[str, Any]) -> ModelConfig:
    """Our settings for a checkpoint with this config.json. Raises ValueError for a variant that we do not have."""
    shape = theirs.get("model_type")
    if shape not in SHAPES:
        raise ValueError(f"config.json: model_type is {shape!r}, only {', '.join(SHAPES)} can be imported")
    rope = theirs.get("rope_parameters") or {"rope_theta": theirs.get("rope_theta", 10_000.0)}
    rope = rope | (theirs.get("rope_scaling") or {})
    wanted = ONLY_WITH | ({"sliding_window": None} if shape == "mixtral" else {})
    found = {name: (theirs[name], value) for name, value in wanted.items() if name in theirs}
    found["rope_type"] = (rope.get("rope_type", rope.get("type", "default")), "default")
    for name, (got, allowed) in found.items():
        if got != allowed:
            raise ValueError(f"config.json: {name} is {got!r}, only {allowed!r} can be imported")
    try:
        return ModelConfig.model_validate(_gpt2(theirs) if shape == "gpt2" else _rotary(theirs, rope["rope_theta"]))
    except KeyError as error:
        raise ValueError(f"config.json: {error} is missing") from error


def _gpt2(theirs: Mapping[str, Any]) -> dict[str, Any]:
    activation = theirs.get("activation_function", "gelu_new")
    if activation not in GPT2_ACTIVATIONS:
        raise ValueError(
            f"config.json: activation_function is {activation!r}, not one of {', '.join(GPT2_ACTIVATIONS)}"
        )
    return {
        "num_layers": theirs["n_layer"],
        "width": theirs["n_embd"],
        "num_heads": theirs["n_head"],
        "vocab_size": theirs["vocab_size"],
        "tie_embeddings": theirs.get("tie_word_embeddings", True),
        "positions": "learned",
        "max_positions": theirs["n_positions"],
        "norm": "layer",
        "norm_eps": theirs.get("layer_norm_epsilon", 1e-5),
        "biases": True,
        "activation": GPT2_ACTIVATIONS[activation],
        "mlp_width": theirs.get("n_inner"),
    }


def _rotary(theirs: Mapping[str, Any], rope_base: float) -> dict[str, Any]:
    shape, experts = theirs["model_type"], None
    if shape in ("mixtral", "qwen3_moe"):
        count = theirs["num_experts"] if "num_experts" in theirs else theirs["num_local_experts"]
        experts = {"count": count, "active": theirs["num_experts_per_tok"]}
    return {
        "num_layers": theirs["num_hidden_layers"],
        "width": theirs["hidden_size"],
        "num_heads": theirs["num_attention_heads"],
        "num_kv_heads": theirs.get("num_key_value_heads"),
        "head_width": theirs.get("head_dim"),
        "mlp_width": theirs["moe_intermediate_size" if shape == "qwen3_moe" else "intermediate_size"],
        "vocab_size": theirs["vocab_size"],
        "norm_eps": theirs["rms_norm_eps"],
        "rope_base": rope_base,
        "tie_embeddings": theirs.get("tie_word_embeddings", False),
        "qk_norm": shape in ("qwen3", "qwen3_moe"),
        "experts": experts,
    }
