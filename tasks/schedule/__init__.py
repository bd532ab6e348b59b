"""What a recipe's training will be, before anything runs (`basemill schedule RECIPE`): the pure plan, without torch.

Learning rate, batch, length and sources follow from the recipe; sizes of sources from packs, before from the mix, else
they are unknown. Memory and FLOPs are formulas (model/cost.py); the time is that of the newest training of the same
model on rows of the same length, else unknown.
"""

import math
import os
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

from pydantic import BaseModel

from model.config import PhaseRun
from model.cost import activation_bytes, checkpoint_bytes, copies_bytes, flops_per_token, state_bytes
from model.job import Settings
from model.schedule import lr_at, lr_batch_factor, stretches_of
from tasks.epochs import MixtureLine, mixture_of
from tasks.manifest import list_manifests, load_manifest
from tasks.recipe import Recipe
from tasks.storage import Storage
from tasks.train import placed

CURVE_POINTS = 200  # of a phase; corners are added
SEARCHED_TRAININGS = 50  # newest ones, for a speed


class Point(BaseModel, frozen=True):
    """A step of the plan. `tokens`: the clock of the phase at its end."""

    tokens: int
    lr: float
    batch_rows: int


class Memory(BaseModel, frozen=True):
    """Bytes of one rank; `states` are exact, the rest is estimated."""

    ranks: int
    micro_batch_rows: int
    weights: int
    gradients: int
    moments: int
    states: int
    copies: int
    activations: int
    total: int


class Saves(BaseModel, frozen=True):
    """Checkpoints of a phase: at multiples of `every_steps` and at the end, and by the clock of the wall."""

    every_steps: int
    every_seconds: float
    count: int
    bytes: int  # of each
    kept: int
    kept_bytes: int


class Speed(BaseModel, frozen=True):
    """Tokens per second of an earlier training, and where that was."""

    tokens_per_second: float
    run_id: str
    compute: str


class PhaseForecast(BaseModel, frozen=True):
    """One phase. `long_token_ratio`: share of tokens in documents longer than half a row, where packs exist."""

    name: str
    after: str
    steps: int
    tokens: int
    sequence_length: int
    rope_base: float
    shape: str
    curve: list[Point]
    sources: list[MixtureLine]
    long_token_ratio: float | None
    memory: Memory
    saves: Saves
    flops: float
    speed: Speed | None

    @property
    def seconds(self) -> float | None:
        """How long it will take, if that is known."""
        return self.tokens / self.speed.tokens_per_second if self.speed else None


class Forecast(BaseModel, frozen=True):
    """The training of a recipe."""

    recipe: str
    parameters: int
    active_parameters: int
    phases: list[PhaseForecast]
    tokens: int
    flops: float
    seconds: float | None
    warnings: list[str]


def forecast(
    storage: Storage, recipe: Recipe, datasets: Iterable[tuple[str, str | None]], settings: Settings
) -> Forecast:
    """The forecast. `datasets`: (stage, reference) of a plan; `settings`: how it would be computed here.

    Raises ConfigError when batches don't split over the ranks.
    """
    known = list(datasets)
    mixture = mixture_of(storage, recipe, known)
    speeds = _speeds(storage)
    phases = []
    for phase in recipe.train.phases:
        run = recipe.train.run_of(phase.name, recipe.model)
        own = [line for line in mixture if line.phase == phase.name]
        ratio = _long_token_ratio(storage, phase.sequence_length, phase.min_document_tokens, own, known)
        after = f"run {phase.fork.run}" if phase.fork else phase.parent or ""
        phases.append(_phase(run, after, own, ratio, _speed_of(run, speeds), settings))
    seconds = [phase.seconds for phase in phases]
    return Forecast(
        recipe=recipe.name,
        parameters=recipe.model.num_parameters,
        active_parameters=recipe.model.num_active_parameters,
        phases=phases,
        tokens=sum(phase.tokens for phase in phases),
        flops=sum(phase.flops for phase in phases),
        seconds=None if None in seconds else sum(value for value in seconds if value is not None),
        warnings=[f"phase {line.phase}, source {line.source}: {line.warning}" for line in mixture if line.warning],
    )


def _phase(
    run: PhaseRun, after: str, sources: list[MixtureLine], ratio: float | None, speed: Speed | None, settings: Settings
) -> PhaseForecast:
    phase = run.phase
    stretches = stretches_of(phase)
    tokens = sum(stretch.rows * stretch.steps for stretch in stretches) * phase.sequence_length
    steps = sum(stretch.steps for stretch in stretches)
    return PhaseForecast(
        name=phase.name,
        after=after,
        steps=steps,
        tokens=tokens,
        sequence_length=phase.sequence_length,
        rope_base=phase.rope_base or run.model.rope_base,
        shape=phase.schedule.shape,
        curve=curve_of(run),
        sources=sources,
        long_token_ratio=ratio,
        memory=memory_of(run, settings),
        saves=_saves(run, steps, settings),
        flops=tokens * flops_per_token(run.model, phase.sequence_length),
        speed=speed,
    )


