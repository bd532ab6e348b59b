"""Training: tokens per CPU-second beside a plain nanoGPT-style loop, transformers' Llama and litgpt, in one process.

`pytest tests/bench/bench_train.py -m bench -s` prints one line per mode: ours, each peer, the ratio to the best one,
the target; then experts beside a dense MLP of the same FLOPs. Steps of all sides alternate, and a ratio is the median
over the rounds of the ratio within a round: a busy machine slows all of a round alike. Rates are medians, too. litgpt
is measured where it is installed.

Shapes: B batch, T time, D width, N heads, H head width.
"""

import importlib.util
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from model.architecture import ModelConfig
from model.config import OptimizerConfig
from model.distribute import build_model
from model.experts import Experts
from model.initialization import initialize
from model.job import Settings
from model.optimizer import build_optimizer, clip_gradients, gradient_norm, set_step
from model.transformer import MLP

LAYERS, WIDTH, HEADS, KV_HEADS, INNER, VOCABULARY, LENGTH, ROWS = 6, 256, 4, 2, 704, 4096, 512, 8
STARTS = {"ours": [[0, 100, 340]] * ROWS, "ours, whole rows": [[0]] * ROWS}  # the peers see one document in each row
TOKENS = LENGTH * ROWS
ROUNDS = 9
MODES = [("fp32", False), ("bf16", False), ("fp32", True), ("bf16", True)]
CPU = torch.device("cpu")

Step = Callable[[], object]


