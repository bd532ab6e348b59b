"""fork: a checkpoint of another run -> what a phase begins with (`after: {run, phase, step, take}`).

The checkpoint is copied, every file verified, into a dataset of its own, so that the other run may go on, roll back or
be deleted. It may still be training, or have halted itself: each run notes where it trains. `take: state` brings
weights, moments and their step count, `weights` leaves moments at 0; either way the order of the data goes on where the
checkpoint stood, so that nothing is read twice before all of it was read once. Hyper-parameters are the recipe's.

    fork/<fingerprint>/checkpoints/step-00001234/...   the copy
                      /checkpoint.json                 what it stands for; its content is the dataset's digest
"""

from dataclasses import dataclass
from typing import Any

import orjson

from model.architecture import ModelConfig
from model.checkpoint_files import (
    CheckpointManifest,
    copy_checkpoint,
    list_steps,
    read_manifest,
    read_state,
    set_aside,
    step_key,
)
from model.config import PhaseRun
from model.job import Job, settings_changed
from model.phases import ForkConfig
from tasks.dataset import Workspace
from tasks.errors import ConfigError, DataError
from tasks.manifest import Manifest, find_manifest, load_manifest
from tasks.runs import find_record, load_record, record_key
from tasks.storage import Storage

# Fields of a model that its weights do not fix
FREE_FIELDS = {"rope_base", "dropout", "initialization"}
FREE_EXPERT_FIELDS = {"balance_weight", "router_z_weight", "bias_rate"}


@dataclass(frozen=True)
class Taken:
    """The checkpoint that a fork means. `reference`: of the training dataset, which need not be finished."""

    run_id: str
    phase: str
    reference: str
    inputs: dict[str, str]  # role -> reference
    key: str
    manifest: CheckpointManifest


def take_checkpoint(*, into: Workspace, config: ForkConfig) -> Manifest:
    """The checkpoint as a dataset. `extra`: checkpoint, step, tokens, ordinals, run, phase, reference, config.

    Raises ConfigError when there is no such checkpoint, DataError when it is damaged.
    """
    storage = into.storage
    taken = find_checkpoint(storage, config, into.run_id)
    inputs = {role: load_manifest(storage, reference) for role, reference in taken.inputs.items()}
    identity = {"checkpoint": taken.manifest.digest, "step": taken.manifest.step}
    dataset = into.dataset("fork", None, inputs=inputs, module=__name__, external=identity, with_code=False)
    if found := dataset.find():
        return found
    with dataset.lease():
        key = step_key(f"{dataset.reference}/checkpoints", taken.manifest.step)
        try:
            copy_checkpoint(storage, taken.key, key)
            state = read_state(storage, key)
        except ValueError as error:
            raise DataError(f"fork: {error}") from error
        result = {"digest": taken.manifest.digest, "step": state.step, "tokens": state.tokens}
        result |= {"ordinals": state.ordinals}
        lineage = {"run": taken.run_id, "phase": taken.phase, "reference": taken.reference, "config": state.config}
        return dataset.publish_files(
            {"checkpoint.json": orjson.dumps(result, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2)},
            extra={"checkpoint": key} | lineage | result,
        )


def find_checkpoint(storage: Storage, config: ForkConfig, run_id: str | None = None) -> Taken:
    """Where the checkpoint lies; never in the run `run_id`, which wants it, however little of an id the recipe gives.

    Raises ConfigError, naming the phases or steps that there are.
    """
    record = find_record(storage, config.run, besides=run_id)
    finished = {line.label.removeprefix("train "): line.reference for line in record.datasets_of("train")}
    started = {note["phase"]: note for note in notes_of(storage, record.run_id)}
    known = finished | {phase: note["reference"] for phase, note in started.items()}
    phases = [phase["name"] for phase in record.recipe["train"]["phases"] if phase["name"] in known]
    if config.phase not in (None, *phases) or not phases:
        raise ConfigError(
            f"run {record.run_id} has trained no phase{f' {config.phase!r}' if config.phase else ''}; "
            f"it has {', '.join(phases) or 'none'}"
        )
    phase = config.phase or phases[-1]
    folder = f"{known[phase]}/checkpoints"
    found = _checkpoints(storage, folder)
    if not found or config.step not in (None, *found):
        wanted = f"of step {config.step}" if config.step else "yet"
        raise ConfigError(
            f"phase {phase} of run {record.run_id} has no checkpoint {wanted}; "
            f"steps with one: {', '.join(map(str, sorted(found))) or 'none'}"
        )
    key, checkpoint = found[config.step or max(found)]
    manifest = find_manifest(storage, known[phase])
    entries = manifest.inputs if manifest else started[phase]["inputs"]
    inputs = {entry["role"]: f"{entry['stage']}/{entry['fingerprint']}" for entry in entries}
    return Taken(record.run_id, phase, known[phase], inputs, key, checkpoint)