def curve_of(run: PhaseRun) -> list[Point]:
    """Learning rate and batch along a phase: about CURVE_POINTS steps of each batch size, its first and last too."""
    phase, points = run.phase, []
    for start, rows, steps in stretches_of(phase):
        batch_tokens = rows * phase.sequence_length
        for step in sorted({1, steps, *range(1, steps, max(1, steps // CURVE_POINTS))}):
            end = start + step * batch_tokens
            lr = lr_at(phase, end) * lr_batch_factor(phase, rows)
            points.append(Point(tokens=end, lr=lr, batch_rows=rows))
    return points


def memory_of(run: PhaseRun, settings: Settings) -> Memory:
    """Bytes of rank 0, by the formulas of model/cost.py."""
    decided = placed(settings, run, os.cpu_count() or 1, 0)
    ranks, on_cuda = decided.ranks or 1, decided.device == "cuda"
    sharded = 1 if settings.parallel == "ddp" else min(settings.shard_ranks or ranks, ranks)
    states = state_bytes(run.model, sharded)
    copies = copies_bytes(run.model, run.precision, sharded, on_cuda=on_cuda)
    rows = min(settings.micro_batch_rows, max(step.rows for step in run.phase.batch) // ranks)
    activations = activation_bytes(
        run.model, rows, run.phase.sequence_length, run.precision, recompute=settings.recompute, on_cuda=on_cuda
    )
    return Memory(
        ranks=ranks, micro_batch_rows=rows, **states._asdict(), states=states.total, copies=copies,
        activations=activations, total=states.total + copies + activations,
    )  # fmt: skip


def _saves(run: PhaseRun, steps: int, settings: Settings) -> Saves:
    stability, own = run.stability, checkpoint_bytes(run.model)
    every, to_keep = settings.checkpoint_steps, settings.keep_every_steps
    intervals = [number for number in (stability.checkpoint_steps, every, to_keep) if number]
    alone = [step for step in set(settings.keep_steps) if step < steps and all(step % number for number in intervals)]
    count = 1 + _num_multiples(steps - 1, intervals) + len(alone)
    to_go_back_to = 1 - (stability.distance_steps + stability.recent_steps) // -stability.checkpoint_steps
    staying = _num_multiples(steps - 1, [to_keep] if to_keep else []) + len(settings.keep_steps)
    kept = min(count, settings.keep_checkpoints + to_go_back_to + staying)
    return Saves(
        every_steps=min(intervals), every_seconds=settings.checkpoint_seconds, count=count, bytes=own, kept=kept,
        kept_bytes=kept * own,
    )  # fmt: skip


def _num_multiples(end: int, numbers: Sequence[int]) -> int:
    """Of the whole numbers from 1 to `end`, how many any of the numbers divides (by inclusion and exclusion)."""
    together = (chosen for size in range(1, len(numbers) + 1) for chosen in combinations(numbers, size))
    return sum((-1) ** (len(chosen) + 1) * (end // math.lcm(*chosen)) for chosen in together)


def _speeds(storage: Storage) -> list[tuple[PhaseRun, Speed]]:
    """Speeds of the newest finished trainings, the newest first."""
    speeds = []
    for reference in list_manifests(storage, "train")[:SEARCHED_TRAININGS]:
        manifest = load_manifest(storage, reference)
        compute: dict[str, Any] = manifest.extra["compute"]
        speed = Speed(
            tokens_per_second=manifest.extra["tokens_per_second"],
            run_id=manifest.run_id,
            compute=f"{compute['ranks']} rank{'s' * (compute['ranks'] != 1)}, {compute['device']}",
        )
        speeds.append((PhaseRun.model_validate(manifest.config), speed))
    return speeds


def _speed_of(run: PhaseRun, speeds: Sequence[tuple[PhaseRun, Speed]]) -> Speed | None:
    for other, speed in speeds:
        is_alike = other.model == run.model and other.precision == run.precision
        if is_alike and other.phase.sequence_length == run.phase.sequence_length:
            return speed
    return None


def _long_token_ratio(
    storage: Storage,
    length: int,
    minimum: int,
    sources: Sequence[MixtureLine],
    datasets: Sequence[tuple[str, str | None]],
) -> float | None:
    """By the weights of the phase; None while a pack is missing or does not say."""
    ratios: dict[str, float] = {}
    for stage, reference in datasets:
        if stage != "pack" or reference is None:
            continue
        manifest = load_manifest(storage, reference)
        request, facts = manifest.config["request"], manifest.extra
        own = request["split"], request["sequence_length"], request.get("min_document_tokens", 0)
        if own == ("train", length, minimum) and "long_tokens" in facts and facts["tokens"]:
            ratios[request["source"]] = facts["long_tokens"] / facts["tokens"]
    if not sources or any(line.source not in ratios for line in sources):
        return None
    return sum(line.share * ratios[line.source] for line in sources)
