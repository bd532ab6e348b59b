"""report.html of a run, self-contained, and the pages that the dashboard shows of it.

Text of documents is hostile: the template escapes everything (Jinja2 with autoescape), Markdown pages show it only
inside code fences that it cannot close. Personal data was replaced in it (documents.py). Pictures are SVG
made by tasks/charts.py.
"""

import re
import textwrap
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from pydantic import BaseModel

from tasks.charts import data_url, short_number
from tasks.epochs import mixture_of_run
from tasks.errors import DataError, in_words
from tasks.evaluate.scores import BITS, score_rows, shown_figures
from tasks.evaluate.task_scores import score_text
from tasks.funnel import FunnelRow, funnel
from tasks.harness import harness_records, metrics_text
from tasks.incidents import Incident, documents_of, incidents_of, is_named
from tasks.lineage import graph_svg, read_graph
from tasks.manifest import load_manifest
from tasks.redact import redact_text
from tasks.report.distributions import SourceRules, select_pictures
from tasks.report.documents import ReportDocuments, read_documents, redacted_events, redaction_of
from tasks.report.flow_picture import flow_picture
from tasks.runs import RunRecord
from tasks.storage import Storage
from tasks.summary import parameters_of
from tasks.train.live import LiveTraining, read_curves
from tasks.train.view import Curve, loss_chart, marks_of, read_forks

REASONS_PER_STAGE = 6  # in the dashboard
SHOWN_DOCUMENTS = 5  # of an incident
SHOWN_MARKS = 30  # of a training, the latest
SAMPLE_CHARS = 300
LINE_CHARS = 100
SIZES = ("tokens", "bytes")


class Losses(BaseModel, frozen=True):
    """Held-out losses per source, before and after training, scores of tasks, and what stands in a score's place."""

    rows: list[dict[str, Any]]
    notes: dict[str, str]
    tasks: list[dict[str, Any]] = []

    @property
    def columns(self) -> list[str]:
        """Names of the figures, the sizes first, each measure before beside after."""
        names = (name for row in self.rows[:1] for name in row if name != "source")
        return sorted(names, key=lambda name: (name not in SIZES, name.replace("_after", "_z")))

    def figures(self, row: dict[str, Any]) -> list[str]:
        """A row's figures after the sizes, as text."""
        return shown_figures(row, self.columns[len(SIZES) :], "{:.4f}".format)


