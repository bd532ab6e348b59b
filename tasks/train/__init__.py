"""train: packs of a phase's sources -> checkpoints and metrics; one dataset per phase.

Reads the packs (`input_ids`, `document_starts`, `num_tokens`), held-out packs of the same sources (they judge the model
meanwhile; see model/stability.py) and, after another phase, its last checkpoint. Writes

    train/<fingerprint>/checkpoints/step-00001234/...   see model/checkpoint_files.py
                       /checkpoint.json                 which checkpoint is the result, and what it stands for
                       /metrics.parquet                 every step; only columns that recipe, data and compute decide
                       /halted.json                     why training stopped itself; while it exists nothing is tried

The key holds model, optimizer, precision, seed, stability, this phase, the packs' digests and the parent's; code,
ranks, micro-batch, compile and intervals stay out (each checkpoint records the compute that made it). A rerun:

| found | then |
|---|---|
| a manifest | nothing: cached |
| a sound checkpoint | resumed from the newest sound one, saying what was passed over |
| checkpoints, none sound | fails with every reason |
| nothing | fresh start, said |
| halted.json | TrainingDiverged, never tried again by itself |

Invariant: rows consumed = the plan minus the skip list. Ray Train places and connects the ranks, no more: what happened
is read from storage. Where it computes is said by BASEMILL_TRAIN, e.g. `{ranks: 2, micro_batch_rows: 4}`.
"""

import io
import logging
import os
import signal
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml
from pydantic import ValidationError

from model.checkpoint_files import find_last, read_metrics, read_state
from model.config import PhaseRun
from model.cost import model_flops_utilisation
from model.job import EXACT_METRICS, Job, Settings, order_of
from model.order import Pack, PackPart, check_epochs
from model.schedule import rows_of_phase
from model.scratch import new_scratch
from tasks.codedigest import TRAINER, code_digest
from tasks.config import explain
from tasks.dataset import Dataset, Workspace
from tasks.errors import Cancelled, ConfigError, DataError, StorageError, TrainingDiverged, WorkerLost
from tasks.fork import check_vocabulary, facts_of, note_start
from tasks.manifest import Manifest
from tasks.parallel import start_ray
from tasks.storage import Storage
from tasks.train.live import LiveSegments
from tasks.train.ranks import (
    cpus_under_torchrun,
    is_under_torchrun,
    lead,
    settings_under_torchrun,
    train_here,
    train_on_ray,
)
from tasks.trained_model import decoder_of

logger = logging.getLogger(__name__)

SETTINGS_VARIABLE = "BASEMILL_TRAIN"
PROGRESS_SECONDS = 10.0  # the live view is published every 30; asking more often shows nothing new


def train_phase(*datasets: Manifest, into: Workspace, config: PhaseRun, settings: Settings | None = None) -> Manifest:
    """The trained phase. `datasets`: the packs of its sources and, unless it is a first phase, the phase it continues.

    `extra`: checkpoint (its key), step, tokens, loss_first, loss_last, tokens_per_second, skipped_steps, decisions
    (roll-backs, accepted levels), sources (rows and epochs), ordinals, compute. Raises ConfigError, DataError,
    TrainingDiverged, WorkerLost, LeaseLost.
    """
    by_source, held_out = (packs_by_source(datasets, split) for split in ("train", "held_out"))
    parent = next((manifest for manifest in datasets if manifest.stage in ("train", "import", "fork")), None)
    packs = [pack_of(source, manifest) for source, manifest in sorted(by_source.items())]
    check_data(config, packs, parent, with_epochs=not into.dry)  # a plan shows all sources and what would fit
    inputs = {f"pack:{source}": manifest for source, manifest in sorted(by_source.items())}
    inputs |= {f"held_out:{source}": manifest for source, manifest in sorted(held_out.items())}
    if parent is not None:
        inputs["parent"] = parent
        if parent.stage == "fork":
            check_vocabulary(into.storage, [*by_source.values()], parent)
    dataset = into.dataset("train", config, inputs=inputs, module=__name__, with_code=False)
    if found := dataset.find():
        return found
    attempt = f"{into.run_id}-{uuid.uuid4().hex[:6]}"
    job = Job(
        run=config,
        packs=tuple(packs),
        store=into.storage,
        folder=dataset.reference,
        attempt=attempt,
        scratch=str(new_scratch()),
        settings=settings or settings_from_environment(),
        parent=parent.extra["checkpoint"] if parent else None,
        live_prefix=f"runs/{into.run_id}/live/train-{config.phase.name}",
        code=code_digest(TRAINER).digest,
        held_out=tuple(pack_of(source, manifest) for source, manifest in sorted(held_out.items())),
        token_bytes=token_bytes_of(by_source),
        decode=decoder_of(into.storage, next(iter(by_source.values()))),
    )
    with dataset.lease() as lost:
        if into.storage.exists(job.halted_key):
            raise TrainingDiverged(halt_message(into.storage, job))
        note_start(into.storage, into.run_id, job, inputs)
        if find_last(job.store, job.checkpoints_folder) is None:
            run_job(job, into, lost)
        return publish(dataset, job, packs)


