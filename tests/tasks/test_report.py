"""The report and the dashboard's pages: figures of the run, hostile text shown as text."""

import json
import math
import re
from html.parser import HTMLParser

import pyarrow.compute as pc
import pytest

from tasks.dataset import Workspace
from tasks.decontaminate import DecontaminateConfig, drop_evaluation_text
from tasks.dedup_near import NearDedupConfig, drop_near_duplicates
from tasks.documents import DOCUMENT_SCHEMA
from tasks.evaluate import losses_of
from tasks.lineage import graph_svg, read_graph
from tasks.manifest import Manifest, load_manifest
from tasks.parts import PartWriter, Unit, documents_of
from tasks.redact import RedactConfig, redact_personal_data
from tasks.report import Losses, dashboard_pages, fence, write_report
from tasks.runs import DatasetLine, RunRecord
from tests.conftest import MakeDocuments

HOSTILE = '<script>alert("x")</script><img src=x onerror=alert(1)> ``` </pre> {{ 7 * 7 }} | bad'


def drop_hostile(unit: Unit, writer: PartWriter) -> None:
    for table in documents_of(unit, writer):
        bad = pc.starts_with(table["text"], "<script>")
        for row in table.filter(bad).to_pylist():
            writer.ledger.drop(row["doc_id"], row["source"], "short", value=3, threshold=50)
        writer.write(table.filter(pc.invert(bad)))


def line_of(manifest: Manifest) -> DatasetLine:
    return DatasetLine(
        label=manifest.stage,
        stage=manifest.stage,
        reference=manifest.reference,
        digest=manifest.digest,
        code="",
        made_by="<b>run</b>",
        cached=manifest.stage == "ingest",
        attempt=1,
        seconds=0,
    )


@pytest.fixture
def record(make_documents: object, workspace: Workspace) -> RunRecord:
    documents: Manifest = make_documents({"web": [HOSTILE, "good", "fine"], "code": ["x = 1"]}, parts=1)  # type: ignore[operator]
    dataset = workspace.dataset(
        "select",
        None,
        inputs={"documents": documents},
        module="tasks.documents",
        schema=DOCUMENT_SCHEMA,
        conservation="documents",
    )
    units = [dataset.unit([part], source=part.source) for part in documents.parts]
    selected = dataset.publish(dataset.compute(units, drop_hostile))
    record = RunRecord(run_id="20260101-000000-abcd", created="2026-01-01", recipe={"name": HOSTILE})
    record.set_dataset(line_of(documents))
    record.set_dataset(line_of(selected))
    return record


