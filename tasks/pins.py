"""Pinned datasets: taken as they are, nothing before them is computed (`pin` in a recipe).

A pin is a run's id (or its beginning, or `latest`), which stands for all datasets of that stage in the run, or the
beginning of a dataset's fingerprint.
"""

from collections.abc import Callable

from tasks.errors import ConfigError
from tasks.journal import Run
from tasks.manifest import Manifest, list_manifests
from tasks.outcome import Reference, obtain
from tasks.runs import LATEST, find_record, list_run_ids
from tasks.storage import Storage

MIN_FINGERPRINT_DIGITS = 8


def pinned(run: Run, stage: str, label: str) -> dict[str, Reference] | None:
    """The pinned datasets of a stage by label, noted in plan and record; None when the stage is not pinned.

    `label`: what a dataset named by its fingerprint is called in this run. Raises ConfigError when there is no such.
    """
    name: str | None = getattr(run.recipe.pin, stage)
    if name is None:
        return None
    references = find_pinned(run.storage, stage, name, label)
    return {
        label: obtain(run, stage, pinned_dataset(reference), label=label).reference
        for label, reference in references.items()
    }


def pinned_dataset(reference: str) -> Callable[..., Manifest]:
    """The stage function of a dataset that is taken as it is: it is there."""
    return lambda *, into: into.load(reference)


def find_index(run: Run) -> list[Reference]:
    """The datasets that `dedup_near.index` names. Raises ConfigError when there is no such."""
    found = [
        find_pinned(run.storage, "dedup-near", name, name, key="dedup_near.index")
        for name in run.recipe.dedup_near.index
    ]
    return [reference for labels in found for reference in labels.values()]


def find_pinned(storage: Storage, stage: str, name: str, label: str, key: str = "") -> dict[str, str]:
    """References of what a pin (or another key of the recipe) names, by label. Raises ConfigError when there is no
    such."""
    key = key or f"pin.{stage}"
    if name == LATEST or any(run_id.startswith(name) for run_id in list_run_ids(storage)):
        record = find_record(storage, name)
        lines = record.datasets_of(stage)
        if not lines:
            raise ConfigError(f"{key}: run {record.run_id} has no dataset of stage {stage}")
        return {line.label: line.reference for line in lines}
    fingerprint = name.rpartition("/")[2]
    found = [reference for reference in list_manifests(storage, stage) if f"/{fingerprint}" in reference]
    if len(fingerprint) < MIN_FINGERPRINT_DIGITS or len(found) != 1:
        raise ConfigError(
            f"{key}: {name!r} is no run of {storage.url}, and {len(found)} datasets of stage {stage} begin so; "
            f"give a run id or at least {MIN_FINGERPRINT_DIGITS} digits of a fingerprint"
        )
    return {label: found[0]}