# --- what is asked for ---------------------------------------------------------------------------------------------


def packs_by_source(datasets: Iterable[Manifest], split: str) -> dict[str, Manifest]:
    """The packs of one split among datasets."""
    packs = [manifest.config["request"] | {"manifest": manifest} for manifest in datasets if manifest.stage == "pack"]
    return {pack["source"]: pack["manifest"] for pack in packs if pack["split"] == split}


def pack_of(source: str, manifest: Manifest) -> Pack:
    """What the data order needs to know of a pack."""
    parts = tuple(PackPart(part.path, part.rows) for part in manifest.parts if part.rows)
    return Pack(source, manifest.digest, parts, manifest.extra["tokens"], manifest.config["request"]["sequence_length"])


def token_bytes_of(packs: Mapping[str, Manifest]) -> str | None:
    """Where the tokenizer of the packs lists the bytes of its tokens."""
    entries = (entry for pack in packs.values() for entry in pack.inputs if entry["role"] == "vocabulary")
    return next((f"{entry['stage']}/{entry['fingerprint']}/token_bytes.json" for entry in entries), None)


def check_data(config: PhaseRun, packs: list[Pack], parent: Manifest | None, *, with_epochs: bool = True) -> None:
    """Raises ConfigError when the packs can't carry the phase: one is missing or empty, or read too often."""
    phase, used = config.phase, dict(parent.extra["ordinals"]) if parent else {}
    try:
        order = order_of(config, packs, used)
        for pack in order.packs:
            if pack.length != phase.sequence_length:
                raise ConfigError(
                    f"phase {phase.name} reads rows of {phase.sequence_length}, {pack.source}'s hold {pack.length}"
                )
        if with_epochs:
            check_epochs([(order, rows_of_phase(config))], config.max_epochs)
    except ValueError as error:
        raise ConfigError(f"train: {error}") from error


def settings_from_environment() -> Settings:
    """How to compute here, from BASEMILL_TRAIN (a YAML mapping). Raises ConfigError."""
    text = os.environ.get(SETTINGS_VARIABLE, "{}")
    try:
        return Settings.model_validate(yaml.safe_load(text))
    except (yaml.YAMLError, ValidationError) as error:
        faults = explain(Settings, error) if isinstance(error, ValidationError) else [str(error)]
        told = "; ".join(fault.removeprefix("recipe: ") for fault in faults)
        raise ConfigError(f"{SETTINGS_VARIABLE}={text!r}: {told}") from error


