"""Model settings: sizes, derived values, refusals."""

from typing import Any

import pytest
from pydantic import ValidationError

from model.architecture import MODEL_SIZES, ModelConfig
from tasks.config import resolved


@pytest.mark.parametrize("size", MODEL_SIZES)
def test_sizes_are_valid_and_named_for_their_parameters(size: str) -> None:
    config = ModelConfig.of_size(size)
    wanted = {"100m": 100e6, "300m": 300e6, "1b": 1.27e9, "7b": 7.5e9, "demo": 2.36e6, "tiny": 131e3}[size]
    assert config.num_parameters == pytest.approx(wanted, rel=0.02)


def test_demo_is_the_shape_of_the_default_recipe() -> None:
    config = ModelConfig.of_size("demo")
    assert (config.num_layers, config.width, config.vocab_size, config.head_width) == (4, 192, 4096, 64)


def test_a_size_gives_way_to_single_fields_and_resolves_to_numbers() -> None:
    config = ModelConfig.of_size("demo", vocab_size=8192, num_layers=2)
    assert (config.vocab_size, config.num_layers, config.width) == (8192, 2, 192)
    assert "size" not in config.model_dump()
    assert ModelConfig.model_validate(config.model_dump()) == config


def test_left_out_values_follow_from_the_others() -> None:
    config = ModelConfig.model_validate({"num_layers": 1, "width": 256, "num_heads": 4, "vocab_size": 300})
    assert (config.num_kv_heads, config.mlp_width, config.head_width) == (4, 704, 64)


def test_heads_may_be_wider_than_their_share() -> None:
    config = ModelConfig.of_size("tiny", head_width=32, num_heads=3, num_kv_heads=1)
    assert (config.head_width, config.width) == (32, 64)


def test_a_plain_mlp_is_four_times_as_wide() -> None:
    assert ModelConfig.of_size("demo", activation="gelu").mlp_width == 768
    assert ModelConfig.of_size("demo", activation="gelu", mlp_width=100).mlp_width == 100


def test_vocabulary_is_padded_to_a_multiple() -> None:
    assert ModelConfig.of_size("tiny", vocab_size=1000).vocab_rows == 1024
    assert ModelConfig.of_size("tiny", vocab_size=1000, vocab_multiple=1).vocab_rows == 1000


def test_active_parameters_are_those_of_a_dense_model_and_the_router() -> None:
    dense = ModelConfig.of_size("demo", mlp_width=256)
    sparse = ModelConfig.of_size("demo", mlp_width=128, experts={"count": 8, "active": 2})
    routers = 4 * 8 * 192
    assert sparse.num_active_parameters == dense.num_parameters + routers
    assert sparse.num_parameters - sparse.num_active_parameters == 4 * 6 * 3 * 192 * 128
    assert dense.num_active_parameters == dense.num_parameters


def test_rows_longer_than_learned_positions_are_refused() -> None:
    config = ModelConfig.of_size("demo", positions="learned", max_positions=128)
    config.check_length(128)
    with pytest.raises(ValueError, match="max_positions 128 is smaller than a row of 256 tokens"):
        config.check_length(256)
    ModelConfig.of_size("demo", max_positions=128).check_length(256)  # RoPE has no limit


def test_fields_at_their_defaults_move_no_fingerprint() -> None:
    assert "dropout" not in resolved(ModelConfig.of_size("demo"))
    assert resolved(ModelConfig.of_size("demo", dropout=0.1))["dropout"] == 0.1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": "huge"}, "size 'huge' is unknown; choose one of tiny, demo"),
        ({"size": "demo", "num_heads": 5}, "width 192 must be divisible by num_heads 5"),
        ({"size": "demo", "num_kv_heads": 4}, "num_heads 3 must be divisible by num_kv_heads 4"),
        ({"size": "demo", "width": 15}, "must be even"),
        ({"size": "demo", "vocab_size": 255}, "greater than or equal to 256"),
        ({"size": "demo", "layers": 3}, "Extra inputs"),
        ({"width": 64}, "Field required"),
        ({"size": "demo", "positions": "sinusoidal", "width": 195, "num_heads": 3}, "width 195 must be even"),
        ({"size": "demo", "experts": {"count": 4, "active": 5}}, "active 5 exceeds count 4"),
        ({"size": "demo", "experts": {"count": 4, "active": 2}, "activation": "relu"}, "experts are SwiGLU"),
        ({"size": "demo", "experts": {"count": 4, "active": 2}, "biases": True}, "experts have none"),
        ({"size": "demo", "dropout": 1.0}, "less than 1"),
        ({"size": "demo", "positions": "alibi"}, "'rope', 'sinusoidal' or 'learned'"),
    ],
)
def test_wrong_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ModelConfig.model_validate(fields)
