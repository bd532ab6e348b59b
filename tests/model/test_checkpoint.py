import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from model.checkpoint import Checkpoints, NoSoundCheckpoint, load_weights, tensors_digest, training_tensors
from model.checkpoint_files import UNFINISHED, TrainState, list_steps, read_metrics
from model.ranks import Ranks
from tasks.storage import Storage

FOLDER = "train/x/checkpoints"
WORKER = Path(__file__).with_name("checkpoint_worker.py")


def state_of(step: int) -> TrainState:
    return TrainState(
        phase="main",
        step=step,
        applied_steps=step,
        tokens=step * 64,
        position=step * 2,
        ordinals={"d": step},
        probe_loss=0.1,
    )


def metrics_of(*steps: int) -> pa.Table:
    return pa.table({"step": pa.array(steps, pa.int64())})


def make_training(value: float = 0.0) -> dict[str, Tensor]:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    tensors = training_tensors(model, optimizer)
    for index, tensor in enumerate(tensors.values()):
        tensor.fill_(value + index)
    return tensors


def checkpoints_of(store: Storage, tmp_path: Path, attempt: str = "a1") -> Checkpoints:
    return Checkpoints(store, FOLDER, tmp_path / "scratch", attempt, Ranks())


@pytest.fixture
def saved(store: Storage, tmp_path: Path) -> Storage:
    """Three checkpoints: steps 10, 20 and 30 with tensors filled from 10, 20 and 30 on."""
    checkpoints = checkpoints_of(store, tmp_path)
    for step in (10, 20, 30):
        checkpoints.save(make_training(step), state_of(step), metrics_of(step - 1, step), healthy=True)
    return store


def shard_of(store: Storage, step: int) -> Path:
    return next(Path(store.path(f"{FOLDER}/step-{step:08d}")).glob("*.safetensors"))


def flip_bit(store: Storage) -> str:
    data = bytearray(shard_of(store, 30).read_bytes())
    data[-3] ^= 1
    shard_of(store, 30).write_bytes(data)
    return "has sha256"


def truncate(store: Storage) -> str:
    shard_of(store, 30).write_bytes(shard_of(store, 30).read_bytes()[:-8])
    return "bytes, "


def swap_step(store: Storage) -> str:
    shard_of(store, 30).write_bytes(shard_of(store, 20).read_bytes())
    return "has sha256"


def lose_shard(store: Storage) -> str:
    shard_of(store, 30).unlink()
    return "is missing"


def lose_manifest(store: Storage) -> str:
    store.delete(f"{FOLDER}/step-00000030/manifest.json")
    return "it has no manifest"


def garble_manifest(store: Storage) -> str:
    store.write_bytes(f"{FOLDER}/step-00000030/manifest.json", b'{"format_version": 1')
    return "its manifest is damaged"


def old_format(store: Storage) -> str:
    store.write_bytes(f"{FOLDER}/step-00000030/manifest.json", b'{"format_version": 0}')
    return "its format is 0"


def garble_state(store: Storage) -> str:
    store.write_bytes(f"{FOLDER}/step-00000030/state.json", b"{}")
    return "state.json has 2 bytes"


FAULTS = [flip_bit, truncate, swap_step, lose_shard, lose_manifest, garble_manifest, old_format, garble_state]


def test_save_and_load_return_the_same(saved: Storage, tmp_path: Path) -> None:
    tensors = make_training(0)
    loaded = checkpoints_of(saved, tmp_path, "a2").load_newest(tensors)
    assert loaded is not None
    assert (loaded.state, loaded.passed_over, loaded.manifest.attempt) == (state_of(30), [], "a1")
    assert tensors_digest(tensors) == tensors_digest(make_training(30))
    assert not list((tmp_path / "scratch").iterdir())


def test_nothing_in_a_checkpoint_is_pickled(saved: Storage) -> None:
    names = {Path(file.key).suffix for file in saved.list_files(FOLDER)}
    assert names == {".safetensors", ".json", ".parquet"}
    assert load_file(shard_of(saved, 10)).keys() == make_training().keys()


