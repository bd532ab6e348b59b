"""The commands that look at runs: runs, show, files, why, sample, trace, report, generate. They start nothing."""

from dataclasses import asdict
from typing import Annotated

import typer

from flows.cli_options import AsJson, Root, RunName
from flows.display import compared, listed, say, say_funnel, say_json, say_table
from tasks.errors import ConfigError, in_words
from tasks.funnel import funnel
from tasks.manifest import Manifest, list_manifests, load_manifest
from tasks.report import write_report
from tasks.runs import RUN_STAGES, find_record, list_records
from tasks.samples import DEFAULT_COUNT, sample_stage
from tasks.signal_table import SIGNALS, Signal
from tasks.storage import Storage
from tasks.summary import summarise
from tasks.trace import trace_step
from tasks.trained_model import SamplingConfig, generate_text
from tasks.why import tell_story

MAX_SEED = 2**63 - 1


def add_to(app: typer.Typer) -> None:
    """Add the commands of this file."""
    for command in (runs, show, files, why, trace, sample, report, generate, signals):
        app.command()(command)


def signals(as_json: AsJson = False) -> None:
    """List the signals that documents have, which rules of select may name: type, range, unit, source, meaning."""
    if as_json:
        say_json([asdict(signal) for signal in SIGNALS])
        return
    rows = [
        (signal.name, signal.type, _range(signal), signal.unit, signal.source, signal.meaning) for signal in SIGNALS
    ]
    say_table(("signal", "type", "range", "unit", "source", "meaning"), rows)


def _range(signal: Signal) -> str:
    if signal.low is None and signal.high is None:
        return ""
    return f"{'' if signal.low is None else f'{signal.low:g}'}..{'' if signal.high is None else f'{signal.high:g}'}"


def runs(root: Root = "./lake", as_json: AsJson = False) -> None:
    """List the runs of a storage root, the latest last."""
    storage = Storage(root)
    records = list(list_records(storage))
    if as_json:
        say_json([record.model_dump(mode="json", exclude={"recipe"}) | {"state": record.state} for record in records])
        return
    if not records:
        say(f"no runs in {storage.url}")
        return
    rows = [
        (
            record.run_id, record.recipe["name"], record.state, len(record.attempts), record.created,
            sum(not line.cached for line in record.datasets), sum(line.cached for line in record.datasets),
        )
        for record in records
    ]  # fmt: skip
    say_table(("run", "recipe", "state", "attempts", "created", "computed", "cached"), rows)


def show(run_name: RunName = "latest", root: Root = "./lake", as_json: AsJson = False) -> None:
    """Show a run: its attempts, its datasets, and the funnel by source and reason."""
    storage = Storage(root)
    record = find_record(storage, run_name)
    if as_json:
        say_json(summarise(storage, record))
        return
    say(f"run {record.run_id} of recipe {record.recipe['name']}: {record.state}")
    for attempt in record.attempts:
        what = f"{attempt.state}: {in_words(attempt.message)}".removesuffix(": ")
        say(f"  attempt {attempt.number} on {attempt.host}, {attempt.started}: {what}")
    say()
    say_table(
        ("dataset", "made by", "seconds", "reference"),
        [(line.label, line.made_by, line.seconds, line.reference) for line in record.datasets],
    )
    say()
    say_funnel(funnel(storage, record))


def files(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="stage/fingerprint, or a fingerprint's beginning.")],
    root: Root = "./lake",
    as_json: AsJson = False,
) -> None:
    """List a dataset's files, one path a line, for DuckDB, pandas or `datasets` to read."""
    storage = Storage(root)
    manifest = find_dataset(storage, dataset)
    paths = [
        part.path if part.rows is not None else manifest.file_path(part.key)
        for part in manifest.parts
        if part.rows is None or part.rows
    ]
    scheme = "s3://" if storage.is_s3 else ""
    full = [scheme + storage.path(path) for path in paths]
    if as_json:
        say_json({"dataset": manifest.reference, "files": full})
        return
    for path in full:
        say(path)


def why(
    document: Annotated[str, typer.Argument(metavar="DOC_ID|URL", help="A document's id, or its URL.")],
    run_name: Annotated[str, typer.Option("--run", help="The run to look in.")] = "latest",
    root: Root = "./lake",
    as_json: AsJson = False,
) -> None:
    """Tell what happened to a document, stage by stage."""
    storage = Storage(root)
    story = tell_story(storage, find_record(storage, run_name), document)
    if as_json:
        say_json(story.model_dump(mode="json"))
        return
    say(f"{story.doc_id}  {story.url or ''}\nraw record: {story.raw_ref}\n\n{story.excerpt}\n")
    rows = [
        (fact.stage, fact.verdict, fact.reason, compared(fact.value, fact.threshold), fact.matched_id or "",
         listed(fact.detail))
        for fact in story.facts
    ]  # fmt: skip
    say_table(("stage", "verdict", "reason", "value", "in favour of", "details"), rows)