class Tags(HTMLParser):
    """Collects the tags of a page, and the text outside of them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_hostile_text_is_shown_and_never_run(record: RunRecord, workspace: Workspace) -> None:
    key = write_report(workspace.storage, record)
    page = workspace.storage.read_bytes(key).decode()
    tags = Tags()
    tags.feed(page)
    assert key == "runs/20260101-000000-abcd/report.html"
    assert not {"script", "img", "iframe", "b "} & set(tags.tags)
    assert not [name for name in tags.attributes if name.startswith("on")]
    assert HOSTILE in tags.text
    assert "49" not in re.findall(r"alert\(1\)> ``` </pre> (\S+)", tags.text)
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")


def test_the_report_holds_the_figures_of_the_run(record: RunRecord, workspace: Workspace) -> None:
    page = workspace.storage.read_bytes(write_report(workspace.storage, record)).decode()
    tags = Tags()
    tags.feed(page)
    assert "short 1" in tags.text
    assert "documents from stage to stage" in tags.text
    assert "svg" in tags.tags


def test_the_report_says_what_personal_data_was_replaced_and_shows_shapes_only(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    documents = make_documents({"web": ["ask jo@acme.org or <b>x@y.de</b>", "call (202) 456-1111"]})
    redacted = redact_personal_data(documents, into=workspace, config=RedactConfig())
    record = RunRecord(run_id="20260101-000000-abcd", created="2026-01-01", recipe={"name": "r"})
    record.set_dataset(line_of(redacted))
    tags = Tags()
    tags.feed(workspace.storage.read_bytes(write_report(workspace.storage, record)).decode())
    words = " ".join(tags.text.split("Personal data replaced")[1].split())
    assert words.startswith("sourcekindmatchesdocumentsshapes webemail 21 a@a.aa aa@aaaa.aaa webphone 11 (000)")
    assert not any(secret in tags.text for secret in ("acme", "456-1111"))


def test_the_report_shows_clusters_of_near_duplicates_with_escaped_samples(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    text = " ".join(f"{one}{other}" for one in "abcdefgh" for other in "stuvwxyz")
    pages = [f"<script>alert(1)</script> jo@acme.org {text}{'!' * number}" for number in range(5)]
    documents = make_documents({"web": [*pages, "alone"], "books": [f"{text} jo"]}, parts=2)
    kept = drop_near_duplicates(documents, into=workspace, config=NearDedupConfig(priorities={"books": 1}))
    record = RunRecord(run_id="20260101-000000-abcd", created="2026-01-01", recipe={"name": "r"})
    record.set_dataset(line_of(kept))
    tags = Tags()
    tags.feed(workspace.storage.read_bytes(write_report(workspace.storage, record)).decode())
    words = " ".join(tags.text.split("Near duplicates")[1].split())
    assert words.startswith("Clusters by size: up to 8: 1. Documents in clusters: books 1 (100.0%), web 5 (83.3%).")
    assert "6 documents, kept: books:" in words
    assert "hy hz jo" in words
    assert "script" not in tags.tags
    protected = NearDedupConfig(protected=("web",))  # nobody of web goes; one of books does, for one of them
    record.set_dataset(line_of(drop_near_duplicates(documents, into=workspace, config=protected)))
    page = workspace.storage.read_bytes(write_report(workspace.storage, record)).decode()
    assert "&lt;script&gt;alert(1)" in page
    assert "jo@acme.org" not in page


def test_samples_of_earlier_stages_hold_no_personal_data_unless_the_recipe_leaves_it(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    documents = make_documents({"web": ["<script> jo@acme.org", "fine"], "code": ["<script> max@acme.org"]})
    dataset = workspace.dataset(
        "select", None, inputs={"documents": documents}, module="tasks.documents", schema=DOCUMENT_SCHEMA,
        conservation="documents",
    )  # fmt: skip
    units = [dataset.unit([part], source=part.source) for part in documents.parts]
    recipe = {"name": "r", "redact": {"by_source": {"code": {"enabled": False}}}}
    record = RunRecord(run_id="20260101-000000-abcd", created="2026-01-01", recipe=recipe)
    record.set_dataset(line_of(dataset.publish(dataset.compute(units, drop_hostile))))
    page = workspace.storage.read_bytes(write_report(workspace.storage, record)).decode()
    [samples] = [
        text for name, _, text in dashboard_pages(workspace.storage, record, picture_bytes=1) if name == "samples"
    ]
    for shown in (page, samples):
        assert "jo@acme.org" not in shown
        assert "max@acme.org" in shown


def test_the_report_says_which_evaluation_items_were_found_where_and_how_sure(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    question = "Which <b>river</b> flows past the three old mills and the long stone bridge of the town"
    row = {"q": question, "i": "<i>7"}
    workspace.storage.write_bytes("quiz.jsonl", json.dumps(row).encode())
    quiz = {"path": "{root}/quiz.jsonl", "question": "q", "id": "i"}
    config = DecontaminateConfig.model_validate({"evaluation_sets": {"quiz": quiz}})
    documents = make_documents({"web": [f"so: {question}", "nothing"], "code": ["x = 1"]})
    record = RunRecord(run_id="20260101-000000-abcd", created="2026-01-01", recipe={"name": "r"})
    record.set_dataset(line_of(drop_evaluation_text(documents, into=workspace, config=config)))
    tags = Tags()
    tags.feed(workspace.storage.read_bytes(write_report(workspace.storage, record)).decode())
    words = " ".join(tags.text.split("Evaluation text found")[1].split("Training")[0].split())
    assert " quiz1 11 100.00% from 1.0: 1 01 web 1 " in words
    assert "quiz:<i>7 (question, 100% of its n-grams) in web:" in words
    assert words.endswith(question)


def test_held_out_losses_are_listed_before_beside_after() -> None:
    row = {"bits_per_byte_after": 1, "bits_per_byte_before": 2, "bytes": 3, "nats_after": 4, "nats_before": 5}
    losses = Losses(rows=[row | {"source": "web", "tokens": 6}], notes={})
    assert losses.columns == [
        "bytes", "tokens", "bits_per_byte_before", "bits_per_byte_after", "nats_before", "nats_after",
    ]  # fmt: skip
    assert Losses(rows=[], notes={}).columns == []


def test_the_dashboard_pages_cannot_be_broken_by_text(record: RunRecord, workspace: Workspace) -> None:
    pages = {key: text for key, _, text in dashboard_pages(workspace.storage, record, picture_bytes=200_000)}
    assert set(pages) == {"funnel", "samples", "graph"}
    assert "| stage | source | in | out | dropped | edited | unreadable |\n| --- | --- | --: |" in pages["funnel"]
    assert "| select | web | 3 | 2 | 1 | 0 | 0 |" in pages["funnel"]
    assert "| select | web | short | 1 |" in pages["funnel"]
    assert "![graph of the run](data:image/svg+xml;base64," in pages["graph"]
    assert max(map(len, pages["samples"].splitlines())) <= 120
    fences = re.findall("^`{3,}", pages["samples"], re.MULTILINE)
    assert len({len(mark) for mark in fences}) == 1
    assert len(fences[0]) == 4
    small = {key: text for key, _, text in dashboard_pages(workspace.storage, record, picture_bytes=100)}
    assert "too large to show" in small["funnel"]


def test_the_dashboard_shows_scores_and_what_stands_in_their_place(record: RunRecord, workspace: Workspace) -> None:
    web = {"source": "web", **losses_of(1234, 100, 200 * math.log(2), 100 * math.log(2))}
    code = {"source": "code", **losses_of(0, 0, 0.0, 0.0)}
    scored = {"task": "piqa", "status": "decontaminated", "items": 9, "unscored": 0, "acc": 0.5, "acc_stderr": 0.1}
    tasks = [scored, {"task": "arc_easy", "status": "not decontaminated (sources: a|b)"}]
    facts = {"losses": [web, code], "tasks": tasks, "evaluation_sets": {"quiz": "not <b>decontaminated"}, "samples": []}
    dataset = workspace.dataset("evaluate", None, inputs={}, module="tasks.documents")
    record.set_dataset(line_of(dataset.publish_files({}, extra=facts)))
    pages = {key: text for key, _, text in dashboard_pages(workspace.storage, record, picture_bytes=200_000)}
    assert "| web | 1,234 | 2.0000 | 1.0000 |" in pages["scores"]
    assert "| code | 0 | no held-out text |  |" in pages["scores"]
    page = workspace.storage.read_bytes(write_report(workspace.storage, record)).decode()
    assert '<td class="n">0</td><td class="n" colspan="6">no held-out text</td></tr>' in page
    assert page.count("no held-out text") == 1
    assert "| piqa | 9 | acc 0.5000 ± 0.1000 |" in pages["scores"]
    assert "| arc_easy | 0 | not decontaminated (sources: a&#124;b) |" in pages["scores"]
    assert "- quiz: not &lt;b&gt;decontaminated" in pages["scores"]


def test_a_fence_is_longer_than_any_in_the_text() -> None:
    assert fence("plain") == "```text\nplain\n```"
    assert fence("a ````` b").startswith("``````text")


def test_the_graph_joins_what_was_made_from_what(record: RunRecord, workspace: Workspace) -> None:
    nodes = read_graph(workspace.storage, record)
    assert [node.label for node in nodes] == ["ingest", "select"]
    assert nodes[1].inputs == [nodes[0].reference]
    assert graph_svg(nodes).count("<path") == 1
    assert graph_svg(nodes).count("<rect") == 1 + 2  # paper and boxes
    assert "<b>run" not in graph_svg(nodes)
    assert graph_svg([]).startswith("<svg")
    for rows, told in ((None, ""), (0, ", 0 rows"), (1234, ", 1,234 rows")):
        assert f">{nodes[0].reference[7:15]}{told}<" in graph_svg([nodes[0].model_copy(update={"rows": rows})])
    facts = {"size": 4096, "bytes_per_token": {"<b>web": 4.4642, "tiny": None}}
    dataset = workspace.dataset("vocabulary", None, inputs={}, module="tasks.documents")
    vocabulary = dataset.publish_files({}, extra=facts)
    record.set_dataset(line_of(vocabulary))
    empty = workspace.dataset("redact", None, inputs={}, module="tasks.documents", schema=DOCUMENT_SCHEMA).publish([])
    record.set_dataset(line_of(empty))
    assert [node.rows for node in read_graph(workspace.storage, record)[2:]] == [None, 0]
    page = workspace.storage.read_bytes(write_report(workspace.storage, record)).decode()
    assert page.startswith("<!doctype html>")
    assert "<th>bytes per token</th><td>&lt;b&gt;web 4.464, tiny none</td></tr>" in page
    assert "<th>size</th><td>4,096</td></tr>" in page
    record.datasets = record.datasets[:2]
    record.datasets.reverse()  # as when one is pinned: the run met it first
    assert read_graph(workspace.storage, record) == nodes


def test_classifiers_are_shown_and_their_ngrams_escaped_and_redacted(workspace: Workspace, record: RunRecord) -> None:
    top = [{"ngram": "<b>bold", "weight": 2.5, "texts": 9}, {"ngram": "ann@example.org", "weight": 2.0, "texts": 5}]
    quality = {
        "texts": {"positive": 1200, "negative": 40}, "auc": 0.9875, "accuracy": 0.91, "top_ngrams": {"positive": top},
        "calibration": [{"from": 0.9, "texts": 12, "mean_score": 0.95, "positive_ratio": 0.94}],
    }  # fmt: skip
    reports = {
        "quality": quality,
        "toxicity": {"taken_from_sha256": "0123456789abcdef"},
        "listed_words": {"entries": 1234, "entries_without_words": 0},
        "perplexity": {"texts": 90, "words": 5678, "ngrams": 99, "held_out_perplexity": {"50": 321.5}},
    }
    dataset = workspace.dataset("classifiers", None, inputs={}, module="tasks.documents")
    record.set_dataset(line_of(dataset.publish_files({}, extra=reports)))
    page = workspace.storage.read_bytes(write_report(workspace.storage, record)).decode()
    shown = Tags()
    shown.feed(page)
    assert "<b>bold" not in page
    assert "&lt;b&gt;bold" in page
    assert "ann@example.org" not in page
    words = " ".join(shown.text.split())
    for part in (
        "1,200 positive",
        "0.9875",
        "0.95: 0.94 (12)",
        "0123456789ab",
        "1,234 entries",
        "5,678 words",
        "below 321.5",
    ):
        assert part in words, part


def test_a_damaged_part_is_named_and_the_rest_is_shown(record: RunRecord, workspace: Workspace) -> None:
    ingested = load_manifest(workspace.storage, record.datasets[0].reference)
    [part] = [part for part in ingested.parts if part.source == "web"]
    workspace.storage.write_bytes(part.path, b"PAR1")
    page = workspace.storage.read_bytes(write_report(workspace.storage, record)).decode()
    assert re.search(f"<b>Not shown:</b> [^<]*{part.key}", page)
    pages = {key: text for key, _, text in dashboard_pages(workspace.storage, record, picture_bytes=200_000)}
    assert "Not shown: " in pages["samples"]
    assert part.key in pages["samples"]
