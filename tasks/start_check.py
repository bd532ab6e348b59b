"""What a recipe names beyond itself, checked before a run starts: inputs, named files, pins, this machine's wishes.

Cheap (folders are listed, evaluation and labelled sets and lists parsed), without Prefect, and nothing is written: a
run that would fail on its recipe hours later ends here, with exit status 2.
"""

from model.config import TrainConfig
from tasks.classifiers.settings import ClassifiersConfig, read_files, read_labelled
from tasks.decontaminate.evaluation_sets import EvaluationSetConfig, place_of, read_items, read_set_file
from tasks.errors import ConfigError, DataError
from tasks.evaluate.task_scores import check_tasks
from tasks.fork import check_fork, fork_label, taken_before
from tasks.import_weights import check_model
from tasks.ingest import IngestConfig
from tasks.ingest.sources import list_source
from tasks.inputs import inputs_key
from tasks.journal import Run
from tasks.parallel import workers_here
from tasks.pins import find_index, find_pinned
from tasks.recipe_files import format_of
from tasks.select.drop_list import read_drop_lists
from tasks.signals import SignalsConfig
from tasks.signals.domain_lists import by_content
from tasks.storage import Storage
from tasks.train import SETTINGS_VARIABLE, settings_from_environment


def check_start(run: Run) -> None:
    """Raises ConfigError with the path of the key that names what is not there."""
    recipe = run.recipe
    workers_here()
    check_pins(run)
    if run.wants("train") and recipe.pin.train is None:
        check_ranks(recipe.train)
        check_forks(run)
    if (start := recipe.train.initialize_from) is not None:
        check_model(start.path, recipe.model)
    if run.wants("evaluate"):
        check_tasks(run.storage, recipe.evaluate.tasks)
    if recipe.pin.vocabulary and recipe.pin.pack:
        return
    if not recipe.prepare and not run.storage.exists(inputs_key(run.run_id)):
        check_inputs(recipe.ingest, run.storage)
    check_named_files(run)


def check_named_files(run: Run) -> None:
    """The files of the curation stages that will run. Raises ConfigError."""
    recipe = run.recipe
    if run.wants("classifiers"):
        check_classifiers(recipe.classifiers, run.storage)
    if run.wants("signals") and run.may_compute("signals"):
        check_domain_lists(recipe.signals, run.storage)
    if run.wants("select"):
        read_drop_lists(run.storage, recipe.select.drop_lists)
    if run.wants("decontaminate") and recipe.decontaminate.enabled:
        for name, config in recipe.decontaminate.evaluation_sets.items():
            check_set(name, config, run.storage)


def check_pins(run: Run) -> None:
    """What the recipe takes from earlier runs is there. Raises ConfigError."""
    for stage in ("vocabulary", "pack", "train"):
        if (name := getattr(run.recipe.pin, stage)) is not None:
            find_pinned(run.storage, stage, name, stage)
    find_index(run)


def check_inputs(config: IngestConfig, root: Storage) -> None:
    """Every source has files. Raises ConfigError."""
    for name, source in config.sources.items():
        list_source(name, source, root)


def check_classifiers(config: ClassifiersConfig, root: Storage) -> None:
    """The files of the classifiers are there, and the labelled set has both classes. Raises ConfigError."""
    files = read_files(root, config)
    labelled = config.toxicity and config.toxicity.labelled
    if labelled:
        try:
            read_labelled(files["toxicity.labelled"], labelled)
        except DataError as error:
            raise ConfigError(str(error)) from error


def check_domain_lists(config: SignalsConfig, root: Storage) -> None:
    """The lists of domains are there and hold domains. Raises ConfigError."""
    for sha256, named in by_content(root, config)[1].items():
        try:
            named.check(root, sha256)
        except DataError as error:
            raise ConfigError(str(error)) from error


def check_set(name: str, config: EvaluationSetConfig, root: Storage) -> None:
    """A set's file is there, and its rows have the named columns. Raises ConfigError."""
    format_of(config.path, config.format, place_of(name))
    try:
        items = read_items(read_set_file(root, name, config), name, config)
    except DataError as error:
        raise ConfigError(str(error)) from error
    if not items:
        raise ConfigError(f"decontaminate.evaluation_sets.{name}.path: {config.path} has no items")


def check_forks(run: Run) -> None:
    """What phases begin with is there, and of this model. Raises ConfigError."""
    for index, phase in enumerate(run.recipe.train.phases):
        if phase.fork and not taken_before(run.storage, run.run_id, fork_label(phase.name)):
            try:
                config = run.recipe.train.run_of(phase.name, run.recipe.model)
                check_fork(run.storage, phase.fork, config, run.run_id)
            except (ConfigError, ValueError) as error:
                raise ConfigError(f"train.phases[{index}].after: {error}") from error


def check_ranks(config: TrainConfig) -> None:
    """The batches of all phases split over the ranks that are asked for. Raises ConfigError."""
    ranks = settings_from_environment().ranks
    for index, phase in enumerate(config.phases):
        try:
            phase.check_ranks(ranks or 1)
        except ValueError as error:
            raise ConfigError(f"train.phases[{index}].batch: {error} ({SETTINGS_VARIABLE})") from error
