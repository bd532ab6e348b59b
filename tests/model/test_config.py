"""Model settings: sizes, derived values, refusals."""

from typing import Any

import pytest
from pydantic import ValidationError

from model.config import MODEL_SIZES, ModelConfig


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
    ],
)
def test_wrong_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ModelConfig.model_validate(fields)
