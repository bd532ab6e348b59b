"""Every stage as a Prefect task, in the order of the graph: what it takes, what it gives, how it is tried again.

A stage is given references (`stage/fingerprint`), loads their manifests, calls the plain stage function of tasks/ and
returns the reference of its dataset. The manifest in storage is the truth: Prefect caches nothing and pickles nothing.
A dataset that is there already ends the task in a Completed state named `Cached`, which names the run that made it.
Tried again: what a lost worker or a storage failure broke, twice. Never: wrong settings, wrong data, a cancelled run.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from prefect import State, Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import TaskRun
from prefect.states import Cancelled as CancelledState
from prefect.states import Completed

from flows.artifacts import show_progress, show_results, show_training
from model.config import TrainConfig
from model.phases import PhaseConfig
from tasks.classifiers import train_classifiers
from tasks.cluster_sizes import CLUSTER_SIZE
from tasks.decontaminate import drop_evaluation_text
from tasks.dedup_exact import drop_exact_duplicates
from tasks.dedup_near import drop_near_duplicates
from tasks.demo_corpus import write_python_corpus
from tasks.errors import Cancelled, StorageError, WorkerLost
from tasks.evaluate import evaluate_checkpoint
from tasks.export import export_model
from tasks.fork import fork_label, take_checkpoint, taken_before
from tasks.import_weights import import_weights, take_tokenizer
from tasks.inputs import read_sources
from tasks.journal import Run
from tasks.manifest import Manifest
from tasks.mixture import divided_by, split_documents
from tasks.outcome import Outcome, Reference, obtain
from tasks.pack import PackRequest, pack_source
from tasks.pins import find_index, pinned_dataset
from tasks.redact import redact_personal_data
from tasks.report import write_report
from tasks.select import select_documents
from tasks.signals import measure_signals
from tasks.splits import SPLITS, Split
from tasks.train import train_phase
from tasks.vocabulary import train_tokenizer

HOUR = 3600
MESSAGE_CHARS = 1000  # of a state message; longer ones are cut by the dashboard

IMPORTED = ""  # in the place of a phase's name: what first phases continue
Packs = dict[str, Reference]  # by pack_label


def is_worth_retrying(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Prefect's question after a failure: only what another try can mend."""
    return isinstance(state.result(raise_on_failure=False), (StorageError, WorkerLost))


# Shared by all stages. Parts and the storage client have retries of their own: two here, or they would multiply.
STAGE: dict[str, Any] = {
    "retries": 2,
    "retry_delay_seconds": [5, 60],
    "retry_jitter_factor": 0.2,
    "retry_condition_fn": is_worth_retrying,
    "timeout_seconds": 24 * HOUR,
    "cache_policy": NO_CACHE,
    "persist_result": False,
}


@task(name="prepare", **STAGE)
def prepare(run: Run) -> None:
    """The demo's raw text: what comes with the installed Python, written below {root}/raw."""
    if not run.is_dry:
        write_python_corpus(run.storage)


@task(name="ingest", **STAGE)
def ingest(run: Run) -> Any:
    """Raw files -> documents, one source at a time."""
    return answer(run, "ingest", partial(read_sources, run))


@task(name="dedup-exact", **STAGE)
def dedup_exact(run: Run, documents: Reference) -> Any:
    """Documents without those of the same URL or the same normalised text."""
    config = run.recipe.with_priorities(run.recipe.dedup_exact)
    return answer(run, "dedup-exact", drop_exact_duplicates, documents, config=config)


@task(name="classifiers", **STAGE)
def classifiers(run: Run, documents: Reference) -> Any:
    """Classifiers trained on the sources that the recipe names, or taken from earlier runs."""
    return answer(run, "classifiers", train_classifiers, documents, config=run.recipe.classifiers)


@task(name="signals", **STAGE)
def signals(run: Run, documents: Reference, *classifiers: Reference) -> Any:
    """One row of measurements per document; nothing is dropped. `classifiers`: none, or the dataset of that stage."""
    return answer(run, "signals", measure_signals, documents, *classifiers, config=run.recipe.signals)


