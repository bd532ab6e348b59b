"""The input files of a run, runs/<run-id>/inputs.json: listed once, used by all its attempts; a new run lists anew."""

from tasks.dataset import Workspace
from tasks.errors import ConfigError, NotComputed
from tasks.ingest import InputFiles, ingest_sources, list_inputs
from tasks.journal import Run
from tasks.manifest import Manifest
from tasks.runs import list_run_ids


def read_sources(run: Run, *, into: Workspace) -> Manifest:
    """The ingest dataset of the run's input files. Raises ConfigError when a source has none."""
    return ingest_sources(input_files(run), into=into, config=run.recipe.ingest)


def inputs_key(run_id: str) -> str:
    """Key of the list of a run's input files."""
    return f"runs/{run_id}/inputs.json"


def input_files(run: Run) -> InputFiles:
    """As this run lists them, or has listed them in an earlier attempt. Raises ConfigError, NotComputed."""
    storage, key = run.storage, inputs_key(run.run_id)
    if storage.exists(key):
        return InputFiles.model_validate(storage.read_json(key))
    try:
        files = list_inputs(run.recipe.ingest, storage, earlier_listing(run))
    except ConfigError as error:
        if run.is_dry and run.recipe.prepare:
            raise NotComputed("ingest", f"{run.recipe.prepare} writes its input first") from error
        raise
    if run.is_executed:
        storage.write_json(key, files.model_dump(mode="json"))
    return files


def earlier_listing(run: Run) -> InputFiles | None:
    """The newest list of another run in this root: files that it hashed and that have not changed are not read."""
    for run_id in reversed(list_run_ids(run.storage)):
        if run_id != run.run_id and run.storage.exists(inputs_key(run_id)):
            return InputFiles.model_validate(run.storage.read_json(inputs_key(run_id)))
    return None
