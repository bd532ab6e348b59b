"""Log-likelihood of continuations: how evaluation tasks ask a model which of several texts it would rather write.

As in lm-evaluation-harness: context + continuation, cut to the model's context from the left, without its last token,
goes in; the log-probabilities of the continuation's tokens are summed. Rows are sorted by length, so that little is
padding, and padding stands on the right, where causal attention never sees it.

Worked: a model that gives each of 256 tokens the same probability gives a continuation of 3 tokens -3 ln 256 = -16.6.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from model.transformer import Transformer

LOGITS_PER_FORWARD = 1 << 24  # 64 MB of fp32: 4,096 tokens at a vocabulary of 4,096


class Request(NamedTuple):
    """Token ids; neither may be empty, and the continuation must fit into the model's context."""

    context: list[int]
    continuation: list[int]


class Likelihood(NamedTuple):
    """Sum of log-probabilities in nats; whether each token was the likeliest one."""

    log_likelihood: float
    is_greedy: bool


def log_likelihoods(
    model: Transformer, requests: Sequence[Request], *, context: int, vocabulary: int
) -> list[Likelihood]:
    """One result per request, in order. `context`: tokens that go in at most; `vocabulary`: tokens there are."""
    results: dict[int, Likelihood] = {}
    for batch in _batches(requests, context, vocabulary):
        rows = [_input(requests[index], context) for index in batch]
        ids_BT = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
        for row_T, ids in zip(ids_BT, rows, strict=True):
            row_T[: len(ids)] = torch.tensor(ids)
        with torch.no_grad():
            logits_BTV = model(ids_BT)[..., :vocabulary]
        for index, logits_TV, ids in zip(batch, logits_BTV, rows, strict=True):
            results[index] = _score(logits_TV[: len(ids)], requests[index].continuation)
    return [results[index] for index in range(len(requests))]


def _input(request: Request, context: int) -> list[int]:
    return [*request.context, *request.continuation][-(context + 1) : -1]


def _score(logits_TV: Tensor, continuation: list[int]) -> Likelihood:
    """`logits_TV`: of the whole input; the last ones predict the continuation."""
    log_probabilities_TV = logits_TV[-len(continuation) :].log_softmax(-1)
    wanted_T = torch.tensor(continuation)
    total = log_probabilities_TV.gather(1, wanted_T[:, None]).sum()  # in fp32, as the harness: equal to its last bits
    return Likelihood(float(total), bool((log_probabilities_TV.argmax(-1) == wanted_T).all()))


def _batches(requests: Sequence[Request], context: int, vocabulary: int) -> Iterator[list[int]]:
    """Places of requests, the longest first, as many together as LOGITS_PER_FORWARD allows."""
    lengths = [min(len(request.context) + len(request.continuation) - 1, context) for request in requests]
    order = sorted(range(len(requests)), key=lambda index: (-lengths[index], index))
    start = 0
    while start < len(order):
        rows = max(1, LOGITS_PER_FORWARD // (lengths[order[start]] * vocabulary))
        yield order[start : start + rows]
        start += rows
