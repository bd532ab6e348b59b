"""The story of a document, and samples of what a stage kept and dropped, on a chain of two real datasets."""

from collections.abc import Callable

import pyarrow.compute as pc
import pytest

from tasks.dataset import Workspace
from tasks.documents import DOCUMENT_SCHEMA, document_id
from tasks.errors import ConfigError
from tasks.manifest import Manifest
from tasks.parts import PartWriter, Unit, documents_of
from tasks.runs import DatasetLine, RunRecord
from tasks.samples import sample_stage
from tasks.why import tell_story

MakeDocuments = Callable[..., Manifest]

TEXTS = ["first <b>", "copy of first", "second", "third", "mail me"]


def decide_part(unit: Unit, writer: PartWriter) -> None:
    """Drops copies, edits mails."""
    for table in documents_of(unit, writer):
        copies = pc.starts_with(table["text"], "copy")
        for row in table.filter(copies).to_pylist():
            kept = document_id("web", "file#0")
            writer.ledger.drop(row["doc_id"], "web", "same_text", value=1.0, threshold=0.7, matched_id=kept)
        for row in table.filter(pc.starts_with(table["text"], "mail")).to_pylist():
            writer.ledger.edit(row["doc_id"], "web", "email", detail={"count": 1})
        writer.write(table.filter(pc.invert(copies)))


def decide(into: Workspace, documents: Manifest) -> Manifest:
    dataset = into.dataset(
        "dedup-exact",
        None,
        inputs={"documents": documents},
        module="tasks.documents",
        schema=DOCUMENT_SCHEMA,
        conservation="documents",
    )
    return dataset.publish(
        dataset.compute([dataset.unit([part], source=part.source) for part in documents.parts], decide_part)
    )


@pytest.fixture
def record(make_documents: MakeDocuments, workspace: Workspace) -> RunRecord:
    documents = make_documents(TEXTS, url=[f"http://x.org/{n // 2}" for n in range(5)])
    record = RunRecord(run_id="20260101-000000-abcd", created="2026-01-01", recipe={})
    for manifest in (documents, decide(workspace, documents)):
        record.set_dataset(
            DatasetLine(
                label=manifest.stage,
                stage=manifest.stage,
                reference=manifest.reference,
                digest=manifest.digest,
                code="",
                made_by="test",
                cached=False,
                attempt=1,
                seconds=0,
            )
        )
    return record


def test_a_dropped_document_names_its_twin(record: RunRecord, workspace: Workspace) -> None:
    story = tell_story(workspace.storage, record, document_id("web", "file#1"))
    assert not story.is_kept
    assert [fact.verdict for fact in story.facts] == ["read", "dropped"]
    last = story.facts[-1]
    assert (last.reason, last.value, last.threshold) == ("same_text", 1.0, 0.7)
    assert last.matched_id == document_id("web", "file#0")
    assert story.raw_ref == "file#1"
    assert story.excerpt == "copy of first"


def test_a_kept_and_an_edited_document(record: RunRecord, workspace: Workspace) -> None:
    kept = tell_story(workspace.storage, record, document_id("web", "file#2"))
    assert kept.is_kept
    assert [fact.verdict for fact in kept.facts] == ["read", "kept"]
    edited = tell_story(workspace.storage, record, document_id("web", "file#4"))
    assert edited.is_kept
    assert (edited.facts[-1].verdict, edited.facts[-1].detail) == ("edited", {"count": 1})


def test_a_url_names_a_document_when_it_is_alone(record: RunRecord, workspace: Workspace) -> None:
    assert tell_story(workspace.storage, record, "http://x.org/2").doc_id == document_id("web", "file#4")
    with pytest.raises(ConfigError, match="2 documents have it"):
        tell_story(workspace.storage, record, "http://x.org/0")


@pytest.mark.parametrize("name", ["web:0123", "http://nowhere.org", "code:ffff"])
def test_an_unknown_document_is_an_error(record: RunRecord, workspace: Workspace, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        tell_story(workspace.storage, record, name)


@pytest.mark.parametrize("name", ["", ":", "://", "http://x.org/2\x00", "web:\x1b[31m", "x.org/2", "\u202e" * 9000])
def test_what_is_asked_for_cannot_steer_or_flood_the_terminal(
    record: RunRecord, workspace: Workspace, name: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        tell_story(workspace.storage, record, name)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 2_000


def test_stages_without_documents_have_no_samples(record: RunRecord, workspace: Workspace) -> None:
    vocabulary = workspace.dataset("vocabulary", None, inputs={}, module="tasks.documents")
    manifest = vocabulary.publish_files({"tokenizer.json": b"{}"})
    line = record.datasets[0].model_copy(update={"label": "vocabulary", "stage": "vocabulary"})
    record.set_dataset(line.model_copy(update={"reference": manifest.reference}))
    with pytest.raises(ConfigError, match="vocabulary holds no documents; those that do: ingest, dedup-exact"):
        sample_stage(workspace.storage, record, "vocabulary")


def test_samples_of_a_reason_show_text_and_match(record: RunRecord, workspace: Workspace) -> None:
    [sample] = sample_stage(workspace.storage, record, "dedup-exact", "same_text")
    assert (sample.action, sample.text) == ("drop", "copy of first")
    assert sample.matched_id == document_id("web", "file#0")
    [edit] = sample_stage(workspace.storage, record, "dedup-exact", "email")
    assert edit.text == "mail me"


def test_samples_of_what_is_kept_are_always_the_same(record: RunRecord, workspace: Workspace) -> None:
    first = sample_stage(workspace.storage, record, "dedup-exact", count=3)
    assert len(first) == 3
    assert first == sample_stage(workspace.storage, record, "dedup-exact", count=3)
    assert {sample.text for sample in first} <= set(TEXTS) - {"copy of first"}
    everything = sample_stage(workspace.storage, record, "dedup-exact", count=99)
    assert len(everything) == 4


def test_an_unknown_stage_or_reason_names_what_there_is(record: RunRecord, workspace: Workspace) -> None:
    with pytest.raises(ConfigError, match="it has: ingest, dedup-exact"):
        sample_stage(workspace.storage, record, "select")
    with pytest.raises(ConfigError, match=r"same_text \(1\)"):
        sample_stage(workspace.storage, record, "dedup-exact", "other")
