"""First weights: the right spread for every parameter, the same values however the model was built."""

import math
from typing import Any, get_args

import pytest
import torch

from model.architecture import Initialization, ModelConfig
from model.initialization import draw, init_std, initialize
from model.transformer import Transformer

CONFIG = ModelConfig.of_size("tiny", num_layers=8, width=128, vocab_size=1024, tie_embeddings=False)


def built(config: ModelConfig = CONFIG, seed: int = 1) -> Transformer:
    with torch.device("meta"):
        model = Transformer(config)
    model.to_empty(device="cpu")
    initialize(model, config, seed)
    return model


VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": {"norm": "layer", "positions": "learned", "biases": True, "activation": "gelu", "max_positions": 512},
    "qk norm and experts": {"qk_norm": True, "experts": {"count": 4, "active": 2, "bias_rate": 1e-3}},
}


@pytest.mark.parametrize("scheme", get_args(Initialization))
@pytest.mark.parametrize("variant", VARIANTS)
def test_standard_deviation_of_every_parameter(scheme: Initialization, variant: str) -> None:
    """Built on the meta device. OLMo-core#602: a depth scale that was never applied."""
    config = CONFIG.model_validate(CONFIG.model_dump() | VARIANTS[variant] | {"initialization": scheme})
    model = built(config)
    for name, parameter in model.named_parameters():
        if name.endswith(("norm.weight", "bias")):
            assert torch.equal(parameter, torch.full_like(parameter, name.endswith("weight"))), name
            continue
        wanted = {"fan_in": parameter.shape[1] ** -0.5, "small": math.sqrt(2 / 640)}.get(scheme, 0.02)
        if name.endswith(("output.weight", "down.weight", "mlp.down")):
            depth = {"normal": 0.5, "current_depth": int(name.split(".")[1]) + 1}.get(scheme, 8)
            wanted /= math.sqrt(2 * depth)
        noise = 4.5 / math.sqrt(2 * parameter.numel())  # standard errors of a standard deviation
        assert parameter.std().item() == pytest.approx(wanted, rel=noise), name
        assert abs(parameter.mean().item()) < 4.5 * wanted / math.sqrt(parameter.numel()), name
    assert all(not buffer.any() for buffer in model.buffers())


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
    square = (128, 128)
    assert init_std("embedding.weight", square, CONFIG) == init_std("head.weight", square, CONFIG) == 0.02
    assert init_std("blocks.3.mlp.down.weight", square, CONFIG) == 0.005
    deep = CONFIG.model_copy(update={"initialization": "current_depth"})
    assert init_std("blocks.1.mlp.down", (4, 192, 128), deep) == 0.01
    assert (
        init_std("blocks.1.mlp.up.weight", square, CONFIG.model_copy(update={"initialization": "fan_in"})) == 128**-0.5
    )
