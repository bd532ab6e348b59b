"""One execution of a run: which run this is, its record and journal from the first moment to the last."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.exceptions import TerminationSignal

from flows.calls import call
from flows.stages import report
from tasks.errors import Cancelled, PipelineError
from tasks.journal import STOP, Journal, Run
from tasks.parallel import workers_here
from tasks.recipe import Recipe
from tasks.runs import RunRecord, load_record, new_run_id, next_generation, now, record_key, stages_between
from tasks.start_check import check_start
from tasks.storage import Storage

RUN_LABEL = "basemill.run"  # label of the flow run; its value is our run id


@contextlib.contextmanager
def attempt(
    root: str, values: dict[str, Any], from_stage: str | None, until_stage: str | None, force: bool
) -> Iterator[Run]:
    """The run of the current flow run, with its journal open. Raises ConfigError when recipe or stages are wrong."""
    recipe = Recipe.parse(values)
    stages = stages_between(from_stage, until_stage)
    storage = Storage(root)
    flow_run_id, run_id = _identify()
    record = _record(storage, run_id)
    if record is None:
        record = RunRecord(run_id=run_id, created=now(), recipe=recipe.model_dump(mode="json"))
    if force and flow_run_id not in {earlier.flow_run_id for earlier in record.attempts}:  # else a retry: go on with it
        record.generations |= dict.fromkeys(stages, next_generation(storage))
    record.from_stage, record.until_stage, record.force = from_stage, until_stage, force
    journal = Journal(storage, record, flow_run_id)
    run = Run(
        root=root, run_id=run_id, recipe=recipe, from_stage=from_stage, until_stage=until_stage,
        generations=record.generations, workers=workers_here(),
    )  # fmt: skip
    run.keep(journal)
    with _closed(run):
        check_start(run)
        yield run


def dry_run(root: str, values: dict[str, Any], from_stage: str | None, until_stage: str | None, force: bool) -> Run:
    """A run that only looks. Raises ConfigError when recipe or stages are wrong."""
    stages = stages_between(from_stage, until_stage)
    generations = dict.fromkeys(stages, next_generation(Storage(root))) if force else {}
    return Run(
        root=root, run_id="plan", recipe=Recipe.parse(values), from_stage=from_stage, until_stage=until_stage,
        generations=generations, is_dry=True,
    )  # fmt: skip


@contextlib.contextmanager
def _closed(run: Run) -> Iterator[None]:
    """Whatever happens, the record says how the attempt ended; then the report, of a failed run where possible."""
    journal = run.journal
    with _dropped_signals() as dropped:
        try:
            yield
            journal.end("completed")
            call(report, run)
        except BaseException as error:
            if termination := dropped[0] if dropped else _termination_behind(error):
                journal.end("cancelled", "ended by SIGTERM")
                raise termination from None
            if isinstance(error, (Cancelled, KeyboardInterrupt)):
                journal.end("cancelled", str(error) or type(error).__name__)
                raise
            journal.end("failed", f"{type(error).__name__}: {error}")
            with contextlib.suppress(PipelineError, OSError):
                call(report, run)
            raise


@contextlib.contextmanager
def _dropped_signals() -> Iterator[list[TerminationSignal]]:
    """A SIGTERM whose exception Python drops, raised in a destructor (numba's run by hundreds), stops the stage too."""
    dropped: list[TerminationSignal] = []
    before = sys.unraisablehook

    def heed(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, TerminationSignal):
            dropped.append(unraisable.exc_value)
            STOP.set()
        else:
            before(unraisable)

    sys.unraisablehook = heed
    try:
        yield dropped
    finally:
        sys.unraisablehook = before


def _termination_behind(error: BaseException | None) -> TerminationSignal | None:
    """The SIGTERM that this error is, or on which Prefect stumbled: while it makes a task's run, it says ValueError."""
    while error is not None and not isinstance(error, TerminationSignal):
        error = error.__cause__ or error.__context__
    return error


def _identify() -> tuple[str | None, str]:
    """Prefect's id and ours. A run made in the dashboard gets ours now; a retry finds it in the label."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return None, new_run_id()
    flow_run = context.flow_run
    run_id = flow_run.labels.get(RUN_LABEL)
    if run_id is None:
        run_id = new_run_id()
        with get_client(sync_client=True) as client:
            client.update_flow_run_labels(flow_run.id, {RUN_LABEL: run_id})
    return str(flow_run.id), str(run_id)


def _record(storage: Storage, run_id: str) -> RunRecord | None:
    return load_record(storage, run_id) if storage.exists(record_key(run_id)) else None
