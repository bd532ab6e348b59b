"""Documents + tokenizer -> rows of fixed length."""

from prefect import flow

from flows import stages
from flows.calls import call, cancellable
from tasks.journal import Run
from tasks.outcome import Reference


@flow(name="packing")
@cancellable
def packing(run: Run, documents: Reference, mixed: Reference, tokenizer: Reference) -> stages.Packs | None:
    """The packs that the phases read, by label."""
    packs: stages.Packs | None = call(stages.pack, run, documents, mixed, tokenizer)
    return packs
