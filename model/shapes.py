"""Which of transformers' shapes a model has. No torch here: a recipe that exports is checked before training.

| shape | needs |
|---|---|
| llama | RoPE, RMSNorm, SwiGLU, no biases, no QK-norm |
| qwen3 | the same with QK-norm |
| mixtral | as llama, with experts and no loss-free bias |
| qwen3_moe | as qwen3, with experts and no loss-free bias |
| gpt2 | learned positions, LayerNorm, GELU or ReLU, as many key-value heads as heads, tied, biases |
"""

import json

from model.architecture import ModelConfig

# Shape -> field -> the values that it has a place for
Needs = dict[str, tuple[object, ...]]
ROTARY: Needs = {"positions": ("rope",), "norm": ("rms",), "activation": ("swiglu",), "biases": (False,)}
SHAPES: dict[str, Needs] = {
    "mixtral": ROTARY | {"qk_norm": (False,), "experts": ("some",), "experts.bias_rate": (0.0,)},
    "qwen3_moe": ROTARY | {"qk_norm": (True,), "experts": ("some",), "experts.bias_rate": (0.0,)},
    "llama": ROTARY | {"qk_norm": (False,), "experts": (None,)},
    "qwen3": ROTARY | {"qk_norm": (True,), "experts": (None,)},
    "gpt2": {
        "positions": ("learned",),
        "norm": ("layer",),
        "activation": ("gelu", "relu"),
        "biases": (True,),
        "qk_norm": (False,),
        "experts": (None,),
        "tie_embeddings": (True,),
        "num_kv_heads": ("num_heads",),
        "head_width": ("width / num_heads",),
    },
}


def shape_of(config: ModelConfig) -> str:
    """The name of the shape. Raises ValueError when none fits, naming the fields that the nearest has no place for."""
    faults = {name: _faults(config, needs) for name, needs in SHAPES.items()}
    nearest = min(faults, key=lambda name: len(faults[name]))
    if faults[nearest]:
        raise ValueError(f"no shape of transformers fits; the nearest, {nearest}, needs {'; '.join(faults[nearest])}")
    return nearest


def _faults(config: ModelConfig, needs: Needs) -> list[str]:
    values = _values(config)
    return [
        f"{field} = {' or '.join(map(_as_yaml, wanted))}, not {_as_yaml(values[field])}"
        for field, wanted in needs.items()
        if field in values and values[field] not in wanted
    ]


def _as_yaml(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _values(config: ModelConfig) -> dict[str, object]:
    """The fields that decide the shape; those that must agree with others by the name of what they agree with."""
    values: dict[str, object] = {name: getattr(config, name) for name in (*ROTARY, "qk_norm", "tie_embeddings")}
    values["experts"] = "some" if config.experts else None
    if config.experts:
        values["experts.bias_rate"] = config.experts.bias_rate
    is_multi_head = config.num_kv_heads == config.num_heads
    values["num_kv_heads"] = "num_heads" if is_multi_head else config.num_kv_heads
    fills_width = config.head_width * config.num_heads == config.width
    values["head_width"] = "width / num_heads" if fills_width else config.head_width
    return values