@task(name="select", **STAGE)
def select(run: Run, documents: Reference, signals: Reference) -> Any:
    """Documents that pass the rules, with the spans cut that the line rules name."""
    return answer(run, "select", select_documents, documents, signals, config=run.recipe.select)


@task(name="dedup-near", **STAGE)
def dedup_near(run: Run, documents: Reference) -> Any:
    """Documents without near duplicates, every pair verified."""
    config = run.recipe.with_priorities(run.recipe.dedup_near)
    return answer(run, "dedup-near", drop_near_duplicates, documents, *find_index(run), config=config)


@task(name="redact", **STAGE)
def redact(run: Run, documents: Reference) -> Any:
    """Documents with personal data replaced."""
    return answer(run, "redact", redact_personal_data, documents, config=run.recipe.redact)


@task(name="decontaminate", **STAGE)
def decontaminate(run: Run, documents: Reference) -> Any:
    """Documents without text of the evaluation sets."""
    return answer(run, "decontaminate", drop_evaluation_text, documents, config=run.recipe.decontaminate)


@task(name="mix", **STAGE)
def mix(run: Run, documents: Reference, signals: Reference, near: Reference) -> Any:
    """Each document's split, and the size table of the sources; no copies. Buckets are made by signals or clusters."""
    config = run.recipe.mix
    names = divided_by(config, list(run.recipe.ingest.sources))
    measured = [*([signals] if names - {CLUSTER_SIZE} else []), *([near] if CLUSTER_SIZE in names else [])]
    return answer(run, "mix", split_documents, documents, *measured, config=config)


@task(name="vocabulary", **STAGE)
def vocabulary(run: Run, documents: Reference, mix: Reference) -> Any:
    """The tokenizer, trained on a sample of the train split, or that of imported weights."""
    if start := run.recipe.train.initialize_from:
        return answer(run, "vocabulary", partial(take_tokenizer, path=start.path), config=run.recipe.model)
    config = run.recipe.vocabulary.model_copy(update={"sample_weights": run.recipe.sample_weights})
    return answer(run, "vocabulary", train_tokenizer, documents, mix, config=config)


@task(name="pack", **STAGE)
def pack(run: Run, documents: Reference, mix: Reference, vocabulary: Reference) -> Any:
    """Rows of fixed length: one dataset per source, split, sequence length and minimum that a phase reads."""

    def make() -> dict[str, Outcome]:
        phases = run.recipe.train.phases
        wanted = {
            pack_label(request): request
            for phase in phases
            for split in SPLITS
            for request in pack_requests(phase, split)
        }
        return {
            label: obtain(
                run, "pack", pack_source, documents, mix, vocabulary,
                label=label, config=run.recipe.pack, request=request,
            )
            for label, request in wanted.items()
        }  # fmt: skip

    return answers(run, "pack", make)


@task(name="import", **STAGE)
def import_model(run: Run, path: str) -> Any:
    """The weights that a first phase continues, where the recipe names a folder of transformers."""
    return answer(run, "import", partial(import_weights, path=path), config=run.recipe.model)


@task(name="fork", **STAGE)
def fork(run: Run, phase: PhaseConfig) -> Any:
    """The checkpoint of another run that a phase begins with."""
    label = fork_label(phase.name)
    if reference := taken_before(run.storage, run.run_id, label):
        return answer(run, "fork", pinned_dataset(reference), label=label)
    return answer(run, "fork", take_checkpoint, label=label, config=phase.fork)