@pytest.mark.parametrize("damage", FAULTS)
def test_a_damaged_checkpoint_is_passed_over_with_the_reason(saved: Storage, tmp_path: Path, damage: Any) -> None:
    """ray#41700: shards of two saves mixed, a flipped bit; DCP itself would load both without a word."""
    reason = damage(saved)
    tensors = make_training(0)
    loaded = checkpoints_of(saved, tmp_path, "a2").load_newest(tensors)
    assert loaded is not None
    assert loaded.state == state_of(20)
    assert tensors_digest(tensors) == tensors_digest(make_training(20))
    [(step, told)] = loaded.passed_over
    assert step == 30
    assert reason in told


def test_no_sound_checkpoint_is_an_error_with_every_reason(saved: Storage, tmp_path: Path) -> None:
    for step in (10, 20, 30):
        shard_of(saved, step).unlink()
    with pytest.raises(NoSoundCheckpoint, match=r"among 3: step 30: .* is missing; step 20: .* step 10: "):
        checkpoints_of(saved, tmp_path).load_newest(make_training())


def test_an_unfinished_first_checkpoint_is_none(saved: Storage, tmp_path: Path) -> None:
    for step in (10, 20, 30):
        saved.delete(f"{FOLDER}/step-{step:08d}/manifest.json")
    assert list_steps(saved, FOLDER) == [30, 20, 10]
    assert checkpoints_of(saved, tmp_path).load_newest(make_training()) is None
    assert checkpoints_of(Storage(str(tmp_path / "other")), tmp_path).load_newest(make_training()) is None


def test_tensors_that_do_not_fit_are_refused(saved: Storage, tmp_path: Path) -> None:
    other = {name: torch.zeros(5, 5) for name in make_training()}
    with pytest.raises(NoSoundCheckpoint, match="step 30: its tensors do not fit"):
        checkpoints_of(saved, tmp_path).load_newest(other)
    with pytest.raises(NoSoundCheckpoint, match="its tensors do not fit"):
        checkpoints_of(saved, tmp_path).load_newest(make_training() | {"model.new": torch.zeros(1)})


def test_a_failed_check_passes_to_the_older_one(saved: Storage, tmp_path: Path) -> None:
    loaded = checkpoints_of(saved, tmp_path).load_newest(
        make_training(), lambda state: "probe loss differs" if state.step == 30 else None
    )
    assert loaded is not None
    assert (loaded.state.step, loaded.passed_over) == (20, [(30, "probe loss differs")])


def test_saving_again_replaces_a_damaged_checkpoint(saved: Storage, tmp_path: Path) -> None:
    flip_bit(saved)
    second = checkpoints_of(saved, tmp_path, "a2")
    assert second.load_newest(make_training()) is not None
    second.save(make_training(30), state_of(30), metrics_of(29, 30), healthy=True)
    loaded = checkpoints_of(saved, tmp_path, "a3").load_newest(tensors := make_training())
    assert loaded is not None
    assert (loaded.state.step, loaded.manifest.attempt) == (30, "a2")
    assert tensors_digest(tensors) == tensors_digest(make_training(30))
    assert read_metrics(saved, loaded.key)["step"].to_pylist() == [9, 10, 19, 20, 29, 30]


