"""First weights: the right spread for every parameter, the same values however the model was built."""

import math

import pytest
import torch

from model.config import ModelConfig
from model.initialization import draw, init_std, initialize
from model.transformer import Transformer

CONFIG = ModelConfig.of_size("tiny", num_layers=8, width=128, vocab_size=1024, tie_embeddings=False)


def built(config: ModelConfig = CONFIG, seed: int = 1) -> Transformer:
    with torch.device("meta"):
        model = Transformer(config)
    model.to_empty(device="cpu")
    initialize(model, config, seed)
    return model


def test_standard_deviation_of_every_parameter() -> None:
    for name, parameter in built().state_dict().items():
        if "norm" in name:
            assert torch.equal(parameter, torch.ones(128)), name
            continue
        is_output = name.endswith(("output.weight", "down.weight"))
        wanted = 0.02 / math.sqrt(16) if is_output else 0.02
        noise = 4 / math.sqrt(2 * parameter.numel())  # four standard errors of a standard deviation
        assert float(parameter.std()) == pytest.approx(wanted, rel=noise), name
        assert abs(float(parameter.mean())) < 4 * wanted / math.sqrt(parameter.numel()), name


def test_values_depend_on_seed_and_name_alone() -> None:
    plain = Transformer(CONFIG)  # on the CPU, in torch's own order
    initialize(plain, CONFIG, 1)
    other = dict(built(seed=2).named_parameters())
    deeper = dict(built(CONFIG.model_copy(update={"num_layers": 9})).named_parameters())
    for name, parameter in built().named_parameters():
        assert torch.equal(parameter, plain.get_parameter(name)), name
        if "norm" not in name:
            assert not torch.equal(parameter, other[name]), name
        if not name.endswith(("output.weight", "down.weight")):
            assert torch.equal(parameter, deeper[name]), name


def test_equal_shapes_get_different_values() -> None:
    shape = torch.Size((4, 4))
    drawn = {
        tuple(draw(f"blocks.{layer}.mlp.gate_up.weight", shape, CONFIG, 1).flatten().tolist()) for layer in range(8)
    }
    assert len(drawn) == 8


def test_known_values() -> None:
    values = draw("blocks.0.attention.qkv.weight", torch.Size((2, 2)), CONFIG, 1)
    assert values.flatten().tolist() == pytest.approx([0.01164611, -0.00192071, 0.01230186, 0.02278959], rel=1e-5)


def test_std_of_names() -> None:
    assert init_std("norm.weight", CONFIG) is None
    assert init_std("blocks.3.mlp_norm.weight", CONFIG) is None
    assert init_std("embedding.weight", CONFIG) == init_std("head.weight", CONFIG) == 0.02
    assert init_std("blocks.3.mlp.down.weight", CONFIG) == 0.005
