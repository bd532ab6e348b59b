"""The files of checkpoints that are no tensors: states, manifests, metrics. No torch here, so that reports read them.

<folder>/step-00001234/<attempt>-shard-...safetensors   weights and moments: DCP's plan, one file per rank
                      /state.json                       clock, position, ordinals, events, probe loss
                      /metrics.parquet                  the steps since the checkpoint before
                      /manifest.json                    written last: the checkpoint exists if and only if it does
"""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, JsonValue

from model.schedule import Events
from model.scratch import scratch_folder
from model.stability import Memory
from model.store import Store

FORMAT_VERSION = 1
STEP_FOLDER = re.compile(r"/step-(\d{8})/")
COPY_BYTES = 1 << 20
UNFINISHED = "it has no manifest: its writing was not finished"


class TrainState(BaseModel, frozen=True, extra="forbid"):
    """What a checkpoint knows beside its tensors. Random numbers are drawn from (seed, position, rank): no state."""

    phase: str
    step: int
    applied_steps: int  # of all phases: AdamW's bias correction counts them
    tokens: int  # clock of the phase
    position: int
    ordinals: dict[str, int]  # pack key -> rows drawn by this phase and those before it
    events: Events = Events()
    memory: Memory = Memory()
    probe_loss: float | None = None
    has_moments: bool = True  # imported weights have none
    config: dict[str, JsonValue] = {}
    compute: dict[str, JsonValue] = {}
    code: str = ""  # digest of the code that made it


class StoredFile(BaseModel, frozen=True, extra="forbid"):
    """A file of a checkpoint, as it was written."""

    name: str
    size: int
    sha256: str


class CheckpointManifest(BaseModel, frozen=True, extra="forbid"):
    """Written last. `digest` is over names and tensors, not over file bytes, which differ between two equal saves."""

    format_version: int
    step: int
    digest: str
    healthy: bool
    is_last: bool
    ranks: int
    attempt: str
    shards: list[StoredFile]
    files: list[StoredFile]
    metrics: list[str]  # steps whose metrics.parquet, joined, are the history up to here


def step_key(folder: str, step: int) -> str:
    """Folder of one checkpoint."""
    return f"{folder}/step-{step:08d}"


def list_steps(store: Store, folder: str) -> list[int]:
    """Steps that a checkpoint was begun for, newest first; whether it exists is for its manifest to say."""
    names = [file.key for file in store.list_files(folder) if not file.key.endswith("/metrics.parquet")]
    return sorted({int(match.group(1)) for name in names if (match := STEP_FOLDER.search(name))}, reverse=True)


def find_last(store: Store, folder: str) -> tuple[str, CheckpointManifest] | None:
    """The checkpoint with which a training ended, and its key; None while it is not at its end."""
    for step in list_steps(store, folder):
        manifest = read_manifest(store, folder, step)
        if isinstance(manifest, CheckpointManifest) and manifest.is_last:
            return step_key(folder, step), manifest
    return None


def set_aside(folder: str) -> str:
    """Where checkpoints lie that a roll-back made void and that are kept all the same."""
    return f"{folder}-set-aside"


def fetch_files(store: Store, key: str, files: Sequence[StoredFile], local: Path) -> str | None:
    """Copy files to a local folder, verified on the way; the reason when one is not as it was written."""
    local.mkdir(parents=True, exist_ok=True)
    for file in files:
        digest, size = hashlib.sha256(), 0
        try:
            with store.open_input(f"{key}/{file.name}") as source, (local / file.name).open("wb") as target:
                while data := source.read(COPY_BYTES):
                    digest.update(data)
                    size += len(data)
                    target.write(data)
        except FileNotFoundError:
            return f"{file.name} is missing"
        if size != file.size:
            return f"{file.name} has {size} bytes, {file.size} were written"
        if digest.hexdigest() != file.sha256:
            return f"{file.name} has sha256 {digest.hexdigest()[:12]}, {file.sha256[:12]} was written"
    return None


def copy_checkpoint(store: Store, key: str, target: str) -> CheckpointManifest:
    """Copy a checkpoint, file by file and verified, its manifest last; returns the copy's. Raises ValueError.

    The copy's history is that of the original: metrics of the steps before lie where they lay.
    """
    manifest = manifest_of(store, key)
    with scratch_folder() as scratch:
        for file in [*manifest.shards, *manifest.files]:
            if reason := fetch_files(store, key, [file], scratch):
                raise ValueError(f"{key}: {reason}")
            store.publish_file(scratch / file.name, f"{target}/{file.name}")
    history = [f"{target}/metrics.parquet" if name == f"{key}/metrics.parquet" else name for name in manifest.metrics]
    copy = manifest.model_copy(update={"metrics": history})
    store.write_bytes(f"{target}/manifest.json", json_bytes(copy))
    return copy


def read_state(store: Store, checkpoint_key: str) -> TrainState:
    """The state of a checkpoint, verified. Raises ValueError when it is damaged or has no manifest."""
    manifest = manifest_of(store, checkpoint_key)
    data = store.read_bytes(f"{checkpoint_key}/state.json")
    if hashlib.sha256(data).hexdigest() not in {file.sha256 for file in manifest.files}:
        raise ValueError(f"{checkpoint_key}: state.json is not as it was written")
    return TrainState.model_validate_json(data)


def read_metrics(store: Store, checkpoint_key: str) -> pa.Table:
    """The metrics of every step up to a checkpoint. Raises ValueError when it has no manifest."""
    manifest = manifest_of(store, checkpoint_key)
    tables = [pq.read_table(pa.BufferReader(store.read_bytes(key))) for key in manifest.metrics]
    return pa.concat_tables(tables, promote_options="default")  # a column that came later is null before


def manifest_of(store: Store, checkpoint_key: str) -> CheckpointManifest:
    """The manifest of a checkpoint. Raises ValueError when there is none or it is damaged."""
    folder, _, name = checkpoint_key.rpartition("/")
    manifest = read_manifest(store, folder, int(name.removeprefix("step-")))
    if isinstance(manifest, str):
        raise ValueError(f"{checkpoint_key}: {manifest}")
    return manifest


def read_manifest(store: Store, folder: str, step: int) -> CheckpointManifest | str:
    """The manifest of one step, or why it can't be used."""
    try:
        value = json.loads(store.read_bytes(f"{step_key(folder, step)}/manifest.json"))
    except FileNotFoundError:
        return UNFINISHED
    except ValueError as error:
        return f"its manifest is damaged: {error}"
    if value.get("format_version") != FORMAT_VERSION:
        return f"its format is {value.get('format_version')}, this basemill reads {FORMAT_VERSION}"
    try:
        return CheckpointManifest.model_validate(value)
    except ValueError as error:
        return f"its manifest is damaged: {error}"


def json_bytes(value: BaseModel) -> bytes:
    """The bytes of a JSON file: sorted keys, indented."""
    return json.dumps(value.model_dump(mode="json"), indent=2, sort_keys=True).encode()
