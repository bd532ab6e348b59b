"""config.json of transformers, old and new: what is read from it, and what is refused."""

from typing import Any

import pytest

from model.architecture import ModelConfig
from model.imported import model_of

LLAMA: dict[str, Any] = {  # as the first Llama releases wrote it
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 500, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    "rope_theta": 500000.0, "rope_scaling": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN3 = LLAMA | {"model_type": "qwen3", "head_dim": 32, "attention_bias": False, "use_sliding_window": False}


def test_old_and_new_spellings_of_rope_are_read() -> None:
    config = model_of(LLAMA)
    assert (config.rope_base, config.num_kv_heads, config.head_width, config.vocab_rows) == (500_000.0, 2, 16, 512)
    new = {key: value for key, value in LLAMA.items() if not key.startswith("rope_")}
    new["rope_parameters"] = {"rope_type": "default", "rope_theta": 500_000.0}
    assert model_of(new) == config
    assert not config.tie_embeddings


def test_heads_of_qwen3_are_wider_and_normalised() -> None:
    assert model_of(QWEN3) == ModelConfig.of_size(
        "tiny", vocab_size=500, norm_eps=1e-6, rope_base=500_000.0, tie_embeddings=False, head_width=32, qk_norm=True
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gemma"}, "model_type is 'gemma', only .*qwen3.* can be imported"),
        ({"attention_bias": True}, "attention_bias is True, only False can be imported"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', only 'silu'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type is 'linear', only 'default'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_type is 'llama3'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type is 'yarn'"),
        ({"use_sliding_window": True}, "use_sliding_window is True"),
        ({"model_type": "mixtral", "sliding_window": 4096}, "sliding_window is 4096, only None"),
        ({"model_type": "qwen3_moe", "norm_topk_prob": False}, "norm_topk_prob is False, only True"),
        ({"model_type": "gpt2", "activation_function": "tanh"}, "activation_function is 'tanh', not one of gelu_new"),
        ({"model_type": "mixtral"}, "'num_local_experts' is missing"),
    ],
)
def test_variants_that_we_do_not_have_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"config.json: {message}"):
        model_of(LLAMA | change)
