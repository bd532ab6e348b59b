"""The commands that set one thing beside another: whatif, compare. They start nothing and write nothing."""

from typing import Annotated

import typer

from flows.cli_options import AsJson, Overrides, Root, RunName
from flows.display import MEGABYTE, compared, say, say_json, say_table
from tasks.compare import compare_runs
from tasks.runs import find_record
from tasks.storage import Storage
from tasks.whatif import DEFAULT_SAMPLES, SourceEffect, WhatIf, what_if


def add_to(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command()(whatif)
    app.command()(compare)


def whatif(
    run_name: RunName = "latest",
    overrides: Overrides = None,
    count: Annotated[int, typer.Option("--count", min=0, help="Documents to show of each kind.")] = DEFAULT_SAMPLES,
    root: Root = "./lake",
    as_json: AsJson = False,
) -> None:
    """Say what other rules of select would keep and drop, from the stored signals; and what each rule alone removes."""
    storage = Storage(root)
    answer = what_if(storage, find_record(storage, run_name), overrides or (), count)
    if as_json:
        say_json(answer.model_dump(mode="json"))
        return
    _say_sources(answer)
    for source in answer.sources:
        rows = [
            (rule.reason, rule.drops_before, rule.drops, rule.fails, rule.alone, rule.not_applied)
            for rule in answer.rules
            if rule.source == source.source and (rule.fails or rule.drops_before)
        ]
        if rows:
            names = ("rule", "drops in the run", "would drop", "fails", "alone", "not applied")
            say_table(names, rows, title=f"Source {source.source}")
        if source.never:
            say(f"never fires in {source.source}: {', '.join(source.never)}")
        say()
    for title, samples in (("just kept", answer.newly_kept), ("just dropped", answer.newly_dropped)):
        for document in samples:
            facts = compared(document.value, document.threshold)
            say(f"--- {title}: {document.doc_id} {document.reason} {facts}".rstrip())
            say(document.text + "\n")


def compare(
    one: RunName,
    other: Annotated[str, typer.Argument(metavar="RUN", help="The run to compare it with.")],
    root: Root = "./lake",
    as_json: AsJson = False,
) -> None:
    """Set two runs side by side: settings that differ, documents by stage and source, reasons, weights and epochs."""
    storage = Storage(root)
    compared_runs = compare_runs(storage, *(find_record(storage, name) for name in (one, other)))
    if as_json:
        say_json(compared_runs.model_dump(mode="json"))
        return
    first, second = compared_runs.runs
    say(f"first: {first}\nsecond: {second}\n")
    say_table(("setting", "first", "second"), [(s.key, *map(str, s.values)) for s in compared_runs.settings])
    say()
    say_table(
        ("stage", "source", "documents first", "second", "MB first", "second", "tokens first", "second"),
        [
            (row.stage, row.source, *_both(row.documents), *_both(row.bytes, MEGABYTE), *_both(row.tokens))
            for row in compared_runs.funnel
        ],
    )
    say()
    different = [row for row in compared_runs.reasons if row.documents[0] != row.documents[1]]
    reasons = [(row.stage, row.source, row.reason, *_both(row.documents)) for row in different]
    say_table(("stage", "source", "reason (where counts differ)", "first", "second"), reasons)
    say()
    mixture = [
        (row.phase, row.source, *_both(row.share), *_both(row.tokens), *_both(row.epochs))
        for row in compared_runs.mixture
    ]
    names = ("phase", "source", "share first", "second", "tokens first", "second", "epochs first", "second")
    say_table(names, mixture)


def _both(pair: tuple[float | None, float | None], unit: float = 1) -> tuple[str, str]:
    """Two figures for a table."""
    figures = (value if value is None or unit == 1 else value / unit for value in pair)
    one, other = ("-" if figure is None else f"{round(figure, 3):,}" for figure in figures)
    return one, other


def _characters(row: SourceEffect) -> tuple[str, str]:
    """In the run and then; unknown where the signal that counts them is off."""
    is_known = row.chars_before or row.chars or not (row.kept_before or row.kept)
    one, other = (f"{count:,}" if is_known else "-" for count in (row.chars_before, row.chars))
    return one, other


def _say_sources(answer: WhatIf) -> None:
    rows = [
        (
            row.source, row.documents, row.kept_before, row.kept, row.newly_kept, row.newly_dropped,
            *_characters(row), "max_drop_ratio would stop it" if row.is_stopped else "",
        )
        for row in answer.sources
    ]  # fmt: skip
    names = ("source", "documents", "kept in the run", "would keep", "+", "-", "characters in the run", "then", "")
    say_table(names, rows)
    say()
