"""Hostile and broken input through every stage: each fault is counted and named, nothing else is lost.

One run of the module over tests/flows/hostile_corpus.py, a document of 50 MB and a small gzip file of 20 MB of zeros.
"""

import json
import re
import resource
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from tasks.manifest import Manifest, load_manifest
from tasks.parts import read_ledger, read_part
from tasks.storage import Storage
from tests.flows import hostile_corpus as corpus
from tests.flows.conftest import run_recipe

LARGE_BYTES, BOMB_BYTES = 50 * corpus.MB, 20 * corpus.MB
MAX_MEMORY_BYTES = 2 << 30  # on top of what the tests before needed in this process
SELECT = {"language": None, "gopher_repetition": None, "c4": None, "fineweb": None}  # what remains: length and shape


class Curated:
    """A finished run over the files, and how to read its datasets."""

    def __init__(self, root: str, record: Any, files: list[corpus.Hostile], memory_before: int) -> None:
        self.storage, self.record, self.files, self.memory_before = Storage(root), record, files, memory_before

    def dataset(self, label: str) -> Manifest:
        [line] = [line for line in self.record.datasets if line.label == label]
        return load_manifest(self.storage, line.reference)

    def documents(self, label: str) -> list[dict[str, Any]]:
        tables = [table for part in self.dataset(label).parts for table in read_part(self.storage, part)]
        rows: list[dict[str, Any]] = pa.concat_tables(tables).to_pylist()
        return rows

    def ledger(self, label: str) -> list[dict[str, Any]]:
        return [row for part in self.dataset(label).parts for row in read_ledger(self.storage, part).to_pylist()]


@pytest.fixture(scope="module")
def curated(server_url: str, tmp_path_factory: pytest.TempPathFactory) -> Curated:
    folder = tmp_path_factory.mktemp("hostile")
    files = [*corpus.small_corpus(), corpus.large(LARGE_BYTES), corpus.bomb(BOMB_BYTES)]
    for file in files:
        path = folder / "raw" / file.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.data)
    phase = {
        "name": "main", "tokens": 1024, "weights": {"hostile": 1}, "sequence_length": 64, "batch": 4,
        "schedule": {"lr": 1e-3},
    }  # fmt: skip
    values = {
        "name": "hostile",
        "ingest": {"part_bytes": 200_000, "sources": {"hostile": {"base": str(folder / "raw")}}},
        "select": SELECT,
        "vocabulary": {"size": 300},
        "model": {"size": "tiny"},
        "train": {"precision": "fp32", "phases": [phase]},
    }
    memory_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BASEMILL_WORKERS", "0")
        state, record = run_recipe(server_url, str(folder / "lake"), values, None, until_stage=None)
    assert state.is_completed(), state.message
    return Curated(str(folder / "lake"), record, files, memory_before)


def file_of(raw_ref: str) -> str:
    return raw_ref.rpartition("#")[0]


def test_every_record_of_every_file_is_a_document_or_has_its_reason(curated: Curated) -> None:
    errors: dict[str, Counter[str]] = {file.key: Counter() for file in curated.files}
    edits: dict[str, Counter[str]] = {file.key: Counter() for file in curated.files}
    documents = Counter(file_of(row["raw_ref"]) for row in curated.documents("ingest"))
    refs = {row["doc_id"]: row["raw_ref"] for row in curated.documents("ingest")}
    for row in curated.ledger("ingest"):
        if row["action"] == "error":
            errors[file_of(json.loads(row["detail"])["raw_ref"])][row["reason"]] += 1
        else:
            edits[file_of(refs[row["doc_id"]])][row["reason"]] += int(row["value"])
    assert {key: (documents[key], dict(errors[key]), dict(edits[key])) for key in errors} == {
        file.key: (file.documents, file.errors, file.edits) for file in curated.files
    }
    skipped = sum((Counter(file.skipped) for file in curated.files), Counter[str]())
    assert curated.dataset("ingest").by_source["hostile"]["skipped_by"] == dict(skipped)


def test_documents_have_ids_of_their_own_and_valid_values(curated: Curated) -> None:
    documents = curated.documents("ingest")
    assert len({row["doc_id"] for row in documents}) == len(documents)
    assert all(isinstance(json.loads(row["meta"]), dict) for row in documents)
    by_file = {file_of(row["raw_ref"]): row for row in documents}
    assert by_file["types-1.jsonl"]["text"].startswith("In the file")  # the good record; that of other types before it
    [one, two] = [row for row in documents if row["text"].startswith("types ")]
    assert (one["url"], one["timestamp"], json.loads(one["meta"])["score"]) == ("5", "17", 1)
    assert (two["url"], two["timestamp"], json.loads(two["meta"])["score"]) == (None, None, [1, "b"])
    assert json.loads(two["meta"])["url"] == {"a": 1}


def test_good_records_come_through_and_the_others_are_accounted_for(curated: Curated) -> None:
    out = curated.dataset("ingest").totals["rows_out"]
    for label in ("dedup-exact", "select", "dedup-near", "redact", "decontaminate"):
        totals = curated.dataset(label).totals
        assert totals["rows_in"] == out
        assert totals["rows_in"] == totals["rows_out"] + totals["dropped"] + totals["errors"]
        assert totals["dropped"] == sum(row["action"] == "drop" for row in curated.ledger(label))
        out = totals["rows_out"]
    texts = [row["text"] for row in curated.documents("decontaminate")]
    good = [file for file in curated.files if corpus.good(file.key).encode() in file.data]
    assert len(good) > 15
    for file in good:
        assert corpus.good(file.key) in texts, file.key
    assert sum(text.startswith(corpus.good("spaces")) for text in texts) == 1  # five million blanks within a line


def test_hostile_documents_are_dropped_by_name(curated: Curated) -> None:
    refs = {row["doc_id"]: row["raw_ref"] for row in curated.documents("ingest")}
    reasons = {refs[row["doc_id"]]: row["reason"] for row in curated.ledger("select") if row["action"] == "drop"}
    assert reasons["large.jsonl#0"] == "gopher_quality.max_words"
    assert reasons["script.jsonl#0"] == "gopher_quality.min_words"


def test_memory_is_bounded(curated: Curated) -> None:
    labels = ("ingest", "dedup-exact", "signals", "select", "dedup-near", "redact", "decontaminate")
    keys = [part.receipt_path for label in labels for part in curated.dataset(label).parts]
    peaks = [curated.storage.read_json(key)["peak_memory_bytes"] for key in keys]
    assert max(peaks) - curated.memory_before < MAX_MEMORY_BYTES


def test_the_report_shows_markup_of_documents_as_text(curated: Curated) -> None:
    page = curated.storage.read_bytes(f"runs/{curated.record.run_id}/report.html").decode()
    assert "&lt;script&gt;alert(" in page
    assert not re.search(r"<script>alert|<img src=x", page)