@task(name="train", **(STAGE | {"timeout_seconds": 90 * 24 * HOUR}))
def train(run: Run, packs: Packs, phase_name: str, trained: dict[str, Reference]) -> Any:
    """The checkpoints of one phase, resumed from the newest sound one; `trained` holds the phases before it."""
    recipe = run.recipe
    [phase] = [phase for phase in recipe.train.phases if phase.name == phase_name]
    read = [packs[pack_label(request)] for split in SPLITS for request in pack_requests(phase, split)]
    before = fork_label(phase_name) if phase.fork else phase.parent or IMPORTED
    parent = [] if before == IMPORTED and IMPORTED not in trained else [trained[before]]
    with show_training(run, phase_name):
        return answer(
            run, "train", train_phase, *read, *parent,
            label=f"train {phase_name}", config=recipe.train.run_of(phase_name, recipe.model),
        )  # fmt: skip


@task(name="evaluate", **STAGE)
def evaluate(
    run: Run, trained: dict[str, Reference], packs: Packs, vocabulary: Reference, documents: list[Reference]
) -> Any:
    """Losses per source on held-out rows, before and after training; `documents` say what was decontaminated."""
    train = run.recipe.train
    held_out = [packs[pack_label(request)] for request in held_out_requests(train)]
    datasets = (trained[train.phases[-1].name], vocabulary, *held_out, *documents)
    return answer(run, "evaluate", evaluate_checkpoint, *datasets, config=run.recipe.evaluate)


@task(name="export", **STAGE)
def export(run: Run, trained: dict[str, Reference], vocabulary: Reference) -> Any:
    """A folder that `transformers` loads, and proof that the logits agree."""
    last = run.recipe.train.phases[-1].name
    return answer(run, "export", export_model, trained[last], vocabulary, config=run.recipe.export)


@task(name="report", **STAGE)
def report(run: Run) -> str:
    """report.html of the run, and the same pages in the dashboard."""
    show_results(run)
    return write_report(run.storage, run.journal.record)


def pack_requests(phase: PhaseConfig, split: Split) -> list[PackRequest]:
    """The packs that a phase reads, one per source with a weight."""
    return [
        PackRequest(
            source=source, split=split, sequence_length=phase.sequence_length,
            min_document_tokens=phase.min_document_tokens,
        )
        for source, weight in sorted(phase.weights.items())
        if weight > 0
    ]  # fmt: skip


def held_out_requests(train: TrainConfig) -> list[PackRequest]:
    """The packs that judge the last phase: of every source that it or a phase before it reads, as it was read last."""
    phases = {phase.name: phase for phase in train.phases}
    found: dict[str, PackRequest] = {}
    name: str | None = train.phases[-1].name
    while name is not None:
        found = {request.source: request for request in pack_requests(phases[name], "held_out")} | found
        name = phases[name].parent
    return [found[source] for source in sorted(found)]


def pack_label(request: PackRequest) -> str:
    """`pack web train 256`, with ` min 64` where short documents are left out."""
    minimum = f" min {request.min_document_tokens}" if request.min_document_tokens else ""
    return f"pack {request.source} {request.split} {request.sequence_length}{minimum}"


def answer(run: Run, stage: str, function: Callable[..., Manifest], *inputs: Reference, **arguments: Any) -> Any:
    """What a task of one dataset returns: its reference, in a state named Cached when the dataset was there."""
    return _answer(run, stage, lambda: {"": obtain(run, stage, function, *inputs, **arguments)}, single=True)


def answers(run: Run, stage: str, make: Callable[[], dict[str, Outcome]]) -> Any:
    """The same for a task of several datasets: a mapping from label to reference."""
    return _answer(run, stage, make, single=False)


def _answer(run: Run, stage: str, make: Callable[[], dict[str, Outcome]], single: bool) -> Any:
    if run.is_dry:
        outcomes = make()
    else:
        try:
            with show_progress(stage):
                outcomes = make()
        except Cancelled as error:
            return CancelledState(message=str(error))
    references = {label: outcome.reference for label, outcome in outcomes.items()}
    result = references[""] if single else references
    if run.is_dry or not all(outcome.is_cached for outcome in outcomes.values()):
        return result
    message = "; ".join(outcome.message for outcome in outcomes.values())
    return Completed(name="Cached", message=message[:MESSAGE_CHARS], data=result)
