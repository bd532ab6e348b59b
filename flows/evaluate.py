"""Checkpoint -> scores and an exported model."""

from prefect import flow

from flows import stages
from flows.calls import call, cancellable
from tasks.journal import Run
from tasks.outcome import Reference


@flow(name="evaluate")
@cancellable
def evaluate(
    run: Run, trained: dict[str, Reference], packs: stages.Packs, tokenizer: Reference, documents: list[Reference]
) -> tuple[Reference, Reference | None]:
    """Losses and scores of the last phase, and the folder that transformers loads, where the recipe wants it."""
    scores = call(stages.evaluate, run, trained, packs, tokenizer, documents)
    return scores, call(stages.export, run, trained, tokenizer) if run.recipe.export.enabled else None
