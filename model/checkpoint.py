"""Checkpoints: written whole, verified by sha256, loadable by another number of ranks. No pickle anywhere.

Names hold the attempt, so that shards of two attempts never mix. DCP itself has no checksum (a flipped bit loads
silently), hence the hashes: file i is read and verified by rank i mod R of each host, all ranks agree, else the next
older checkpoint is tried and the reason is told. DCP raises CheckpointException, which is a BaseException.
"""

import hashlib
import logging
import shutil
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.optim import Optimizer

from model.checkpoint_files import (
    FORMAT_VERSION,
    UNFINISHED,
    CheckpointManifest,
    StoredFile,
    TrainState,
    copy_checkpoint,
    fetch_files,
    json_bytes,
    list_steps,
    manifest_of,
    read_manifest,
    set_aside,
    step_key,
)
from model.distribute import local_tensor
from model.ranks import Ranks
from model.saving import SaveFailed
from model.scratch import scratch_folder
from model.shards import ShardWriter
from model.store import Store

logger = logging.getLogger(__name__)
warnings.filterwarnings("ignore", "torch.distributed is disabled")  # DCP says so at each save of a single process

MOMENTS = ("exp_avg", "exp_avg_sq")
WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "module.")  # of compile, activation checkpointing, DDP

Value = TypeVar("Value")


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that was loaded, and what was passed over before it: (step, reason)."""

    key: str
    state: TrainState
    manifest: CheckpointManifest
    passed_over: list[tuple[int, str]] = field(default_factory=list)


class NoSoundCheckpoint(Exception):
    """There are checkpoints, and every one of them is damaged."""


def training_tensors(model: nn.Module, optimizer: Optimizer | None) -> dict[str, Tensor]:
    """Weights, persistent buffers and moments by name; moments that do not exist yet are made, as zeros."""
    tensors = {f"model.{_plain_name(name)}": tensor for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters() if optimizer else ():
        moments = optimizer.state[parameter]  # type: ignore[union-attr]
        for moment in MOMENTS:
            if moment not in moments:
                moments[moment] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            tensors[f"optimizer.{moment}.{_plain_name(name)}"] = moments[moment]
    return {name: tensor.detach() for name, tensor in tensors.items()}


def tensors_digest(tensors: dict[str, Tensor]) -> str:
    """sha256 over names, types, shapes and bytes of what this rank holds."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        local = local_tensor(tensor).cpu().contiguous()
        digest.update(f"{name} {local.dtype} {tuple(local.shape)}\n".encode())
        digest.update(local.view(-1).view(torch.uint8).numpy().data if local.numel() else b"")
    return digest.hexdigest()


