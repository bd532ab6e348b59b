"""Mixed documents -> BPE tokenizer."""

from prefect import flow

from flows import stages
from flows.calls import call, cancellable
from tasks.journal import Run
from tasks.outcome import Reference


@flow(name="vocabulary")
@cancellable
def vocabulary(run: Run, documents: Reference, mixed: Reference) -> Reference:
    """The tokenizer of the run."""
    tokenizer: Reference = call(stages.vocabulary, run, documents, mixed)
    return tokenizer
