"""Log-likelihoods of continuations: those of single rows, whatever is batched, cut or padded."""

import math

import pytest
import torch

from model import likelihood
from model.architecture import ModelConfig
from model.initialization import initialize
from model.likelihood import Request, log_likelihoods
from model.transformer import Transformer

CONTEXT, VOCABULARY = 16, 50
REQUESTS = [
    Request([1, 2, 3], [4, 5]),
    Request([7], [9]),
    Request(list(range(1, 30)), [5, 6, 7]),  # cut from the left
    Request([3], list(range(16))),  # fills the context: its last token is only predicted
    Request([1, 2, 3], [4, 6]),
]


@pytest.fixture(scope="module")
def model() -> Transformer:
    config = ModelConfig.of_size(
        "tiny", num_layers=2, width=32, num_heads=2, num_kv_heads=1, mlp_width=64, vocab_size=256
    )
    model = Transformer(config).eval()
    initialize(model, config, seed=3)
    with torch.no_grad():
        model.embedding.weight *= 20  # far from a guess
    return model


def one_by_one(model: Transformer, request: Request) -> tuple[float, bool]:
    """Each token from everything before it, in a forward pass of its own."""
    ids, total, is_greedy = [*request.context, *request.continuation], 0.0, True
    start = max(0, len(ids) - CONTEXT - 1)
    for place in range(len(request.context), len(ids)):
        with torch.no_grad():
            logits = model(torch.tensor([ids[start:place]]))[0, -1, :VOCABULARY].double()
        total += float(logits[ids[place]] - logits.logsumexp(0))
        is_greedy = is_greedy and int(logits.argmax()) == ids[place]
    return total, is_greedy


def test_equal_to_token_by_token(model: Transformer) -> None:
    found = log_likelihoods(model, REQUESTS, context=CONTEXT, vocabulary=VOCABULARY)
    for request, result in zip(REQUESTS, found, strict=True):
        wanted, is_greedy = one_by_one(model, request)
        assert result.log_likelihood == pytest.approx(wanted, abs=1e-4)
        assert result.is_greedy == is_greedy


def test_batches_change_nothing(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = log_likelihoods(model, REQUESTS, context=CONTEXT, vocabulary=VOCABULARY)
    monkeypatch.setattr(likelihood, "LOGITS_PER_FORWARD", 1)  # a row at a time
    single = log_likelihoods(model, REQUESTS, context=CONTEXT, vocabulary=VOCABULARY)
    assert [result.log_likelihood for result in whole] == pytest.approx([result.log_likelihood for result in single])


def test_the_greedy_continuation_is_called_greedy(model: Transformer) -> None:
    with torch.no_grad():
        likeliest = int(model(torch.tensor([[1, 2, 3]]))[0, -1, :VOCABULARY].argmax())
    requests = [Request([1, 2, 3], [token]) for token in (likeliest, (likeliest + 1) % VOCABULARY)]
    found = log_likelihoods(model, requests, context=CONTEXT, vocabulary=VOCABULARY)
    assert [result.is_greedy for result in found] == [True, False]
    assert found[0].log_likelihood > found[1].log_likelihood


def test_a_guess_over_the_vocabulary_alone(model: Transformer) -> None:
    """Rows of the embedding that stand for no token take no probability."""
    flat = Transformer(model.config).eval()
    initialize(flat, model.config, seed=1)
    with torch.no_grad():
        flat.embedding.weight.zero_()
    [result] = log_likelihoods(flat, [Request([1], [2, 3])], context=CONTEXT, vocabulary=VOCABULARY)
    assert result.log_likelihood == pytest.approx(-2 * math.log(VOCABULARY))
    assert not result.is_greedy


def test_nothing_to_score(model: Transformer) -> None:
    assert log_likelihoods(model, [], context=CONTEXT, vocabulary=VOCABULARY) == []
