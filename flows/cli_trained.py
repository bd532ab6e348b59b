"""The commands about what training made and met: harness, incidents, exclude. They run no stage."""

from typing import Annotated

import typer

from flows.cli_options import AsJson, Root, RunName
from flows.display import say, say_json, say_table
from tasks.fork import notes_of
from tasks.harness import metrics_text, run_harness
from tasks.incidents import NAMED_ABOVE, documents_of, incidents_of, is_named
from tasks.incidents import exclude as exclude_documents
from tasks.runs import find_record
from tasks.storage import Storage


def add_to(app: typer.Typer) -> None:
    """Add the commands of this file."""
    for command in (harness, incidents, exclude):
        app.command()(command)


def harness(
    run_name: RunName,
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


def incidents(
    run_name: RunName = "latest",
    count: Annotated[int, typer.Option("--count", min=0, help="Named documents to show of each.")] = 10,
    root: Root = "./lake",
    as_json: AsJson = False,
) -> None:
    """List the roll-backs of a run's training: the documents that stood out, their raw records, what they share."""
    storage = Storage(root)
    record = find_record(storage, run_name)
    found = incidents_of(storage, record)
    if as_json:
        say_json([incident.model_dump(mode="json") for incident in found])
        return
    if not found:
        has_trained = record.datasets_of("train") or notes_of(storage, record.run_id)
        say("no incidents: training never went back" if has_trained else "this run trained no model")
    for incident in found:
        say(
            f"incident {incident.number}: phase {incident.phase}, step {incident.step}, attempt {incident.attempt}; "
            f"bad steps {', '.join(map(str, incident.bad_steps))}; "
            f"{incident.named} of {incident.documents} documents named; by the numbers: {incident.verdict}"
        )
        traits = [(t.trait, round(t.named, 4), round(t.rest, 4), round(t.strength, 2)) for t in incident.in_common]
        say_table(("in common", "named", "rest", "strength"), traits)
        rows = [row for row in documents_of(storage, incident) if is_named(row)][:count]
        cells = [
            (
                row["doc_id"],
                row["source"],
                f"{row['raw_file']}#{row['raw_position']}",
                round(row["loss"], 3),
                round(row["score"], 1),
            )
            for row in rows
        ]
        say_table(("document", "source", "raw record", "loss", "score"), cells)
        say()


def exclude(
    run_name: RunName,
    number: Annotated[int | None, typer.Option("--incident", min=1, help="One of them; all if left out.")] = None,
    min_score: Annotated[float, typer.Option("--min-score", min=0, help="Documents above this score.")] = NAMED_ABOVE,
    root: Root = "./lake",
    as_json: AsJson = False,
) -> None:
    """Write the documents that a run's incidents named to a drop list, and say how a recipe leaves them out."""
    storage = Storage(root)
    record = find_record(storage, run_name)
    made, documents = exclude_documents(storage, record, number, min_score)
    lists = [*record.recipe.get("select", {}).get("drop_lists", []), made.model_dump()]
    if as_json:
        say_json({"documents": documents, "drop_lists": lists})
        return
    shown = ", ".join(f'{{path: "{entry["path"]}", sha256: "{entry["sha256"]}"}}' for entry in lists)
    say(f"{documents} documents listed in {storage.path(made.path.removeprefix('{root}/'))}")
    say(f"to leave them out, give the recipe select: {{drop_lists: [{shown}]}}")
    say(f"or run it with --set 'select.drop_lists=[{shown}]'")
