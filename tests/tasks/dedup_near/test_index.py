"""Documents of earlier runs as an index: what is like them goes, they stay where they are, and cost little."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tasks.dataset import Workspace
from tasks.dedup_near import NearDedupConfig, drop_near_duplicates, index, signatures, verify
from tasks.dedup_near.index import index_parts
from tasks.errors import DataError
from tasks.manifest import Manifest
from tasks.parts import PartWriter, Unit, read_ledger, read_part
from tasks.storage import Storage

MakeDocuments = Callable[..., Manifest]
PLAIN = NearDedupConfig()
RNG = random.Random(1)
WORDS = ["".join(RNG.choices("abcdefghij", k=6)) for _ in range(2_000)]
OLD = [" ".join(RNG.choices(WORDS, k=120)) for _ in range(30)]
FRESH = [" ".join(RNG.choices(WORDS, k=120)) for _ in range(12)]


def near(text: str) -> str:
    return f"{text} with a few words more"


def ids_of(into: Workspace, manifest: Manifest) -> list[str]:
    tables = [table for part in manifest.parts for table in read_part(into.storage, part, ["doc_id"])]
    return [name for table in tables for name in table["doc_id"].to_pylist()]


def ledger_of(into: Workspace, manifest: Manifest) -> list[dict[str, object]]:
    return [row for part in manifest.parts for row in read_ledger(into.storage, part).to_pylist()]


def first_day(into: Workspace, make_documents: MakeDocuments) -> Manifest:
    return drop_near_duplicates(make_documents({"old": [*OLD, near(OLD[0])]}, into=into), into=into, config=PLAIN)


def second_day(into: Workspace, make_documents: MakeDocuments) -> Manifest:
    texts = {"new": [near(OLD[0]), *FRESH, near(OLD[20]), near(FRESH[1])]}
    return make_documents(texts, parts=4, into=into)


def test_what_is_like_a_document_of_the_index_goes_and_names_it(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    """datatrove#249: a match with the index alone wrote a sentinel as the id to remove."""
    old, new = first_day(workspace, make_documents), second_day(workspace, make_documents)
    kept = drop_near_duplicates(new, old, into=workspace, config=PLAIN)
    ids, known = ids_of(workspace, new), set(ids_of(workspace, old))
    gone = {str(row["doc_id"]): str(row["matched_id"]) for row in ledger_of(workspace, kept)}
    assert set(gone) == {ids[0], ids[13], ids[2]}
    assert gone[ids[0]] in known
    assert gone[ids[13]] in known
    assert gone[ids[2]] == ids[14]  # of the new ones themselves, the longer
    assert set(ids_of(workspace, kept)) == set(ids) - set(gone)  # and none of the index
    assert (kept.extra["matched_index"], old.extra["matched_index"]) == (2, 0)
    assert [entry["role"] for entry in kept.inputs] == ["documents", "index"]


def test_an_index_of_two_days_and_more_partitions_and_workers_give_the_same(
    make_documents: MakeDocuments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray_cluster: None
) -> None:
    results = []
    for number, (workers, partition_bytes) in enumerate(((0, 1 << 28), (0, 4_000), (2, 4_000))):
        monkeypatch.setattr("tasks.exchange.PARTITION_BYTES", partition_bytes)
        serial = Workspace(Storage(str(tmp_path / str(number))))
        old, new = first_day(serial, make_documents), second_day(serial, make_documents)
        second = drop_near_duplicates(new, old, into=replace(serial, workers=workers), config=PLAIN)
        third = make_documents({"third": [near(FRESH[3]), near(OLD[5]), FRESH[0][::-1]]}, into=serial)
        last = drop_near_duplicates(third, old, second, into=replace(serial, workers=workers), config=PLAIN)
        assert last.totals["rows_out"] == 1
        results.append([part.sha256 for part in (*second.parts, *last.parts)])
    assert results[0] == results[1] == results[2]


def test_nothing_of_the_index_is_signed_again_and_only_row_groups_with_candidates_are_read(
    workspace: Workspace, make_documents: MakeDocuments, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = first_day(workspace, make_documents), second_day(workspace, make_documents)
    signed: list[str | None] = []
    sign = signatures.sign_part

    def noting(unit: Unit, writer: PartWriter) -> None:
        signed.append(unit.source)
        sign(unit, writer)

    sent: list[int] = []
    send = verify.send_members

    def counting(unit: Unit, writer: PartWriter) -> None:
        send(unit, writer)
        sent.append(writer.extra.get("exchanged_rows", 0) if unit.source == "old" else 0)

    monkeypatch.setattr(signatures, "sign_part", noting)
    monkeypatch.setattr(verify, "send_members", counting)
    drop_near_duplicates(new, old, into=workspace, config=PLAIN)
    assert signed == ["new"] * 4
    assert sum(sent) == 2  # of thirty documents of the index, those two


def test_another_index_is_another_dataset(workspace: Workspace, make_documents: MakeDocuments) -> None:
    old, new = first_day(workspace, make_documents), second_day(workspace, make_documents)
    alone = drop_near_duplicates(new, into=workspace, config=PLAIN)
    beside = drop_near_duplicates(new, old, into=workspace, config=NearDedupConfig(index=("some-run",)))
    again = drop_near_duplicates(new, old, into=workspace, config=NearDedupConfig(index=(old.fingerprint,)))
    assert alone.fingerprint != beside.fingerprint == again.fingerprint


def test_an_index_that_is_unfit_changed_or_gone_is_an_error(
    workspace: Workspace, make_documents: MakeDocuments, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = first_day(workspace, make_documents), second_day(workspace, make_documents)
    with pytest.raises(DataError, match="no signatures"):
        drop_near_duplicates(new, new, into=workspace, config=PLAIN)
    with pytest.raises(DataError, match="its digest"):
        index_parts(workspace.storage, [replace(old, digest="0" * 64)])
    with monkeypatch.context() as patch:
        patch.setattr(index, "SCHEME", {"scheme": "another"})
        with pytest.raises(DataError, match="run its recipe again"):
            index_parts(workspace.storage, [old])
    workspace.storage.write_bytes(old.parts[1].path, b"cut")
    with pytest.raises(DataError, match="missing or not the file"):
        drop_near_duplicates(new, old, into=workspace, config=PLAIN)


def test_documents_of_one_id_are_told_apart(workspace: Workspace, make_documents: MakeDocuments) -> None:
    """The same file read again on the second day: its documents have the ids that the index has."""
    old = first_day(workspace, make_documents)
    again = make_documents({"old": [*OLD[:4], FRESH[0]]}, parts=2)
    kept = drop_near_duplicates(again, old, into=workspace, config=NearDedupConfig(max_dropped_ratio=1))
    assert kept.totals["rows_out"] == 1
    rows = pa.Table.from_pylist(ledger_of(workspace, kept)).to_pydict()
    assert set(rows["value"]) <= {1.0, rows["value"][0]}
    assert rows["doc_id"][-1] == rows["matched_id"][-1]
