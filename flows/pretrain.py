"""Rows -> checkpoints, phase by phase."""

from prefect import flow

from flows import stages
from flows.calls import call, cancellable
from tasks.fork import fork_label
from tasks.journal import Run
from tasks.outcome import Reference


@flow(name="pretrain")
@cancellable
def pretrain(run: Run, packs: stages.Packs) -> dict[str, Reference] | None:
    """The training dataset of every phase, by name, in the order of the recipe."""
    trained: dict[str, Reference] = {}
    if start := run.recipe.train.initialize_from:
        trained[stages.IMPORTED] = call(stages.import_model, run, start.path)
    for phase in run.recipe.train.phases:
        if phase.fork:
            trained[fork_label(phase.name)] = call(stages.fork, run, phase)
        trained[phase.name] = call(stages.train, run, packs, phase.name, trained)
    return trained if run.wants("train") else None
