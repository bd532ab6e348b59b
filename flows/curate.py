"""Raw files -> clean documents and their mixture."""

from prefect import flow

from flows import stages
from flows.calls import call, cancellable
from tasks.journal import Run
from tasks.outcome import Reference


@flow(name="curate")
@cancellable
def curate(run: Run) -> tuple[Reference, Reference]:
    """The documents that training may see, and the split and size table over them."""
    documents = call(stages.ingest, run)
    documents = call(stages.dedup_exact, run, documents)
    inputs = [documents, call(stages.classifiers, run, documents)] if run.recipe.classifiers.given else [documents]
    signals = call(stages.signals, run, *inputs)
    documents = call(stages.select, run, documents, signals)
    near = call(stages.dedup_near, run, documents)
    documents = call(stages.redact, run, near)
    documents = call(stages.decontaminate, run, documents)
    return documents, call(stages.mix, run, documents, signals, near)
