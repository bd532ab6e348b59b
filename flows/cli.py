"""The `basemill` command: run, plan, rerun, doctor, up here; what looks at runs in cli_look.py, cli_compare.py and
cli_trained.py.

Thin: no logic of its own. Exit status: 0 done, 1 failed or cancelled, 2 wrong use or wrong recipe. Environment:
BASEMILL_ROOT (storage root), BASEMILL_WORKERS (0: without Ray), RAY_ADDRESS, PREFECT_API_URL, the AWS_* names with
AWS_ENDPOINT_URL.
"""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from flows import cli_compare, cli_look, cli_trained
from flows.cli_options import AsJson, Overrides, Root, RunName
from flows.display import say, say_error, say_json, say_mixture, say_progress, say_summary, say_table, show_run
from flows.display_schedule import say_forecast
from flows.prefect_server import configured_url, dashboard_url, quiet_environment, use_server
from tasks.doctor import examine
from tasks.epochs import MixtureLine, check_repeats, mixture_of
from tasks.errors import ConfigError, DataError, PipelineError, TrainingDiverged, in_words
from tasks.journal import PlanLine, Run
from tasks.parallel import workers_here
from tasks.recipe import Recipe
from tasks.runs import RunRecord, find_record, load_record, new_run_id, stages_between
from tasks.schedule import forecast
from tasks.schedule.page import schedule_page
from tasks.start_check import check_start
from tasks.storage import Storage
from tasks.summary import summarise
from tasks.train import settings_from_environment
from tasks.verify import verify_run