class Checkpoints:
    """Saves and loads the checkpoints of one training dataset. `scratch` is a folder that all ranks of a host share."""

    def __init__(self, store: Store, folder: str, scratch: Path, attempt: str, ranks: Ranks) -> None:
        self.store, self.folder, self.scratch = store, folder, scratch
        self.attempt, self.ranks = attempt, ranks
        self.history: list[str] = []

    # --- saving --------------------------------------------------------------------------------------------------

    def save(
        self, tensors: dict[str, Tensor], state: TrainState, metrics: pa.Table, *, healthy: bool, is_last: bool = False
    ) -> CheckpointManifest:
        """Write one checkpoint; on return it exists, on every rank. Collective. Raises SaveFailed, on every rank."""
        key = step_key(self.folder, state.step)
        own = self.scratch / f"save-{self.attempt}-{self.ranks.rank}"
        shutil.rmtree(own, ignore_errors=True)
        try:
            dcp_save(
                tensors,
                storage_writer=ShardWriter(own),
                process_group=self.ranks.group,
                no_dist=self.ranks.count == 1,
            )
            shares = self._on_each(lambda: (self._upload_all(own, key), tensors_digest(tensors)))
            shards = [file for files, _ in shares for file in files]
            digest = hashlib.sha256("".join(digest for _, digest in shares).encode()).hexdigest()
            facts = (healthy, is_last)
            [manifest, *_] = self._on_each(
                lambda: self._finish(key, state, metrics, shards, digest, facts) if self.ranks.is_first else None
            )
        except (CheckpointException, SaveFailed) as error:
            raise SaveFailed(f"step {state.step}: {_reason(error)}") from error
        finally:
            shutil.rmtree(own, ignore_errors=True)
        assert manifest is not None
        self.history = manifest.metrics
        return manifest

    def _on_each(self, action: Callable[[], Value]) -> list[Value]:
        """What the action gives on each rank, on every rank. Raises SaveFailed on all where disk or store fail one."""
        value: Value | None = None
        reason: str | None = None
        try:
            value = action()
        except self.store.errors as error:
            reason = str(error)
        answers = self.ranks.gather((value, reason))
        for rank, (_, failed) in enumerate(answers):
            if failed is not None:
                raise SaveFailed(f"rank {rank}: {failed}" if self.ranks.count > 1 else failed)
        return [value for value, _ in answers]  # type: ignore[misc]  # there is one where nothing failed

    def _upload_all(self, own: Path, key: str) -> list[StoredFile]:
        return [self._upload(path, key) for path in sorted(own.glob("*.safetensors"))]

    def _upload(self, path: Path, key: str) -> StoredFile:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        name = f"{self.attempt}-{path.name}"
        self.store.publish_file(path, f"{key}/{name}")
        return StoredFile(name=name, size=path.stat().st_size, sha256=sha256)

    def _finish(
        self,
        key: str,
        state: TrainState,
        metrics: pa.Table,
        shards: list[StoredFile],
        digest: str,
        facts: tuple[bool, bool],
    ) -> CheckpointManifest:
        """Rank 0: the small files, then the manifest."""
        self.store.delete(
            f"{key}/manifest.json"
        )  # of a damaged or rolled-back one: never beside files of another attempt
        sink = pa.BufferOutputStream()
        pq.write_table(metrics, sink)
        contents = {"state.json": json_bytes(state), "metrics.parquet": sink.getvalue().to_pybytes()}
        files = []
        for name, data in contents.items():
            self.store.write_bytes(f"{key}/{name}", data)
            files.append(StoredFile(name=name, size=len(data), sha256=hashlib.sha256(data).hexdigest()))
        manifest = CheckpointManifest(
            format_version=FORMAT_VERSION,
            step=state.step,
            digest=digest,
            healthy=facts[0],
            is_last=facts[1],
            ranks=self.ranks.count,
            attempt=self.attempt,
            shards=shards,
            files=files,
            metrics=[*self.history, f"{key}/metrics.parquet"],
        )
        self.store.write_bytes(f"{key}/manifest.json", json_bytes(manifest))
        return manifest

    def retain(self, keep: int, wanted: Callable[[dict[int, bool]], Iterable[int]] = lambda _: ()) -> list[int]:
        """Remove all but the newest `keep`, the newest healthy one, the last and the `wanted`; rank 0 only.

        `wanted` chooses among steps, newest first, told of each whether it is healthy. What saves that failed or were
        killed left behind goes as well; metrics stay: they are the history. Returns the steps removed.
        """
        found = {step: read_manifest(self.store, self.folder, step) for step in list_steps(self.store, self.folder)}
        known = {step: manifest for step, manifest in found.items() if isinstance(manifest, CheckpointManifest)}
        newest = sorted(known, reverse=True)
        kept = set(newest[:keep]) | set(wanted({step: known[step].healthy for step in newest}))
        kept |= set([step for step in newest if known[step].healthy][:1])
        kept |= {step for step in newest if known[step].is_last}
        removed = [step for step in sorted(known) if step not in kept]
        for step in removed:
            self.store.delete(f"{step_key(self.folder, step)}/manifest.json")  # first: half of one must not look whole
            found[step] = UNFINISHED
        for step in [step for step in found if newest and step <= newest[0]]:
            self._sweep(step, found[step])
        return removed

    def _sweep(self, step: int, manifest: CheckpointManifest | str) -> None:
        """Delete the files of a step that its manifest does not name; nothing where that is damaged: it is evidence."""
        if isinstance(manifest, str) and manifest != UNFINISHED:
            return
        named = {"manifest.json", "metrics.parquet"}
        if not isinstance(manifest, str):
            named |= {file.name for file in (*manifest.shards, *manifest.files)}
        for file in self.store.list_files(step_key(self.folder, step)):
            if file.key.rpartition("/")[2] not in named:
                self.store.delete(file.key)

    # --- loading -------------------------------------------------------------------------------------------------

    def load_newest(
        self, tensors: dict[str, Tensor], check: Callable[[TrainState], str | None] = lambda _: None
    ) -> Loaded | None:
        """Load the newest sound checkpoint into `tensors`; None when there is none at all. Collective.

        `check` judges what was loaded and returns a reason against it. Raises NoSoundCheckpoint.
        """
        passed_over: list[tuple[int, str]] = []
        damaged = False
        for step in self.ranks.from_first(list_steps(self.store, self.folder) if self.ranks.is_first else []):
            loaded = self.load(step_key(self.folder, step), tensors, check)
            if isinstance(loaded, Loaded):
                self.history = loaded.manifest.metrics
                return Loaded(loaded.key, loaded.state, loaded.manifest, passed_over)
            logger.warning("checkpoint of step %d passed over: %s", step, loaded)
            passed_over.append((step, loaded))
            damaged |= loaded != UNFINISHED
        if damaged:
            reasons = "; ".join(f"step {step}: {reason}" for step, reason in passed_over)
            raise NoSoundCheckpoint(f"{self.folder}: no sound checkpoint among {len(passed_over)}: {reasons}")
        return None

    def load_healthy(
        self,
        tensors: dict[str, Tensor],
        is_wanted: Callable[[int], bool],
        check: Callable[[TrainState], str | None] = lambda _: None,
        keep_steps: Iterable[int] = (),
    ) -> Loaded | None:
        """Go back to the newest sound and healthy checkpoint of a wanted step; None when there is none. Collective.

        Those after it are void, for their history is another one: their manifests go, on rank 0, newest first; those
        of `keep_steps` are set aside, where a fork still finds them.
        """
        steps = self.ranks.from_first(list_steps(self.store, self.folder) if self.ranks.is_first else [])
        loaded: Loaded | str = UNFINISHED
        for step in filter(is_wanted, steps):
            loaded = self.load(step_key(self.folder, step), tensors, check, only_healthy=True)
            if isinstance(loaded, Loaded):
                break
            logger.warning("checkpoint of step %d passed over: %s", step, loaded)
        found = loaded if isinstance(loaded, Loaded) else None
        self.history = found.manifest.metrics if found else []
        for step in steps if self.ranks.is_first else []:
            if found is None or step > found.state.step:
                key = step_key(self.folder, step)
                if step in set(keep_steps) and self.store.exists(f"{key}/manifest.json"):
                    copy_checkpoint(self.store, key, step_key(set_aside(self.folder), step))
                self.store.delete(f"{key}/manifest.json")
        return found

    def load(
        self,
        key: str,
        tensors: dict[str, Tensor],
        check: Callable[[TrainState], str | None] = lambda _: None,
        *,
        only_healthy: bool = False,
    ) -> Loaded | str:
        """Load the checkpoint at `key` into `tensors`, or say why it can't be. Collective."""
        folder, _, name = key.rpartition("/")
        manifest = self.ranks.from_first(
            read_manifest(self.store, folder, int(name.removeprefix("step-"))) if self.ranks.is_first else UNFINISHED
        )
        if isinstance(manifest, str):
            return manifest
        if only_healthy and not manifest.healthy:
            return "it was saved between bad steps"
        host = self.ranks.rank - self.ranks.local_rank  # two agents of torchrun may share one machine
        local = self.scratch / f"load-{self.attempt}-{manifest.step}-{host}"
        try:
            mine = [*manifest.shards, *manifest.files][self.ranks.local_rank :: self.ranks.local_count]
            if reason := self._agreed(fetch_files(self.store, key, mine, local)):
                return reason
            state = TrainState.model_validate_json((local / "state.json").read_bytes())
            try:
                dcp_load(
                    tensors,
                    storage_reader=HuggingFaceStorageReader(str(local)),
                    process_group=self.ranks.group,
                    no_dist=self.ranks.count == 1,
                )
            except CheckpointException as error:
                return f"its tensors do not fit: {error}"
            if reason := self._agreed(check(state)):
                return reason
            return Loaded(key, state, manifest)
        finally:
            self.ranks.wait()
            shutil.rmtree(local, ignore_errors=True)

    def _agreed(self, reason: str | None) -> str | None:
        return next((given for given in self.ranks.gather(reason) if given), None)