def sample(
    run_name: RunName,
    stage: Annotated[str, typer.Argument(metavar="STAGE", help="A document stage, such as select.")],
    reason: Annotated[str | None, typer.Option("--reason", help="Documents dropped or edited for this reason.")] = None,
    count: Annotated[int, typer.Option("--count", min=1, help="How many.")] = DEFAULT_COUNT,
    root: Root = "./lake",
    as_json: AsJson = False,
) -> None:
    """Look at documents that a stage kept, or that it left out for a reason."""
    storage = Storage(root)
    samples = sample_stage(storage, find_record(storage, run_name), stage, reason, count)
    if as_json:
        say_json([document.model_dump(mode="json") for document in samples])
        return
    for document in samples:
        facts = compared(document.value, document.threshold)
        against = f" in favour of {document.matched_id}" if document.matched_id else ""
        say(f"--- {document.doc_id}: {document.action} {document.reason} {facts}{against}".rstrip())
        say((document.text or document.detail or "(no text)") + "\n")


def trace(
    run_name: RunName,
    step: Annotated[int, typer.Option("--step", min=1, help="A training step.")],
    phase: Annotated[
        str | None, typer.Option("--phase", help="A phase of the recipe; the last one if left out.")
    ] = None,
    root: Root = "./lake",
    as_json: AsJson = False,
) -> None:
    """List the documents of a training batch, down to their raw records."""
    storage = Storage(root)
    traced = trace_step(storage, find_record(storage, run_name), step, phase)
    if as_json:
        say_json(traced.model_dump(mode="json"))
        return
    loss = f"loss {traced.metrics['loss']:.4f}" if traced.metrics["loss"] is not None else "no loss"
    say(f"phase {traced.phase}, step {traced.step}: {len(traced.rows)} rows, {loss}")
    rows = [
        (row.position, row.source, row.epoch, span.doc_id, span.token_offset, span.num_tokens, span.raw_ref,
         " ".join(span.excerpt.split()))
        for row in traced.rows
        for span in row.spans
    ]  # fmt: skip
    say_table(("position", "source", "epoch", "document", "from token", "tokens", "raw record", "text"), rows)


def report(run_name: RunName = "latest", root: Root = "./lake", as_json: AsJson = False) -> None:
    """Write the run's report again, and say where it is."""
    storage = Storage(root)
    place = storage.path(write_report(storage, find_record(storage, run_name)))
    if as_json:
        say_json({"report": place})
    else:
        say(place)


def generate(
    run_name: RunName = "latest",
    prompt: Annotated[str, typer.Option("--prompt", help="The text to go on from.")] = "The ",
    max_new_tokens: Annotated[int, typer.Option("--tokens", min=1, help="Tokens to write, at most.")] = 100,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0: always the likeliest.")] = 0.8,
    seed: Annotated[int, typer.Option("--seed", min=0, max=MAX_SEED, help="The same seed gives the same text.")] = 0,
    root: Root = "./lake",
    as_json: AsJson = False,
) -> None:
    """Let the trained model of a run write."""
    storage = Storage(root)
    record = find_record(storage, run_name)
    trained, vocabulary = (record.datasets_of(stage) for stage in ("train", "vocabulary"))
    if not trained or not vocabulary:
        raise ConfigError(f"run {record.run_id} has trained no model; see `basemill show {record.run_id}`")
    config = SamplingConfig(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    model, tokenizer = (load_manifest(storage, lines[-1].reference) for lines in (trained, vocabulary))
    text = generate_text(storage, model, tokenizer, prompt, config)
    if as_json:
        say_json({"prompt": prompt, "text": text})
    else:
        say(text)


def find_dataset(storage: Storage, name: str) -> Manifest:
    """The dataset meant by `stage/fingerprint`, a stage or the beginning of a fingerprint. Raises ConfigError."""
    stage, _, fingerprint = (name, "", "") if name in RUN_STAGES else name.rpartition("/")
    stages = [stage] if stage else RUN_STAGES
    found = [
        reference
        for each in stages
        for reference in list_manifests(storage, each)
        if reference.rpartition("/")[2].startswith(fingerprint)
    ]
    if len(found) != 1:
        which = f"{len(found)} match: {', '.join(found[:5])}{', ...' * (len(found) > 5)}" if found else "none matches"
        raise ConfigError(f"dataset {name!r}: {which}; references are shown by `basemill show RUN`")
    return load_manifest(storage, found[0])