app = typer.Typer(
    help="From raw text to a trained base language model: one recipe, one graph of stages, every stage cached.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
cli_look.add_to(app)
cli_compare.add_to(app)
cli_trained.add_to(app)

UNCHANGED_FAILS = {kind.__name__ for kind in (ConfigError, DataError, TrainingDiverged)}  # again, if nothing changes

RecipePath = Annotated[str, typer.Argument(metavar="[RECIPE]", help="A recipe file, or the name of one that ships.")]
FromStage = Annotated[
    str | None, typer.Option("--from", metavar="STAGE", help="Stages before this one are only looked up.")
]
UntilStage = Annotated[str | None, typer.Option("--until", metavar="STAGE", help="The last stage to run.")]
Force = Annotated[bool, typer.Option("--force", help="Compute the stages again, even where their results exist.")]


@app.command()
def run(
    recipe: RecipePath = "demo",
    root: Root = "./lake",
    overrides: Overrides = None,
    from_stage: FromStage = None,
    until_stage: UntilStage = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done, like `plan`.")] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Run a recipe: every stage whose result does not exist yet. Without a recipe, the demo."""
    wanted = _parameters(root, Recipe.load(recipe, overrides or ()), from_stage, until_stage, force)
    if dry_run:
        _say_plan(wanted, as_json)
        return
    _execute(new_run_id(), wanted, as_json)


@app.command()
def plan(
    recipe: RecipePath = "demo",
    root: Root = "./lake",
    overrides: Overrides = None,
    from_stage: FromStage = None,
    until_stage: UntilStage = None,
    as_json: AsJson = False,
) -> None:
    """Say what a run would do, dataset by dataset: cached, run (and why), or if changed. Computes nothing."""
    _say_plan(_parameters(root, Recipe.load(recipe, overrides or ()), from_stage, until_stage), as_json)


@app.command()
def schedule(
    recipe: RecipePath = "demo",
    root: Root = "./lake",
    overrides: Overrides = None,
    html: Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write it as a page with curves.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what training will be: rates, batches, epochs, memory, checkpoints, FLOPs, time. Computes nothing."""
    wanted = _parameters(root, Recipe.load(recipe, overrides or ()), None, None)
    _check("plan", wanted)
    resolved, datasets = Recipe.parse(wanted["recipe"]), _references(_plan(wanted))
    settings = settings_from_environment()
    if workers_here() == 0:  # then it trains in this process
        settings = settings.model_copy(update={"ranks": 1})
    found = forecast(Storage(wanted["root"]), resolved, datasets, settings)
    if html is not None:
        _write_page(html, schedule_page(found))
    if as_json:
        say_json(found.model_dump())
    else:
        say_forecast(found)
    check_repeats(resolved, [line for phase in found.phases for line in phase.sources])


@app.command()
def rerun(
    run_name: RunName,
    root: Root = "./lake",
    from_stage: FromStage = None,
    until_stage: UntilStage = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Run a run again, as its next attempt: finished parts and stages are found, the rest is computed."""
    record = find_record(Storage(root), run_name)
    wanted = _parameters(root, Recipe.parse(record.recipe), from_stage, until_stage or record.until_stage, force)
    _execute(record.run_id, wanted, as_json, record)


@app.command()
def doctor(
    root: Root = "./lake",
    verify: Annotated[
        str | None,
        typer.Option("--verify", metavar="RUN", help="Read all data of a run again: sizes, sha256, digests."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine and the storage root: versions, memory, disk, storage, Prefect, Ray; with --verify, data."""
    storage = Storage(root)
    findings = examine(storage)
    if verify is not None:
        findings += verify_run(storage, find_record(storage, verify))
    if as_json:
        say_json([finding.model_dump() for finding in findings])
    else:
        say_table(("check", "result", ""), [(f.check, "ok" if f.is_ok else "FAULT", f.detail) for f in findings])
    if not all(finding.is_ok for finding in findings):
        raise typer.Exit(1)


@app.command()
def up() -> None:
    """Serve the dashboard and run a worker on this machine, until Ctrl-C: for Retry, Custom run and old runs."""
    with use_server() as server_url:
        from flows import launch  # late, as below

        with launch.connected(server_url()) as client:
            launch.register(client)
        say_progress(f"dashboard: {dashboard_url(server_url())}")
        if launch.work(server_url()):
            raise typer.Exit(1)


def main(arguments: list[str] | None = None) -> None:
    """Entry point; errors that basemill raises on purpose are shown without a traceback."""
    quiet_environment()
    try:
        app(arguments)
    except PipelineError as error:
        say_error(f"error: {error}")
        sys.exit(2 if isinstance(error, ConfigError) else 1)


def _write_page(path: str, page: str) -> None:
    """Raises ConfigError when the file can't be written."""
    try:
        Path(path).write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--html {path!r}: {error.strerror}; name a file in a folder that exists") from error


def _parameters(
    root: str, recipe: Recipe, from_stage: str | None, until_stage: str | None, force: bool = False
) -> dict[str, Any]:
    """The flow's parameters. Raises ConfigError on an unknown stage or storage."""
    stages_between(from_stage, until_stage)
    return {
        "root": Storage(root).url,
        "recipe": recipe.model_dump(mode="json"),
        "from_stage": from_stage,
        "until_stage": until_stage,
        "force": force,
    }


def _plan(wanted: dict[str, Any]) -> list[PlanLine]:
    from flows.pipeline import plan as plan_run  # late: prefect takes two seconds, which `--help` need not wait for

    return plan_run(**wanted)


def _check_plan(wanted: dict[str, Any]) -> None:
    """Raises ConfigError when what is there already shows that the run can't be."""
    lines, recipe = _plan(wanted), Recipe.parse(wanted["recipe"])
    _check_repeats(recipe, lines, mixture_of(Storage(wanted["root"]), recipe, _references(lines)))


def _check_repeats(recipe: Recipe, lines: list[PlanLine], mixture: list[MixtureLine]) -> None:
    if any(line.stage == "train" and line.verdict != "cached" for line in lines):
        check_repeats(recipe, mixture)


def _references(lines: list[PlanLine]) -> list[tuple[str, str | None]]:
    return [(line.stage, line.reference) for line in lines]


def _check(run_id: str, wanted: dict[str, Any]) -> None:
    """Raises ConfigError when the recipe names what is not there."""
    check_start(Run(run_id=run_id, is_dry=True, **{name: wanted[name] for name in wanted if name != "force"}))


def _say_plan(wanted: dict[str, Any], as_json: bool) -> None:
    _check("plan", wanted)
    lines = _plan(wanted)
    recipe = Recipe.parse(wanted["recipe"])
    mixture = mixture_of(Storage(wanted["root"]), recipe, _references(lines))
    if as_json:
        say_json([_plan_figures(line, mixture) for line in lines])
        _check_repeats(recipe, lines, mixture)
        return
    say_table(("dataset", "plan"), [(line.label, str(line)) for line in lines])
    if any(line.available is not None for line in mixture):
        say()
        say_mixture(mixture)
    _check_repeats(recipe, lines, mixture)


def _plan_figures(line: PlanLine, mixture: list[MixtureLine]) -> dict[str, Any]:
    """A line for programs; of a phase also what it draws from each sub-source."""
    own = [drawn.model_dump() for drawn in mixture if line.label == f"train {drawn.phase}"]
    return line.model_dump() | ({"mixture": own} if own else {})


def _execute(run_id: str, wanted: dict[str, Any], as_json: bool, before: RunRecord | None = None) -> None:
    """Execute the run here through Prefect, say how it ended; exits with 1 when it failed or was cancelled."""
    _check(run_id, wanted)
    with use_server() as server_url:
        _check_plan(wanted)  # while the server starts: what cannot be planned shows before anything runs
        from flows import launch  # late, as above

        with launch.connected(server_url()) as client:
            if before is not None:
                launch.bury(client, before)
            flow_run = launch.create_run(client, run_id, wanted)
            link = dashboard_url(server_url(), str(flow_run.id))
            with show_run(is_quiet=as_json):
                say_progress(f"dashboard: {link}")
                is_done = launch.execute(client, flow_run).is_completed()
    storage = Storage(wanted["root"])
    record = load_record(storage, run_id)
    if as_json:
        say_json(summarise(storage, record) | {"dashboard": link})
    else:
        say_summary(summarise(storage, record), link, is_lasting=configured_url() is not None)
    if not is_done:
        say_error(f"run {run_id} {record.state}: {in_words(record.attempts[-1].message)}")
        kind = record.attempts[-1].message.partition(":")[0]
        say_progress(how_to_go_on(run_id, kind))
        raise typer.Exit(2 if kind == ConfigError.__name__ else 1)  # 2: what only finished stages could show


def how_to_go_on(run_id: str, kind: str) -> str:
    """Advice after a run that ended with an error of this kind: some a rerun alone would meet again."""
    if kind in UNCHANGED_FAILS:
        what = f"mend the cause, then: basemill rerun {run_id} (or basemill run with a changed recipe)"
    else:
        what = f"to go on: basemill rerun {run_id}"
    return f"finished parts are kept; {what}"


if __name__ == "__main__":
    main()
