"""Sampling: repeatable, inside the vocabulary, and true to temperature and top-p."""

import pytest
import torch

from model.architecture import ModelConfig
from model.generate import Sampling, draw_token, generate
from model.initialization import initialize
from model.transformer import Transformer


@pytest.fixture(scope="module")
def model() -> Transformer:
    config = ModelConfig.of_size("tiny")
    made = Transformer(config)
    initialize(made, config, 1)
    return made


def sample(model: Transformer, sampling: Sampling, vocabulary: int = 512, end: int = -1) -> list[int]:
    return generate(model, [1, 2, 3], sampling, context=16, vocabulary=vocabulary, is_end=lambda token: token == end)


def test_a_seed_repeats_and_another_does_not(model: Transformer) -> None:
    first = sample(model, Sampling(20, seed=1))
    assert len(first) == 20
    assert first == sample(model, Sampling(20, seed=1))
    assert first != sample(model, Sampling(20, seed=2))


def test_padded_rows_are_never_drawn(model: Transformer) -> None:
    with torch.no_grad():
        model.embedding.weight[400:] *= 50  # the padding would win without the mask
    drawn = sample(model, Sampling(200, temperature=5.0, top_p=1.0), vocabulary=400)
    assert max(drawn) < 400


def test_ends_before_the_end_token(model: Transformer) -> None:
    drawn = sample(model, Sampling(20, seed=1), vocabulary=400)
    assert sample(model, Sampling(20, seed=1), vocabulary=400, end=drawn[5]) == drawn[: drawn.index(drawn[5])]


def draws(sampling: Sampling, count: int = 4000) -> torch.Tensor:
    logits_V = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
    generator = torch.Generator().manual_seed(0)
    drawn = torch.tensor([draw_token(logits_V, sampling, generator) for _ in range(count)])
    return drawn.bincount(minlength=4) / count


def test_temperature_zero_takes_the_most_likely() -> None:
    assert draws(Sampling(temperature=0.0), 10).tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("temperature", "top_p", "wanted"),
    [
        (1.0, 1.0, [0.1, 0.2, 0.3, 0.4]),
        (0.5, 1.0, [1 / 30, 4 / 30, 9 / 30, 16 / 30]),  # probabilities squared
        (1.0, 0.5, [0.0, 0.0, 3 / 7, 4 / 7]),  # 0.4 alone is not enough
        (1.0, 0.4, [0.0, 0.0, 0.0, 1.0]),
        (1.0, 0.71, [0.0, 2 / 9, 3 / 9, 4 / 9]),
    ],
)
def test_frequencies(temperature: float, top_p: float, wanted: list[float]) -> None:
    assert draws(Sampling(temperature=temperature, top_p=top_p)).tolist() == pytest.approx(wanted, abs=0.03)
