"""How the graph calls a stage or a subflow: through Prefect in a run, plainly in a plan. Decided here alone."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from prefect import Flow, State, Task
from prefect.states import Cancelled as CancelledState

from tasks.errors import Cancelled, PipelineError
from tasks.journal import Run
from tasks.runs import RUN_STAGES

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def call(step: Task[..., Any] | Flow[..., Any], run: Run, *inputs: Any) -> Any:
    """The result of a stage or subflow. None when it is not wanted or an input of a run is not there (`until_stage`).

    Raises what the stage raised; Cancelled when it was cancelled.
    """
    if run.is_dry:
        return step.fn(run, *inputs) if _is_wanted(step, run) else None
    if not _is_wanted(step, run) or any(given is None for given in inputs):
        return None
    if isinstance(step, Flow) and _is_cached(step, run, *inputs):
        found = step.fn(run, *inputs)
        if isinstance(found, State):
            raise Cancelled(found.message or "cancelled")
        return found
    state: State[Any] = step(run, *inputs, return_state=True)  # type: ignore[assignment]
    if state.is_cancelled():
        raise Cancelled(state.message or "cancelled")
    return state.result()


def cancellable(body: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A flow body that ends as Cancelled, not Failed, when a stage in it was cancelled."""

    @functools.wraps(body)
    def with_state(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Any:
        try:
            return body(*args, **kwargs)
        except Cancelled as error:
            return CancelledState(message=str(error))

    return with_state


def _is_cached(step: Flow[..., Any], run: Run, *inputs: Any) -> bool:
    """Whether every dataset of a subflow exists; its stages then stand in the run itself, which saves half a second."""
    dry = run.as_dry()
    try:
        step.fn(dry, *inputs)
    except PipelineError:  # the stage will say it, in its own task
        return False
    return all(line.verdict == "cached" for line in dry.plan)


def _is_wanted(step: Task[..., Any] | Flow[..., Any], run: Run) -> bool:
    return step.name not in RUN_STAGES or isinstance(step, Flow) or run.wants(step.name)