def test_a_disk_that_refuses_leaves_the_older_checkpoints(saved: Storage, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    checkpoints = Checkpoints(saved, FOLDER, tmp_path / "file", "a2", Ranks())
    with pytest.raises(OSError, match="file"):
        checkpoints.save(make_training(40), state_of(40), metrics_of(40), healthy=True)
    loaded = checkpoints_of(saved, tmp_path, "a3").load_newest(make_training())
    assert loaded is not None
    assert loaded.state.step == 30


def test_digest_is_of_contents(saved: Storage, tmp_path: Path) -> None:
    store = Storage(str(tmp_path / "second"))
    digests = [
        checkpoints_of(root, tmp_path, f"b{value}")
        .save(make_training(value), state_of(40), metrics_of(), healthy=True)
        .digest
        for root, value in ((saved, 40), (store, 40), (store, 41))
    ]
    assert digests[0] == digests[1] != digests[2]


def test_retention_keeps_the_last_healthy_the_named_and_the_history(store: Storage, tmp_path: Path) -> None:
    checkpoints = checkpoints_of(store, tmp_path)
    for step in range(10, 80, 10):
        checkpoints.save(make_training(step), state_of(step), metrics_of(step), healthy=step in (20, 30))
    assert checkpoints.retain(2, lambda healthy: [10]) == [20, 40, 50]
    assert list_steps(store, FOLDER) == [70, 60, 30, 10]
    assert checkpoints.retain(2, lambda healthy: [step for step in healthy if step == 10]) == []
    assert read_metrics(store, f"{FOLDER}/step-00000070")["step"].to_pylist() == list(range(10, 80, 10))
    assert checkpoints.retain(0) == [10, 60, 70]


def test_what_failed_saves_left_behind_goes_with_the_next(saved: Storage, tmp_path: Path) -> None:
    """Beside a kept checkpoint and in place of one; what is damaged stays, and what is being written now."""
    left = [f"{FOLDER}/step-000000{step}/k1-shard.safetensors" for step in (10, 15, 20, 40)]
    for key in left:
        saved.write_bytes(key, b"half")
    saved.write_bytes(f"{FOLDER}/step-00000015/metrics.parquet", b"history")
    saved.write_bytes(f"{FOLDER}/step-00000020/manifest.json", b"{")
    assert checkpoints_of(saved, tmp_path).retain(3) == []
    assert [saved.exists(key) for key in left] == [False, False, True, True]
    assert saved.exists(f"{FOLDER}/step-00000015/metrics.parquet")
    for step in (10, 30):
        assert checkpoints_of(saved, tmp_path).load(f"{FOLDER}/step-000000{step}", make_training(0)) != UNFINISHED


def test_the_last_checkpoint_of_a_phase_is_never_removed(store: Storage, tmp_path: Path) -> None:
    checkpoints = checkpoints_of(store, tmp_path)
    checkpoints.save(make_training(), state_of(10), metrics_of(), healthy=True, is_last=True)
    checkpoints.save(make_training(), state_of(20), metrics_of(), healthy=True)
    assert checkpoints.retain(1) == []


def test_weights_load_alone(saved: Storage) -> None:
    weights, state = load_weights(saved, f"{FOLDER}/step-00000020")
    assert state == state_of(20)
    assert {name: tensor.flatten()[0].item() for name, tensor in weights.items()} == {"weight": 20, "bias": 21}
    flip_bit(saved)
    with pytest.raises(ValueError, match=r"step-00000030: .* has sha256"):
        load_weights(saved, f"{FOLDER}/step-00000030")
    lose_manifest(saved)
    for read in (load_weights, read_metrics):
        with pytest.raises(ValueError, match="step-00000030: it has no manifest"):
            read(saved, f"{FOLDER}/step-00000030")


def test_two_ranks_save_and_one_or_two_load(store: Storage, tmp_path: Path, rank_processes: Any) -> None:
    """pytorch#91205, torchtitan#809, #1136: uneven weights and moments, gathered, are those that were saved."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    common = {"ROOT": store.url, "SCRATCH": str(scratch), "STATE": state_of(7), "METRICS": metrics_of(7)}
    rank_processes.run(WORKER, 2, **common, ATTEMPT="save", SAVE=True)
    rank_processes.run(WORKER, 2, **common, ATTEMPT="two", SAVE=False)
    rank_processes.run(WORKER, 1, **common, ATTEMPT="one", SAVE=False)
    found = {path.stem: json.loads(path.read_text()) for path in scratch.glob("*.json")}
    assert sorted(found) == ["one-0", "save-0", "save-1", "two-0", "two-1"]
    for name, held in found.items():
        assert held["tensors"] == found["save-0"]["tensors"]
        assert held["state"] is (None if name.startswith("save") else True)
    weights, _ = load_weights(store, f"{FOLDER}/step-00000007")
    assert {f"model.{name}": tensor.tolist() for name, tensor in weights.items()}.items() <= found["save-0"][
        "tensors"
    ].items()
    assert len(list(Path(store.path(f"{FOLDER}/step-00000007")).glob("save-*.safetensors"))) == 2
