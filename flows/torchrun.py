"""Plain torchrun in the place of Ray Train: the train stage of a run, on the processes that torchrun started.

    basemill run mine.yaml --until pack
    torchrun --nproc-per-node 2 -m flows.torchrun latest
    basemill rerun latest --until export

Rank 0 finds the packs as `basemill plan` does and calls the same stage with the same workspace, so that datasets, live
view and record are those of the run; a phase that is there already is not trained again. On the same number of ranks
the result is that of Ray Train to the bit.
"""

import os
import sys

import typer

from flows.cli_options import Root, RunName
from flows.display import say_error, say_progress, show_run
from flows.prefect_server import quiet_environment
from tasks.errors import ConfigError, PipelineError
from tasks.fork import fork_label
from tasks.journal import Journal, Run
from tasks.outcome import Reference
from tasks.recipe import Recipe
from tasks.runs import RunRecord, find_record
from tasks.storage import Storage
from tasks.train.ranks import dismiss, follow, is_under_torchrun


def main(run_name: RunName, root: Root = "./lake") -> None:
    """Train every phase of a run whose packs exist, on the processes of torchrun."""
    quiet_environment()
    try:
        if not is_under_torchrun():
            raise ConfigError("start it with torchrun: torchrun --nproc-per-node 2 -m flows.torchrun RUN")
        if int(os.environ["RANK"]) > 0:
            follow()
            return
        storage = Storage(root)
        with show_run():
            train(storage, find_record(storage, run_name))
        dismiss()
    except PipelineError as error:
        say_error(f"error: {error}")
        sys.exit(2 if isinstance(error, ConfigError) else 1)


def train(storage: Storage, record: RunRecord) -> None:
    """Train the phases as an attempt of the run, which its record and journal then hold."""
    run = Run(
        root=storage.url, run_id=record.run_id, recipe=Recipe.parse(record.recipe), generations=record.generations
    )
    references = planned(run)
    journal = Journal(storage, record)
    run.keep(journal)
    try:
        train_phases(run, references)
    except BaseException as error:
        journal.end("failed", f"{type(error).__name__}: {error}")
        raise
    journal.end("completed")


def planned(run: Run) -> dict[str, Reference]:
    """What exists of the run, by label. Raises ConfigError when something before train is missing."""
    from flows.pipeline import graph  # late: prefect takes two seconds, which the other ranks need not wait for

    dry = run.as_dry()
    graph(dry)
    for line in dry.plan:
        if line.stage in ("pack", "import") and line.reference is None:
            raise ConfigError(f"{line.label} does not exist yet; first: basemill rerun {run.run_id} --until pack")
    return {line.label: line.reference for line in dry.plan if line.reference}


def train_phases(run: Run, references: dict[str, Reference]) -> None:
    """The train stage, phase by phase; those that exist are only said."""
    from flows import stages  # late, as above

    trained = {stages.IMPORTED: references["import"]} if "import" in references else {}
    for phase in run.recipe.train.phases:
        label, fork = f"train {phase.name}", fork_label(phase.name)
        if phase.fork:
            trained[fork] = references.get(fork) or stages.fork.fn(run, phase)
        found = references.get(label) or stages.train.fn(run, references, phase.name, trained)
        trained[phase.name] = found
        say_progress(f"{label}: {found}{' (cached)' if label in references else ''}")


if __name__ == "__main__":
    typer.run(main)
