"""The commands about a trained model: harness. They compute nothing of the graph."""

from typing import Annotated

import typer

from flows.cli_options import AsJson, Root
from flows.display import say, say_json, say_table
from tasks.harness import metrics_text, run_harness
from tasks.runs import find_record
from tasks.storage import Storage


def add_to(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command()(harness)


def harness(
    run_name: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, its beginning or end, or `latest`.")],
    tasks: Annotated[str, typer.Option("--tasks", help="Names of lm-evaluation-harness, joined by commas.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- OPTIONS]", help="Given to lm_eval as they are.")
    ] = None,
    root: Root = "./lake",
    as_json: AsJson = False,
) -> None:
    """Score the run's exported model with lm-evaluation-harness itself; the result is kept beside the model."""
    storage = Storage(root)
    found = run_harness(storage, find_record(storage, run_name), tasks, arguments or [])
    if as_json:
        say_json(found.model_dump(mode="json"))
        return
    say_table(
        ("task", "score", "training text"), [(score.task, metrics_text(score), score.status) for score in found.scores]
    )
    say(f"\nlm_eval {found.lm_eval}; kept in {storage.path(found.export)}/harness/{found.created}")
