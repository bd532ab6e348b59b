"""What a report shows of documents: read and redacted once, then a dataset; not when something could not be read."""

import pytest

from tasks.dataset import Workspace
from tasks.errors import DataError
from tasks.manifest import Manifest, list_manifests, load_manifest
from tasks.redact import RedactConfig, redact_personal_data, redact_text
from tasks.report import documents as report_documents
from tasks.report.documents import ReportDocuments, read_documents
from tasks.runs import DatasetLine, RunRecord
from tests.conftest import MakeDocuments


def record_of(*manifests: Manifest, redact: dict[str, object] | None = None) -> RunRecord:
    record = RunRecord(
        run_id="20260101-000000-abcd", created="2026-01-01", recipe={"name": "r", "redact": redact or {}}
    )
    for manifest in manifests:
        line = DatasetLine(
            label=manifest.stage, stage=manifest.stage, reference=manifest.reference, digest=manifest.digest,
            code="", made_by=manifest.run_id, cached=False, attempt=1, seconds=0,
        )  # fmt: skip
        record.set_dataset(line)
    return record


@pytest.fixture
def redacted(workspace: Workspace, make_documents: MakeDocuments) -> Manifest:
    documents = make_documents({"web": ["write to jo@acme.org", "at 93.184.216.34 or so", "max@acme.org", "fine"]})
    return redact_personal_data(documents, into=workspace, config=RedactConfig())


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are redacted from now on."""
    texts: list[str] = []

    def redact(text: str, config: RedactConfig) -> str:
        texts.append(text)
        return redact_text(text, config)

    monkeypatch.setattr(report_documents, "redact_text", redact)
    return texts


def test_samples_are_ranked_by_how_common_their_reason_is(workspace: Workspace, redacted: Manifest) -> None:
    shown = read_documents(workspace.storage, record_of(redacted))
    assert [(one.stage, one.rank, one.sample.reason) for one in shown.samples] == [
        ("redact", 0, "email"), ("redact", 0, "email"), ("redact", 1, "ipv4"),
    ]  # fmt: skip
    assert not any("acme" in one.sample.text or "93.184" in one.sample.text for one in shown.samples)
    assert shown.clusters is None
    assert shown.faults == []


def test_a_second_report_reads_and_redacts_nothing(
    workspace: Workspace, redacted: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = counted(monkeypatch)
    first = read_documents(workspace.storage, record_of(redacted))
    assert len(texts) == 3
    workspace.storage.delete(redacted.parts[0].path)
    again = read_documents(workspace.storage, record_of(redacted).model_copy(update={"run_id": "20260102-000000-abcd"}))
    assert again == first
    assert len(texts) == 3


def test_another_redaction_or_another_dataset_is_another_report(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    """A dropped document's text lies in the input of its stage: the stage's own digest does not tell it."""
    manifests = [
        redact_personal_data(make_documents({"web": [text]}), into=workspace, config=RedactConfig())
        for text in ("from jo@acme.org", "from max@acme.org")
    ]
    shown = [read_documents(workspace.storage, record_of(manifest)) for manifest in manifests]
    plain = read_documents(workspace.storage, record_of(manifests[0], redact={"enabled": False}))
    assert [len(one.samples) for one in (*shown, plain)] == [1, 1, 1]
    assert len(list_manifests(workspace.storage, "report.documents")) == 3


def test_what_could_not_be_read_is_named_and_looked_for_again(workspace: Workspace, redacted: Manifest) -> None:
    path = redacted.parts[0].path
    whole = workspace.storage.read_bytes(path)
    workspace.storage.write_bytes(path, b"PAR1")
    damaged = read_documents(workspace.storage, record_of(redacted))
    [fault] = damaged.faults
    assert redacted.parts[0].key in fault
    assert list_manifests(workspace.storage, "report.documents") == []
    workspace.storage.write_bytes(path, whole)
    assert read_documents(workspace.storage, record_of(redacted)).faults == []


def test_a_run_without_documents_has_nothing_to_show(workspace: Workspace) -> None:
    assert read_documents(workspace.storage, record_of()) == ReportDocuments()


def test_the_dataset_is_one_like_any_other(workspace: Workspace, redacted: Manifest) -> None:
    read_documents(workspace.storage, record_of(redacted))
    [reference] = list_manifests(workspace.storage, "report.documents")
    manifest = load_manifest(workspace.storage, reference)
    assert manifest.run_id == "20260101-000000-abcd"
    assert "tasks.redact" in manifest.code["modules"]
    with pytest.raises(DataError):
        load_manifest(workspace.storage, "report.documents/other")
