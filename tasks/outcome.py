"""One dataset of a run: looked for, computed where it is missing, noted in the journal; or, in a dry run, only judged.

A dry run and stages before `--from` use a dry workspace, in which a missing dataset raises NotComputed with its cause.
Once something would be computed, what depends on it can't be judged: its inputs have no digest yet (`if changed`).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tasks.codedigest import TRAINER, code_digest
from tasks.errors import ConfigError, NotComputed
from tasks.journal import PlanLine, Run
from tasks.manifest import Manifest
from tasks.runs import DatasetLine

Reference = str | None  # `stage/fingerprint`; None: not known yet in a dry run, or after `--until`


@dataclass(frozen=True)
class Outcome:
    """Where the dataset is, and whether it was there already (`message` then names the run that made it)."""

    reference: Reference
    is_cached: bool = False
    message: str = ""


def obtain(
    run: Run, stage: str, function: Callable[..., Manifest], *inputs: Reference, label: str = "", **arguments: Any
) -> Outcome:
    """`function(*manifests of the inputs, into=workspace, **arguments)`, whose dataset is called `label` in this run.

    Raises ConfigError when the stage lies before `--from` and its dataset does not exist.
    """
    label = label or stage
    if any(reference is None for reference in inputs):
        run.plan.append(PlanLine(label=label, stage=stage, verdict="if changed"))
        return Outcome(None)
    into = run.workspace(stage)

    def make() -> Manifest:
        return function(*(into.load(reference) for reference in inputs if reference), into=into, **arguments)

    try:
        return _judge(run, stage, label, make) if run.is_dry else _record(run, stage, label, make)
    except NotComputed as missing:
        raise ConfigError(
            f"{label} is not computed yet ({missing.cause}), and --from {run.from_stage} only looks it up; "
            f"start with --from {stage} or without --from"
        ) from missing


def _judge(run: Run, stage: str, label: str, make: Callable[[], Manifest]) -> Outcome:
    try:
        found = make()
    except NotComputed as missing:
        if not run.may_compute(stage):
            raise
        run.plan.append(PlanLine(label=label, stage=stage, verdict="run", detail=missing.cause))
        return Outcome(None)
    line = PlanLine(
        label=label,
        stage=stage,
        verdict="cached",
        detail=f"run {found.run_id}{_drift(found)}",
        reference=found.reference,
    )
    run.plan.append(line)
    return Outcome(found.reference, True, line.detail)


def _drift(found: Manifest) -> str:
    """What to know of a training whose code is no longer today's; it counts all the same."""
    made_by = found.extra.get("code")
    return "; its code changed since" if made_by and made_by != code_digest(TRAINER).digest else ""


def _record(run: Run, stage: str, label: str, make: Callable[[], Manifest]) -> Outcome:
    started, clock = datetime.now(UTC).replace(microsecond=0).isoformat(), time.monotonic()
    run.journal.stage_started(label, stage)
    try:
        manifest = make()
    except BaseException as error:
        run.journal.stage_failed(label, stage, error)
        raise
    is_cached = manifest.run_id != run.run_id or manifest.created < started
    line = DatasetLine(
        label=label,
        stage=stage,
        reference=manifest.reference,
        digest=manifest.digest,
        code=manifest.code["digest"],
        made_by=manifest.run_id,
        cached=is_cached,
        attempt=run.journal.attempt.number,
        seconds=round(time.monotonic() - clock, 2),
    )
    run.journal.stage_finished(line, manifest)
    return Outcome(manifest.reference, is_cached, f"{manifest.reference}, made by run {manifest.run_id}")