def taken_before(storage: Storage, run_id: str, label: str) -> str | None:
    """The fork that a run took at an earlier attempt, which it keeps, wherever the other run is by now."""
    if not storage.exists(record_key(run_id)):
        return None
    return next((line.reference for line in load_record(storage, run_id).datasets if line.label == label), None)


def fork_label(phase_name: str) -> str:
    """What the fork that a phase begins with is called in a run."""
    return f"fork {phase_name}"


def check_fork(storage: Storage, config: ForkConfig, run: PhaseRun, run_id: str | None = None) -> None:
    """Raises ConfigError when there is no such checkpoint, or one of another model than that of the phase."""
    taken = find_checkpoint(storage, config, run_id)
    theirs = PhaseRun.model_validate(read_state(storage, taken.key).config)
    check_model(theirs.model, run.model, f"{taken.phase} of run {taken.run_id}")
    there, here = theirs.rope_base, run.rope_base
    if there != here and run.phase.rope_base is None and run.model.positions == "rope":
        raise ConfigError(f"its weights know rope_base {there:g}, the model has {here:g}: give the phase a rope_base")


def check_model(theirs: ModelConfig, ours: ModelConfig, place: str) -> None:
    """Raises ConfigError when weights of one model do not fit the other."""
    there, here = (model.model_dump(mode="json", exclude=FREE_FIELDS) for model in (theirs, ours))
    for values in (there, here):
        if isinstance(values["experts"], dict):
            values["experts"] = {k: v for k, v in values["experts"].items() if k not in FREE_EXPERT_FIELDS}
    if differing := [name for name in here if here[name] != there[name]]:
        told = ", ".join(f"model.{name} {here[name]!r}, there {there[name]!r}" for name in differing)
        raise ConfigError(f"the weights of {place} are of another model: {told}")


def check_vocabulary(storage: Storage, packs: list[Manifest], fork: Manifest) -> None:
    """Raises ConfigError when the packs were made with another tokenizer than those that the weights have seen."""
    seen = [load_manifest(storage, f"{entry['stage']}/{entry['fingerprint']}") for entry in fork.inputs]
    there, here = (
        {entry["digest"] for pack in own for entry in pack.inputs if entry["role"] == "vocabulary"}
        for own in ([manifest for manifest in seen if manifest.stage == "pack"], packs)
    )
    if there and here and there != here:
        raise ConfigError(
            f"the checkpoint of run {fork.extra['run']} was trained with another tokenizer than these packs were made "
            f"with; pin: {{vocabulary: {fork.extra['run']}}}"
        )


def facts_of(parent: Manifest | None, run: PhaseRun) -> dict[str, Any]:
    """{"fork": what was taken, what is fresh, which settings differ} of a phase that begins with another run's."""
    if parent is None or parent.stage != "fork":
        return {}
    has_state = run.take == "state"
    taken = ["weights", *(["moments", "step count of the moments"] if has_state else []), "order of the data"]
    fresh = ["clock", "schedule", "stability window", *([] if has_state else ["moments"])]
    origin = {name: parent.extra[name] for name in ("run", "phase", "step", "reference")}
    changed = settings_changed(parent.extra["config"], run)
    return {"fork": origin | {"taken": taken, "fresh": fresh, "settings": changed}}


def note_start(storage: Storage, run_id: str, job: Job, inputs: dict[str, Manifest]) -> None:
    """Note where a run trains a phase, so that it can be watched, and forked before it is finished."""
    entries = [{"role": role, "stage": m.stage, "fingerprint": m.fingerprint} for role, m in inputs.items()]
    phase = job.run.phase.name
    note = {"phase": phase, "reference": job.folder, "inputs": entries, "attempt": job.attempt}
    storage.write_json(f"runs/{run_id}/train/{phase}.json", note)


def notes_of(storage: Storage, run_id: str) -> list[dict[str, Any]]:
    """What `note_start` noted of a run: phase, reference, inputs, attempt."""
    return [storage.read_json(file.key) for file in storage.list_files(f"runs/{run_id}/train")]


def _checkpoints(storage: Storage, folder: str) -> dict[int, tuple[str, CheckpointManifest]]:
    """Key and manifest of every checkpoint of a training by step; those set aside by a roll-back where no other is."""
    found = {}
    for place in (set_aside(folder), folder):
        for step in list_steps(storage, place):
            manifest = read_manifest(storage, place, step)
            if isinstance(manifest, CheckpointManifest):
                found[step] = step_key(place, step), manifest
    return found