def write_report(storage: Storage, record: RunRecord) -> str:
    """Write runs/<run-id>/report.html; returns its key."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parents[:2]), autoescape=True, undefined=jinja2.StrictUndefined
    )
    rows, documents, faults = funnel(storage, record), read_documents(storage, record), list[str]()
    page = environment.get_template("report.html").render(
        record=record,
        nodes=read_graph(storage, record),
        graph=Markup(graph_svg(read_graph(storage, record))),
        funnel=rows,
        funnel_picture=Markup(flow_picture(rows)),
        rules=_rules(storage, record, faults),
        classifiers=read_classifiers(storage, record),
        personal_data=(_extra(storage, record, "redact") or {}).get("personal_data", {}),
        evaluation_sets=(_extra(storage, record, "decontaminate") or {}).get("evaluation_sets", {}),
        sizes=(_extra(storage, record, "mix") or {}).get("sizes", {}),
        mixture=mixture_of_run(storage, record),
        loss_picture=Markup(loss_chart(read_curves(storage, record))),
        parameters=parameters_of(storage, record),
        forks=read_forks(storage, record),
        written=documents.written,
        incidents=_incidents(storage, record, faults),
        losses=read_losses(storage, record),
        score_text=score_text,
        vocabulary=_extra(storage, record, "vocabulary"),
        export=_extra(storage, record, "export"),
        harness=[
            (found.created, score, metrics_text(score))
            for line in record.datasets_of("export")
            for found in harness_records(storage, line.reference)
            for score in found.scores
        ],
        clusters=documents.clusters,
        samples=documents.samples,
        faults=[*faults, *documents.faults],
        number=short_number,
        in_words=in_words,
    )
    key = f"runs/{record.run_id}/report.html"
    storage.write_bytes(key, page.encode("utf-8", "replace"))
    return key


def _rules(storage: Storage, record: RunRecord, faults: list[str]) -> list[SourceRules]:
    """What the rules do, unless a part is damaged: a report on a failed run says so and shows the rest."""
    try:
        return select_pictures(storage, record)
    except DataError as error:
        faults.append(str(error))
        return []


def _incidents(storage: Storage, record: RunRecord, faults: list[str]) -> list[tuple[Incident, list[dict[str, Any]]]]:
    """The roll-backs of training, each with the named documents of the highest scores; none where data is damaged."""
    try:
        return [
            (incident, [row for row in documents_of(storage, incident) if is_named(row)][:SHOWN_DOCUMENTS])
            for incident in incidents_of(storage, record)
        ]
    except DataError as error:
        faults.append(str(error))
        return []


def dashboard_pages(storage: Storage, record: RunRecord, *, picture_bytes: int) -> list[tuple[str, str, str]]:
    """(key, description, Markdown) of each page: funnel, samples, loss curve, scores, graph; no too large pictures."""
    rows = funnel(storage, record)
    pages = [("funnel", "documents by stage and source", _funnel_page(rows, picture_bytes))]
    documents = read_documents(storage, record)
    if documents.samples or documents.faults:
        pages.append(("samples", "what was dropped or edited, and why", _samples_page(documents)))
    pages += training_pages(read_curves(storage, record), documents.written, picture_bytes=picture_bytes)
    if losses := read_losses(storage, record):
        pages.append(("scores", "held-out text and tasks", _scores_page(losses)))
    nodes = read_graph(storage, record)
    if nodes:
        pages.append(("graph", "datasets of this run", _picture("graph of the run", graph_svg(nodes), picture_bytes)))
    return pages


def training_pages(
    curves: Sequence[Curve], written: list[dict[str, Any]], *, picture_bytes: int
) -> list[tuple[str, str, str]]:
    """The pages of a training, as far as it is; `written`: texts without personal data."""
    pages = []
    if any(curve.tokens for curve in curves):
        marks = marks_of(curves)[-SHOWN_MARKS:]  # the dashboard shows no labels in a picture
        told = [f"- {short_number(mark.x)} tokens: {escape(_inline(mark.label))}" for mark in marks]
        page = "\n\n".join([_picture("loss curve", loss_chart(curves), picture_bytes), "\n".join(told)])
        pages.append(("loss", "training loss and what happened", page))
    if written:
        pages.append(("writing", "what the model wrote while it was trained", _written_page(written)))
    return pages


def live_pages(live: LiveTraining, *, picture_bytes: int) -> list[tuple[str, str, str]]:
    """The same pages of a training that goes on."""
    return training_pages(live.curves, redacted_events(live.written, live.record), picture_bytes=picture_bytes)


def read_losses(storage: Storage, record: RunRecord) -> Losses | None:
    """What `evaluate` found; None before it ran."""
    lines = record.datasets_of("evaluate")
    if not lines:
        return None
    evaluated = load_manifest(storage, lines[-1].reference)
    facts = evaluated.extra
    return Losses(rows=score_rows(evaluated), notes=facts.get("evaluation_sets", {}), tasks=facts.get("tasks", []))


def read_classifiers(storage: Storage, record: RunRecord) -> dict[str, dict[str, Any]]:
    """The reports of the trained classifiers by kind; their n-grams come from documents, so they are redacted."""
    found = _extra(storage, record, "classifiers") or {}
    config = redaction_of(record)
    for report in found.values():
        for ngrams in report.get("top_ngrams", {}).values():
            for row in ngrams:
                row["ngram"] = redact_text(row["ngram"], config)
    return found


def _written_page(events: list[dict[str, Any]]) -> str:
    blocks = []
    for event in events:
        head = f"**phase {event['phase']}, step {event['step']}**, after the beginning of a text of `{event['source']}`"
        blocks.append(f"{head}\n\n{fence(_wrapped(event['prompt'] + ' | ' + event['text']))}")
    return "\n\n".join(blocks)


def _extra(storage: Storage, record: RunRecord, stage: str) -> dict[str, Any] | None:
    lines = record.datasets_of(stage)
    return load_manifest(storage, lines[-1].reference).extra if lines else None


def _funnel_page(rows: list[FunnelRow], picture_bytes: int) -> str:
    numbers = ("in", "out", "dropped", "edited", "unreadable")
    cells = [(row.stage, row.source, row.rows_in, row.rows_out, row.dropped, row.edited, row.errors) for row in rows]
    reasons = [
        (row.stage, row.source, name, count)
        for row in rows
        for name, count in sorted(row.reasons.items(), key=lambda entry: (-entry[1], entry[0]))[:REASONS_PER_STAGE]
    ]
    return "\n\n".join(
        [
            _picture("funnel", flow_picture(rows), picture_bytes),
            _table(("stage", "source", *numbers), cells),
            f"The commonest {REASONS_PER_STAGE} reasons of each:",
            _table(("stage", "source", "reason", "documents"), reasons),
        ]
    )


def _table(head: tuple[str, ...], rows: Sequence[tuple[str | int, ...]]) -> str:
    """A Markdown table; numbers stand right."""
    marks = ["--:" if rows and isinstance(cell, int) else "---" for cell in (rows[0] if rows else head)]
    shown = [[f"{cell:,}" if isinstance(cell, int) else cell for cell in row] for row in rows]
    lines = [[*head], marks, *([escape(cell).replace("|", "&#124;") for cell in row] for row in shown)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _scores_page(losses: Losses) -> str:
    """Bits per byte of held-out text, scores of tasks, and what stands in a score's place."""
    rows = [(row["source"], row["tokens"], *shown_figures(row, BITS, "{:.4f}".format)) for row in losses.rows]
    tasks = [(line["task"], line.get("items", 0), score_text(line)) for line in losses.tasks]
    tables = [_table(("held-out text of", "tokens", "bits per byte before", "after"), rows)]
    tables += [_table(("task", "items", "score"), tasks)] if tasks else []
    return "\n\n".join([*tables, *(f"- {escape(name)}: {escape(note)}" for name, note in losses.notes.items())])


def _samples_page(documents: ReportDocuments) -> str:
    blocks = []
    for shown in documents.samples:
        if shown.rank < REASONS_PER_STAGE:
            sample = shown.sample
            match = f" ~ `{sample.matched_id}`" if sample.matched_id else ""
            text = fence(_wrapped(sample.text[:SAMPLE_CHARS]))
            blocks.append(f"**{shown.stage}: {sample.reason}** `{_inline(sample.doc_id)}`{match}\n\n{text}")
    return "\n\n".join([*blocks, *(f"Not shown: {_inline(fault)}" for fault in documents.faults)])


def fence(text: str) -> str:
    """Text as a Markdown code block, with a fence longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    ticks = "`" * max(3, longest + 1)
    return f"{ticks}text\n{text}\n{ticks}"


def _wrapped(text: str) -> str:
    """Lines that fit the dashboard's page."""
    return "\n".join(piece for line in text.split("\n") for piece in textwrap.wrap(line, LINE_CHARS) or [""])


def _inline(text: str) -> str:
    return text.replace("`", "'")


def _picture(name: str, svg: str, limit_bytes: int) -> str:
    url = data_url(svg)
    return f"![{name}]({url})" if len(url) <= limit_bytes else f"({name}: the picture is too large to show here)"