def placed(settings: Settings, config: PhaseRun, cpus: int, gpus: int) -> Settings:
    """The settings with ranks, threads and device decided: a rank per GPU, else two ranks that share the CPUs.

    Without a wish the number of ranks is the largest that divides every batch of the phase. Raises ConfigError.
    """
    limit = settings.ranks or gpus or min(2, cpus)
    ranks = settings.ranks or max(
        n for n in range(1, limit + 1) if all(step.rows % n == 0 for step in config.phase.batch)
    )
    try:
        config.phase.check_ranks(ranks)
        settings.check_shard_ranks(ranks)
    except ValueError as error:
        raise ConfigError(f"train: {error}") from error
    device = "cuda" if gpus else settings.device
    threads = settings.threads or (None if device == "cuda" else max(1, cpus // ranks))
    return settings.model_copy(update={"ranks": ranks, "device": device, "threads": threads})


def check_room(settings: Settings, cpus: int, gpus: int) -> None:
    """Ray waits without end for ranks that it has no room for. Raises ConfigError; a joined cluster may yet grow."""
    room, name = (gpus, "GPUs") if settings.device == "cuda" else (cpus, "CPUs")
    if (ranks := settings.ranks or 1) <= room:
        return
    told = f"{SETTINGS_VARIABLE} asks for {ranks} ranks on {settings.device}, Ray has {room} {name}"
    if not os.environ.get("RAY_ADDRESS"):
        raise ConfigError(f"{told}; ask for fewer ranks, join a cluster (RAY_ADDRESS), or use torchrun")
    logger.warning("train: %s; waiting for the cluster to grow", told)


# --- running -------------------------------------------------------------------------------------------------------


def run_job(job: Job, into: Workspace, lost: threading.Event) -> None:
    """Train until the phase is at its end. Raises what stopped it before."""
    watch = Watch(job, into, lost)
    try:
        _compute(job, into, watch)
    finally:
        watch.look()  # a short phase is over before the first look
    if into.storage.exists(job.halted_key):
        raise TrainingDiverged(halt_message(into.storage, job))
    if find_last(job.store, job.checkpoints_folder) is None:
        if into.stop.is_set():
            raise Cancelled("cancelled; what was trained up to the newest checkpoint is kept")
        if not lost.is_set():  # if it is, leaving the lease says so
            raise WorkerLost("training was stopped from outside before its end; it resumes from the newest checkpoint")


def _compute(job: Job, into: Workspace, watch: "Watch") -> None:
    """Train in this process, with torchrun's ranks or on Ray."""
    if into.workers == 0:
        job = replace(
            job, settings=placed(job.settings.model_copy(update={"ranks": 1}), job.run, os.cpu_count() or 1, 0)
        )
        if train_here(job, watch.should_stop).status == "stopped" and not watch.should_stop():
            signal.raise_signal(signal.SIGTERM)  # the trainer noted it and saved; it was meant for the whole process
    elif is_under_torchrun():
        given = settings_under_torchrun(job.settings)
        gpus = given.ranks or 0 if given.device == "cuda" else 0
        job = replace(job, settings=placed(given, job.run, cpus_under_torchrun(), gpus))
        logger.info("train: %s", job.settings)
        lead(job, watch.should_stop)
    else:
        resources = start_ray().cluster_resources()
        cpus, gpus = int(resources.get("CPU", 1)), int(resources.get("GPU", 0))
        job = replace(job, settings=placed(job.settings, job.run, cpus, gpus))
        check_room(job.settings, cpus, gpus)
        logger.info("train: %s", job.settings)
        watch.is_elsewhere = True
        train_on_ray(job, watch.should_stop)


class Watch:
    """Asked between steps: shows progress, says when to stop."""

    def __init__(self, job: Job, into: Workspace, lost: threading.Event) -> None:
        self.job, self.into, self.lost = job, into, lost
        self.lines = LiveSegments(into.storage, str(job.live_prefix), job.attempt)
        self.next_look, self.tokens = 0.0, -1  # no news yet
        self.is_elsewhere = False  # the ranks are other processes: their warnings are told here

    def should_stop(self) -> bool:
        """Whether the run was cancelled or the lease lost."""
        if time.monotonic() >= self.next_look:
            self.next_look = time.monotonic() + PROGRESS_SECONDS
            self.look()
        return self.into.stop.is_set() or self.lost.is_set()

    def look(self) -> None:
        """Tell the tokens of the phase so far and what happened; the first line of the live view says how it began."""
        try:
            for line in self.lines.read():
                event = line.get("event")
                if event == "begin":
                    self.into.on_message(f"train {self.job.run.phase.name}: {line['message']}")
                elif self.is_elsewhere and "message" in line and event != "halted":  # that is the stage's error
                    told = f"{event}: {line['message']}" if event == "save failed" else line["message"]
                    logger.warning("phase %s: %s", self.job.run.phase.name, told)
                self.tokens = line.get("tokens", self.tokens)
        except StorageError as error:
            logger.warning("train: no news of the progress: %s", error)
        if self.tokens >= 0:
            self.into.on_progress("train", self.tokens, self.job.run.phase.tokens)


# --- the result ----------------------------------------------------------------------------------------------------


def publish(dataset: Dataset, job: Job, packs: list[Pack]) -> Manifest:
    """Check that the phase consumed what was planned, and write its manifest."""
    last = find_last(job.store, job.checkpoints_folder)
    assert last is not None  # run_job raises otherwise
    key, checkpoint = last
    state, metrics = read_state(job.store, key), read_metrics(job.store, key)
    check_history(metrics, rows_of_phase(job.run))
    seconds, rows = pc.sum(metrics["seconds"]).as_py(), pc.sum(metrics["rows"]).as_py()
    result = {"digest": checkpoint.digest, "step": state.step, "tokens": state.tokens, "ordinals": state.ordinals}
    return dataset.publish_files(
        {
            "checkpoint.json": orjson.dumps(result, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2),
            "metrics.parquet": _parquet_bytes(metrics.select(EXACT_METRICS)),
        },
        totals={"rows_in": rows, "rows_out": rows, "tokens": state.tokens, "seconds": round(seconds, 3)},
        extra={
            "checkpoint": key,
            "step": state.step,
            "tokens": state.tokens,
            "loss_first": metrics["loss"][0].as_py(),
            "loss_last": metrics["loss"][-1].as_py(),
            "tokens_per_second": round(state.tokens / seconds, 1),
            "mfu": model_flops_utilisation(
                job.run, state.tokens / seconds, str(state.compute["device"]), int(str(state.compute["ranks"]))
            ),
            "decisions": [decision.model_dump(mode="json") for decision in state.events.decisions],
            "skipped_steps": [bad.step for bad in state.memory.bad_steps],
            "sources": sources_of(job, packs, state.position),
            "ordinals": state.ordinals,
            "compute": state.compute,
            "code": state.code,
        }
        | facts_of(dataset.inputs.get("parent"), job.run),
    )


def check_history(metrics: pa.Table, planned_rows: int) -> None:
    """Conservation of training: every step once, positions without gap, rows as planned. Raises DataError."""
    steps, begins, ends = (metrics[name].to_pylist() for name in ("step", "position_from", "position_to"))
    if steps != list(range(1, len(steps) + 1)) or begins != [0, *ends[:-1]]:
        raise DataError(
            "train: the metrics of its checkpoints do not join: steps or positions are missing or twice there"
        )
    rows = pc.sum(metrics["rows"]).as_py()
    if rows != planned_rows:
        raise DataError(f"train: {rows} rows were consumed, {planned_rows} were planned")


def sources_of(job: Job, packs: list[Pack], position: int) -> dict[str, dict[str, float]]:
    """Rows that the phase drew of each source, and how often it has been read in all phases."""
    used = read_state(job.store, job.parent).ordinals if job.parent else {}
    drawn = order_of(job.run, packs, used).ordinals_until(position)
    return {
        pack.source: {
            "rows": drawn[pack.key] - used.get(pack.key, 0),
            "epochs": round(drawn[pack.key] * pack.length / pack.tokens, 4),
        }
        for pack in packs
        if pack.key in drawn
    }


def halt_message(storage: Storage, job: Job) -> str:
    """Why training stopped itself, and what to do."""
    report = storage.read_json(job.halted_key)
    return (
        f"phase {job.run.phase.name} halted itself: {report['reason']}. It is not tried again by itself: lower the "
        f"learning rate or mend the data, or force a new generation ({job.halted_key})"
    )


def _parquet_bytes(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()
