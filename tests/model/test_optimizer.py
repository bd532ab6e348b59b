"""AdamW groups, hyper-parameters that follow the plan, the global gradient norm."""

import pytest
import torch
from torch import nn

from model.architecture import ModelConfig
from model.config import OptimizerConfig
from model.initialization import initialize
from model.optimizer import build_optimizer, clip_gradients, gradient_norm, is_decayed, set_step
from model.transformer import Transformer

CONFIG = OptimizerConfig()


def built(tie: bool = True) -> Transformer:
    config = ModelConfig.of_size("tiny", tie_embeddings=tie)
    model = Transformer(config)
    initialize(model, config, 1)
    return model


@pytest.mark.parametrize("tie", [True, False])
def test_matrices_decay_norms_and_embeddings_do_not(tie: bool) -> None:
    model = built(tie)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = {
        group["name"]: {names[id(p)] for p in group["params"]} for group in build_optimizer(model, CONFIG).param_groups
    }
    assert groups["plain"] == {name for name in names.values() if "norm" in name} | {"embedding.weight"}
    assert groups["decayed"] == set(names.values()) - groups["plain"]
    assert ("head.weight" in groups["decayed"]) is not tie


def test_biases_and_stacked_experts_are_told_apart() -> None:
    assert not is_decayed("blocks.0.attention.qkv.bias", torch.zeros(4))
    assert is_decayed("blocks.0.experts.down", torch.zeros(2, 4, 4))


def test_step_is_that_of_the_formula() -> None:
    model = built()
    optimizer = build_optimizer(model, CONFIG)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.5)
    set_step(optimizer, CONFIG, lr=0.01, weight_decay=0.1)
    optimizer.step()
    for name, parameter in model.named_parameters():
        # first step: both moments, bias corrected, give gradient / |gradient| = 1
        decay = 0.01 * 0.1 * before[name] if is_decayed(name, parameter) else 0.0
        torch.testing.assert_close(parameter.detach(), before[name] - decay - 0.01, rtol=0, atol=1e-7)


def test_recipe_wins_over_a_loaded_state() -> None:
    """pytorch#60265, gpt-neox#1029: a loaded optimizer brings its old rate, betas and decay back."""
    model = built()
    old = build_optimizer(model, CONFIG)
    set_step(old, CONFIG, lr=1.0, weight_decay=0.5)
    new_config = OptimizerConfig(betas=(0.8, 0.99), eps=1e-6)
    new = build_optimizer(model, new_config)
    new.load_state_dict(old.state_dict())
    set_step(new, new_config, lr=0.5, weight_decay=0.2)
    for group in new.param_groups:
        assert (group["lr"], group["betas"], group["eps"]) == (0.5, (0.8, 0.99), 1e-6)
        assert group["weight_decay"] == (0.2 if group["name"] == "decayed" else 0.0)


def parameters(*gradients: list[float] | None) -> list[nn.Parameter]:
    made = []
    for values in gradients:
        parameter = nn.Parameter(torch.zeros(len(values or [0.0])))
        parameter.grad = None if values is None else torch.tensor(values)
        made.append(parameter)
    return made


def test_norm_and_clipping() -> None:
    given = parameters([3.0, 0.0], None, [4.0])
    norm = gradient_norm(given)
    assert norm.item() == 5.0
    clip_gradients(given, norm, 10.0)
    assert gradient_norm(given).item() == 5.0
    clip_gradients(given, norm, 1.0)
    assert gradient_norm(given).item() == pytest.approx(1.0, rel=1e-6)
    assert given[0].grad is not None
    assert given[0].grad.tolist() == pytest.approx([0.6, 0.0])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_one_bad_gradient_shows_in_the_norm_and_touches_nothing(bad: float) -> None:
    given = parameters([1.0, bad], [2.0])
    assert not gradient_norm(given).isfinite()
    assert given[1].grad is not None
    assert given[1].grad.tolist() == [2.0]