def load_weights(store: Store, checkpoint_key: str) -> tuple[dict[str, Tensor], TrainState]:
    """The whole weights of a checkpoint by parameter name, on the CPU, without a process group; and its state.

    Raises ValueError when the checkpoint is damaged or has no manifest.
    """
    manifest = manifest_of(store, checkpoint_key)
    with scratch_folder() as local:
        if reason := fetch_files(store, checkpoint_key, [*manifest.shards, *manifest.files], local):
            raise ValueError(f"{checkpoint_key}: {reason}")
        reader = HuggingFaceStorageReader(str(local))
        tensors = {
            name: torch.empty(facts.size, dtype=facts.properties.dtype)
            for name, facts in reader.read_metadata().state_dict_metadata.items()
            if name.startswith("model.") and isinstance(facts, TensorStorageMetadata)
        }
        dcp_load(tensors, storage_reader=reader, no_dist=True)
        state = TrainState.model_validate_json((local / "state.json").read_bytes())
    return {name.removeprefix("model."): tensor for name, tensor in tensors.items()}, state


def _reason(error: BaseException) -> str:
    """The message of a failure, without the trace that DCP puts into its own."""
    failures = getattr(error, "failures", {})
    return "; ".join(f"rank {rank}: {failure[0]}" for rank, failure in failures.items()) or str(error)


def _plain_name(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name
