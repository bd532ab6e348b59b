"""The whole recipe, from raw text to a trained model: the file to read first.

    ingest -> dedup-exact -> classifiers -> signals -> select -> dedup-near -> redact
           -> decontaminate -> mix                                                                 curate.py
    -> vocabulary                                                                                  vocabulary.py
    -> pack                                                                                        packing.py
    -> train, phase by phase                                                                       pretrain.py
    -> evaluate -> export                                                                          evaluate.py

`graph` is written once: a run calls its subflows and stages as Prefect flows and tasks, `basemill plan` calls the same
functions plainly, in a workspace where nothing is computed. None stands for a dataset that is not known yet (plan) or
not wanted (`until_stage`); what depends on it is left out.
"""

from typing import Any

from prefect import flow
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from flows import stages
from flows.attempt import attempt, dry_run
from flows.calls import call, cancellable
from flows.curate import curate
from flows.evaluate import evaluate
from flows.packing import packing
from flows.pretrain import pretrain
from flows.vocabulary import vocabulary
from tasks.journal import PlanLine, Run
from tasks.pins import pinned
from tasks.runs import RunStage


@flow(name="basemill", description="From raw text to a trained base model: one recipe, every stage cached.")
@cancellable
def basemill(
    root: str,
    recipe: dict[str, Any],
    from_stage: RunStage | None = None,
    until_stage: RunStage | None = None,
    force: bool = False,
) -> str:
    """Run a recipe.

    Args:
        root: storage root, a folder or s3://bucket/prefix
        recipe: the recipe as JSON, its paths absolute; keys left out have their defaults
        from_stage: stages before this one are only looked up
        until_stage: the last stage to run
        force: compute the stages again, as a new generation
    """
    # The heartbeat of the whole run is enough, and each subflow would wait up to a second for its own to end.
    no_heartbeat = temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None})
    with attempt(root, recipe, from_stage, until_stage, force) as run, no_heartbeat:
        graph(run)
    return run.run_id


def graph(run: Run) -> None:
    """Every stage, in order; pinned datasets are taken as they are, and nothing before them is computed."""
    last_phase = run.recipe.train.phases[-1].name
    tokenizers = pinned(run, "vocabulary", "vocabulary")
    packs = pinned(run, "pack", "pack")
    trained = pinned(run, "train", last_phase)

    documents = mixed = None
    if tokenizers is None or packs is None:
        if run.recipe.prepare:
            call(stages.prepare, run)
        documents, mixed = call(curate, run)
    tokenizer = tokenizers["vocabulary"] if tokenizers else call(vocabulary, run, documents, mixed)
    if packs is None:
        packs = call(packing, run, documents, mixed, tokenizer)
    if trained is None:
        trained = call(pretrain, run, packs)
    call(evaluate, run, trained, packs, tokenizer, [documents] if documents or run.is_dry else [])


def plan(
    root: str, recipe: dict[str, Any], from_stage: str | None, until_stage: str | None, force: bool
) -> list[PlanLine]:
    """What a run of these parameters would do, dataset by dataset; computes nothing and starts nothing."""
    run = dry_run(root, recipe, from_stage, until_stage, force)
    graph(run)
    return run.plan
