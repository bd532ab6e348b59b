"""What a training's key is made of: each setting decides the result, or is neutral; a new one must be put in a list."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from model.architecture import ExpertsConfig
from model.job import Settings
from model.phases import BatchStep
from tasks.dataset import Workspace
from tasks.errors import NotComputed
from tasks.manifest import Manifest
from tasks.storage import Storage
from tests.tasks.test_train import make_pack, make_run, train

# Values other than those of make_run. Where and how it is computed: the same rows, losses equal within rounding
NEUTRAL_SETTINGS: dict[str, Any] = {
    "micro_batch_rows": 1, "checkpoint_seconds": 1.0, "checkpoint_steps": 7, "keep_checkpoints": 9, "keep_steps": (2,),
    "keep_every_steps": 3, "ranks": 2, "threads": 2, "device": "cuda", "parallel": "ddp", "shard_ranks": 1,
    "recompute": True, "compile_blocks": True, "background_saves": False, "profile_steps": (1, 2), "cache_bytes": 1,
}  # fmt: skip
NEUTRAL: dict[str, Any] = {"max_epochs": 9.0}  # a guard

DECIDING: dict[str, Any] = {
    "precision": "bf16", "seed": 2, "take": "weights",
    **{f"model.{name}": value for name, value in {
        "num_layers": 3, "width": 64, "num_heads": 2, "num_kv_heads": 1, "head_width": 16, "mlp_width": 128,
        "vocab_size": 320, "vocab_multiple": 128, "positions": "learned", "max_positions": 4096, "rope_base": 5e5,
        "norm": "layer", "norm_eps": 1e-6, "qk_norm": True, "activation": "gelu", "biases": True, "dropout": 0.1,
        "tie_embeddings": False, "experts": ExpertsConfig(count=4, active=2), "initialization": "normal",
    }.items()},
    **{f"phase.{name}": value for name, value in {
        "name": "other", "after": "before", "tokens": 64, "weights": {"web": 2, "code": 1}, "sequence_length": 8,
        "min_document_tokens": 4, "batch": (BatchStep(from_tokens=0, rows=8),), "rope_base": 5e5,
    }.items()},
    **{f"phase.schedule.{name}": value for name, value in {
        "lr": 2e-2, "shape": "wsd", "warmup_tokens": 64, "decay_tokens": 64, "decay_shape": "sqrt", "final_ratio": 0.5,
        "from_tokens": 64, "horizon_tokens": 6400, "lr_batch_rule": "sqrt", "lr_batch_tokens": 32,
    }.items()},
    **{f"optimizer.{name}": value for name, value in {
        "betas": (0.8, 0.9), "eps": 1e-7, "weight_decay": 0.2, "clip_norm": 2.0, "z_loss": 1e-3,
    }.items()},
    **{f"stability.{name}": value for name, value in {
        "window_steps": 99, "min_window_steps": 9, "sigmas": 5.0, "min_sigma_ratio": 0.1, "recent_steps": 9,
        "max_bad_steps": 2, "distance_steps": 9, "margin_steps": (1,), "calm_steps": 9, "calm_lr_factor": 0.1,
        "calm_clip_factor": 0.1, "checkpoint_steps": 9, "level_tolerance": 0.1, "held_out_rows": 9,
    }.items()},
}  # fmt: skip


def keys_of(config: BaseModel, path: str = "") -> Iterator[str]:
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            yield from keys_of(value, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def changed(config: Any, path: str, value: Any) -> Any:
    name, _, rest = path.partition(".")
    return config.model_copy(update={name: changed(getattr(config, name), rest, value) if rest else value})


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, list[Manifest], Manifest]:
    """A workspace that only looks, the packs, and what was trained on them."""
    into = Workspace(Storage(str(tmp_path_factory.mktemp("keys") / "lake")), run_id="test")
    packs = [make_pack(into, source) for source in ("web", "code")]
    return replace(into, dry=True), packs, train(packs, into)


def fingerprint_of(lake: tuple[Workspace, list[Manifest], Manifest], run: Any) -> str:
    into, packs, _ = lake
    inputs = {f"pack:{pack.config['request']['source']}": pack for pack in packs}
    return into.dataset("train", run, inputs=inputs, module="tasks.train", with_code=False).fingerprint


def test_every_setting_is_in_a_list() -> None:
    assert set(Settings.model_fields) == set(NEUTRAL_SETTINGS)
    assert set(keys_of(make_run())) == {*DECIDING, *NEUTRAL}
    assert not DECIDING.keys() & NEUTRAL.keys()


@pytest.mark.parametrize("name", NEUTRAL_SETTINGS)
def test_how_it_is_computed_is_no_part_of_the_key(lake: tuple[Workspace, list[Manifest], Manifest], name: str) -> None:
    into, packs, trained = lake
    assert getattr(Settings(), name) != NEUTRAL_SETTINGS[name]
    assert train(packs, into, **{name: NEUTRAL_SETTINGS[name]}).fingerprint == trained.fingerprint


@pytest.mark.parametrize("path", NEUTRAL)
def test_a_guard_is_no_part_of_the_key(lake: tuple[Workspace, list[Manifest], Manifest], path: str) -> None:
    assert fingerprint_of(lake, changed(make_run(), path, NEUTRAL[path])) == lake[2].fingerprint


@pytest.mark.parametrize("path", DECIDING)
def test_what_decides_the_result_changes_the_key(lake: tuple[Workspace, list[Manifest], Manifest], path: str) -> None:
    assert fingerprint_of(lake, make_run()) == lake[2].fingerprint
    assert fingerprint_of(lake, changed(make_run(), path, DECIDING[path])) != lake[2].fingerprint


def test_other_rows_are_another_training(lake: tuple[Workspace, list[Manifest], Manifest]) -> None:
    into, packs, _ = lake
    with pytest.raises(NotComputed):
        train([packs[0], make_pack(replace(into, dry=False), "code", rows=301)], into)
