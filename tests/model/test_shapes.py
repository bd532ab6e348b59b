"""Which of transformers' shapes fits, and what is said when none does."""

from typing import Any

import pytest

from model.architecture import ModelConfig
from model.shapes import SHAPES, shape_of

GPT2 = {"positions": "learned", "norm": "layer", "activation": "relu", "biases": True, "num_kv_heads": 4}
EXPERTS = {"count": 4, "active": 2}


@pytest.mark.parametrize(
    ("shape", "fields"),
    [
        ("llama", {}),
        ("llama", {"tie_embeddings": False, "dropout": 0.1, "vocab_size": 500}),
        ("qwen3", {"qk_norm": True}),
        ("mixtral", {"experts": EXPERTS}),
        ("qwen3_moe", {"experts": EXPERTS, "qk_norm": True}),
        ("gpt2", GPT2),
    ],
)
def test_the_config_decides_the_shape(shape: str, fields: dict[str, Any]) -> None:
    assert shape in SHAPES
    assert shape_of(ModelConfig.of_size("tiny", **fields)) == shape


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"norm": "layer"}, "llama, needs norm = rms, not layer"),
        ({"biases": True}, "llama, needs biases = false, not true"),
        ({"activation": "gelu", "qk_norm": True}, "qwen3, needs activation = swiglu, not gelu"),
        ({"experts": EXPERTS | {"bias_rate": 1e-3}}, "mixtral, needs experts.bias_rate = 0.0, not 0.001"),
        (GPT2 | {"tie_embeddings": False}, "gpt2, needs tie_embeddings = true, not false"),
        (GPT2 | {"head_width": 32}, "gpt2, needs head_width = width / num_heads, not 32"),
        (
            GPT2 | {"num_kv_heads": 1, "biases": False},
            "needs biases = true, not false; num_kv_heads = num_heads, not 1",
        ),
    ],
)
def test_what_fits_nowhere_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shape_of(ModelConfig.of_size("tiny", **fields))
