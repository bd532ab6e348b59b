"""Sampling text from a model: temperature, nucleus (top-p, arXiv 1904.09751), a seed.

The whole context is computed again for each token (no key-value cache): enough to look at samples of a run.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from model.transformer import Transformer


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn. temperature 0 takes the most likely one."""

    max_new_tokens: int = 100
    temperature: float = 0.8
    top_p: float = 0.95
    seed: int = 0


@torch.no_grad()
def generate(
    model: Transformer,
    prompt: list[int],
    sampling: Sampling,
    *,
    context: int,
    vocabulary: int,
    is_end: Callable[[int], bool],
) -> list[int]:
    """The ids after the prompt, up to and without the first for which `is_end` holds.

    context: tokens that the model was trained on; older ones are forgotten
    vocabulary: entries of the tokenizer; padded rows of the embedding above it are never drawn
    """
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(sampling.seed)
    ids = list(prompt)
    while len(ids) - len(prompt) < sampling.max_new_tokens:
        logits_V = model(torch.tensor([ids[-context:]], device=device))[0, -1, :vocabulary].cpu()
        drawn = draw_token(logits_V, sampling, generator)
        if is_end(drawn):
            break
        ids.append(drawn)
    return ids[len(prompt) :]


def draw_token(logits_V: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """One token: from the smallest set of tokens whose probability reaches top_p."""
    if sampling.temperature == 0:
        return int(logits_V.argmax())
    probabilities_V, order_V = (logits_V.double() / sampling.temperature).softmax(-1).sort(descending=True, stable=True)
    before_V = probabilities_V.cumsum(-1) - probabilities_V
    kept_V = probabilities_V.where(before_V < sampling.top_p, 0.0)
    return int(order_V[torch.multinomial(kept_V, 1, generator=generator)])