class PlainAttention(nn.Module):
    """Attention as a tutorial writes it."""

    def __init__(self) -> None:
        super().__init__()
        head = WIDTH // HEADS
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = (nn.Linear(WIDTH, KV_HEADS * head, bias=False) for _ in range(2))
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x_BTD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (
            layer(x_BTD).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        q, k = (turn(x, cos, sin) for x in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return out


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE, half-split."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).type_as(x)


class PlainBlock(nn.Module):
    """Pre-norm attention and SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.attention = PlainAttention()
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x), cos, sin)
        y = self.norms[1](x)
        out: Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return out


class PlainModel(nn.Module):
    """The whole model of a plain loop: logits at once, torch's cross-entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(PlainBlock() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        half = WIDTH // HEADS // 2
        angles = torch.arange(LENGTH)[:, None] / 10_000 ** (torch.arange(half) / half)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = F.linear(self.norm(x), self.embedding.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def plain_step(model: nn.Module, loss_of: Callable[[], Tensor], precision: str) -> Step:
    """nanoGPT's step: autocast for bf16, clip, fused AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_of()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def our_step(ids: Tensor, targets: Tensor, precision: Any, compiled: bool, starts: list[list[int]]) -> Step:
    config = ModelConfig(
        num_layers=LAYERS, width=WIDTH, num_heads=HEADS, num_kv_heads=KV_HEADS, head_width=WIDTH // HEADS,
        mlp_width=INNER, vocab_size=VOCABULARY,
    )  # fmt: skip
    model = build_model(config, precision, CPU, Settings(compile_blocks=compiled))
    initialize(model, config, 1)
    settings = OptimizerConfig()
    optimizer = build_optimizer(model, settings)
    parameters = list(model.parameters())

    def step() -> None:
        losses = model(ids, starts, targets, settings.z_loss)
        (losses.objective / TOKENS).backward()
        clip_gradients(parameters, gradient_norm(parameters), 1.0)
        set_step(optimizer, settings, 3e-4, 0.1)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def peers(ids: Tensor, targets: Tensor, precision: str, compiled: bool) -> dict[str, Step]:
    """A step of each peer."""
    plain: Any = PlainModel()
    llama: Any = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=LAYERS,
            num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, tie_word_embeddings=True, use_cache=False,
            max_position_embeddings=LENGTH, bos_token_id=None, eos_token_id=None,
        )
    )  # fmt: skip
    models = {"plain": plain, "transformers": llama}
    if importlib.util.find_spec("litgpt"):
        models["litgpt"] = litgpt_model()
    called = {name: torch.compile(model) if compiled else model for name, model in models.items()}

    def loss_of(name: str) -> Tensor:
        if name == "plain":
            loss: Tensor = called[name](ids, targets)
            return loss
        logits = called[name](ids)
        logits = logits if isinstance(logits, Tensor) else logits.logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    return {name: plain_step(model, lambda name=name: loss_of(name), precision) for name, model in models.items()}  # type: ignore[misc]


def litgpt_model() -> Any:
    """The same shape in litgpt."""
    from litgpt import GPT, Config  # a peer that need not be there

    return GPT(
        Config(
            block_size=LENGTH, vocab_size=VOCABULARY, padded_vocab_size=VOCABULARY, n_layer=LAYERS, n_head=HEADS,
            n_query_groups=KV_HEADS, n_embd=WIDTH, rotary_percentage=1.0, bias=False, norm_class_name="RMSNorm",
            mlp_class_name="LLaMAMLP", intermediate_size=INNER, parallel_residual=False,
        )
    )  # fmt: skip


def cpu_seconds_of_rounds(steps: dict[str, Step], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """The CPU time of a step of each side in each round, after two to warm up."""
    for step in steps.values():
        step()
        step()
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            begun = time.process_time()
            step()
            seconds[name].append(time.process_time() - begun)
    return seconds


def median_ratio(ones: list[float], others: list[float]) -> float:
    return median(one / other for one, other in zip(ones, others, strict=True))


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.bench
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("precision", "compiled"), MODES)
def test_tokens_per_cpu_second(precision: str, compiled: bool) -> None:
    ids, targets = torch.randint(0, VOCABULARY, (2, ROWS, LENGTH), generator=torch.Generator().manual_seed(0))
    steps = {name: our_step(ids, targets, precision, compiled, starts) for name, starts in STARTS.items()}
    seconds = cpu_seconds_of_rounds(steps | peers(ids, targets, precision, compiled))
    told = ", ".join(f"{name} {TOKENS / median(values):,.0f}" for name, values in seconds.items())
    others = [values for name, values in seconds.items() if name not in STARTS]
    ratios = " and ".join(f"{min(median_ratio(each, seconds[name]) for each in others):.2f}" for name in STARTS)
    mode = f"{precision} {'compiled' if compiled else 'eager'}"
    print(f"\ntrain {mode}: tokens/CPU-s: {told}; ratios to the best peer {ratios}, target 1.00")


@pytest.mark.bench
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_experts_beside_a_dense_mlp_of_the_same_flops(precision: torch.dtype) -> None:
    """8 experts of which a token passes two, each half as wide as the dense MLP; forward and backward.

    Each round has tokens of its own, as training has: how many of them an expert gets is never the same twice.
    Where a CPU has AMX, products in bf16 take a third of the dense side's time, so that what experts do beside them
    (router, gathers, four times the weights to cast) weighs more; ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 leaves AMX out.
    """
    common: dict[str, Any] = {"num_layers": 1, "width": WIDTH, "num_heads": HEADS, "vocab_size": VOCABULARY}
    sparse = ModelConfig.model_validate(common | {"mlp_width": INNER, "experts": {"count": 8, "active": 2}})
    dense = ModelConfig.model_validate(common | {"mlp_width": 2 * INNER})
    layers: dict[str, nn.Module] = {"experts": Experts(sparse), "dense": MLP(dense)}
    shape, generator = (3 * ROUNDS + 2, ROWS, LENGTH, WIDTH), torch.Generator().manual_seed(0)
    tokens = torch.randn(shape, generator=generator).to(precision)
    batches = {name: iter(tokens) for name in layers}
    for layer in layers.values():
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.02)

    def step(name: str) -> None:
        out = layers[name](next(batches[name]).detach().requires_grad_())
        (out if isinstance(out, Tensor) else out[0]).sum().backward()
        layers[name].zero_grad(set_to_none=True)

    steps: dict[str, Step] = {name: lambda name=name: step(name) for name in layers}  # type: ignore[misc]
    seconds = cpu_seconds_of_rounds(steps, 3 * ROUNDS)
    own, dense_own = (median(seconds[name]) * 1e3 for name in ("experts", "dense"))
    ratio = median_ratio(seconds["experts"], seconds["dense"])
    print(f"\nexperts {precision}: {own:.0f} ms, dense {dense_own:.0f} ms, ratio {ratio:.2f}, target 1.10")
