"""Keeper order, and decisions sliced by part."""

from collections.abc import Callable

import pyarrow as pa
import pytest

from tasks.dataset import Workspace
from tasks.documents import DOCUMENT_SCHEMA
from tasks.errors import DataError
from tasks.keepers import (
    UNDATED,
    VERDICT_SCHEMA,
    apply_by_part,
    dates_of,
    decide_by_part,
    lengths_of,
    write_verdicts,
)
from tasks.manifest import Manifest
from tasks.parts import PartWriter, Receipt, Unit, read_ledger, read_part

MakeDocuments = Callable[..., Manifest]
DAY = 86_400_000_000


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        ("1970-01-02", DAY),
        ("1970-01-02T00:00:00Z", DAY),
        ("1970-01-02T01:00:00+01:00", DAY),
        (" 1970-01-02 00:00:00.000005 ", DAY + 5),
        ("1969-12-31T23:59:59.5Z", -500_000),
        ("0001-01-01", -719162 * DAY),
        (None, UNDATED),
        ("", UNDATED),
        ("yesterday", UNDATED),
    ],
)
def test_dates_are_read_or_come_last(timestamp: str | None, expected: int) -> None:
    assert dates_of(pa.chunked_array([[timestamp]], pa.string())).tolist() == [expected]


def test_lengths_are_bytes() -> None:
    assert lengths_of(pa.chunked_array([["", "é", "abc"]], pa.large_string())).to_pylist() == [0, 2, 3]


def judge(unit: Unit, writer: PartWriter) -> None:
    """Part function: the verdicts stand in the arguments."""
    rows = [dict(zip(VERDICT_SCHEMA.names, row, strict=True)) for row in unit.arguments["verdicts"]]
    write_verdicts(writer, pa.Table.from_pylist(rows, schema=VERDICT_SCHEMA))


def decided(workspace: Workspace, documents: Manifest, *verdicts: list[list[object]]) -> tuple[Manifest, list[Receipt]]:
    dataset = workspace.dataset(
        "drop", None, inputs={"documents": documents}, module="tasks.keepers", schema=DOCUMENT_SCHEMA
    )
    step = dataset.step("verdicts", VERDICT_SCHEMA, inputs={}, external={"verdicts": repr(verdicts)})
    judged = step.publish(step.compute([step.unit(arguments={"verdicts": rows}) for rows in verdicts], judge))
    decisions = decide_by_part(dataset, "decisions", documents, {"verdicts": judged})
    return decisions, apply_by_part(dataset, documents, decisions, threshold=0.7)


def ids_of(workspace: Workspace, manifest: Manifest) -> list[list[str]]:
    parts = [pa.concat_tables(read_part(workspace.storage, part, ["doc_id"])) for part in manifest.parts]
    return [table["doc_id"].to_pylist() for table in parts]


def test_each_part_gets_its_slice_and_the_ledger_names_the_kept_document(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    documents = make_documents([f"text {n}" for n in range(6)], parts=3)
    ids = ids_of(workspace, documents)
    one = [[2, ids[2][0], "near_duplicate", ids[0][0], 0.8], [0, ids[0][1], "near_duplicate", ids[0][0], 1.0]]
    other = [[2, ids[2][1], "same_text", ids[0][0], None], [0, ids[0][0], "kept", ids[0][0], 4.0]]  # this one stays
    decisions, receipts = decided(workspace, documents, one, other)
    assert [part.rows for part in decisions.parts] == [1, 0, 2]
    assert [receipt.counts["dropped"] for receipt in receipts] == [1, 0, 2]
    rows = read_ledger(workspace.storage, receipts[2].part).to_pylist()
    assert {(r["doc_id"], r["reason"], r["value"], r["threshold"]) for r in rows} == {
        (ids[2][0], "near_duplicate", 0.8, 0.7),
        (ids[2][1], "same_text", None, None),
    }


def test_only_parts_whose_slice_changed_are_computed_again(workspace: Workspace, make_documents: MakeDocuments) -> None:
    documents = make_documents([f"text {n}" for n in range(6)], parts=3)
    ids = ids_of(workspace, documents)
    verdict = [0, ids[0][1], "near_duplicate", ids[0][0], 1.0]
    _, first = decided(workspace, documents, [verdict])
    _, second = decided(workspace, documents, [verdict, [1, ids[1][0], "near_duplicate", ids[0][0], 0.9]])
    assert [old.part.key == new.part.key for old, new in zip(first, second, strict=True)] == [True, False, True]


def test_a_decision_on_a_document_that_is_not_there_is_an_error(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    documents = make_documents(["a", "b"], parts=2)
    with pytest.raises(DataError, match=r"lacks documents .*web:unknown"):
        decided(workspace, documents, [[1, "web:unknown", "same_text", "web:x", None]])
