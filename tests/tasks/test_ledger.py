"""The ledger: declared columns, sorted rows, closed lists of reasons."""

import json

import pytest

from tasks.ledger import LEDGER_SCHEMA, Ledger


def test_rows_are_sorted_by_document_and_typed() -> None:
    ledger = Ledger()
    ledger.drop("web:b", "web", "short", value=3, threshold=50)
    ledger.error("web:a", "web", "truncated", detail={"offset": 7, "é": [1]})
    ledger.edit("web:c", "web", "email", matched_id="web:z")
    table = ledger.table()
    assert table.schema == LEDGER_SCHEMA
    assert table["doc_id"].to_pylist() == ["web:a", "web:b", "web:c"]
    assert table["action"].to_pylist() == ["error", "drop", "edit"]
    assert table["value"].to_pylist() == [None, 3.0, None]
    assert json.loads(table["detail"][0].as_py()) == {"offset": 7, "é": [1]}
    assert table["matched_id"].to_pylist() == [None, None, "web:z"]


def test_the_order_of_calls_does_not_matter() -> None:
    first, second = Ledger(), Ledger()
    for ledger, order in ((first, (1, 2, 3)), (second, (3, 1, 2))):
        for number in order:
            ledger.edit("web:a", "web", "email", value=number)
    assert first.table().equals(second.table())


def test_a_document_edited_for_two_reasons_is_one_edited_document() -> None:
    ledger = Ledger()
    for reason in ("email", "phone"):
        ledger.edit("web:a", "web", reason)
    ledger.edit("web:b", "web", "email")
    ledger.drop("web:c", "web", "short")
    assert ledger.num_edited == 2
    assert ledger.reasons == {"email": 2, "phone": 1, "short": 1}


def test_counts_by_action_and_reason() -> None:
    ledger = Ledger(frozenset({"short", "long"}))
    ledger.drop("web:a", "web", "short")
    ledger.drop("web:b", "web", "short")
    assert len(ledger) == 2
    assert ledger.actions == {"drop": 2}
    assert ledger.reasons == {"short": 2}


def test_an_unknown_reason_or_field_is_refused() -> None:
    ledger = Ledger(frozenset({"short"}))
    with pytest.raises(ValueError, match="'other' is not one of"):
        ledger.drop("web:a", "web", "other")
    with pytest.raises(TypeError, match="valeu"):
        ledger.drop("web:a", "web", "short", valeu=1)


def test_an_empty_ledger_has_the_schema() -> None:
    assert Ledger().table().schema == LEDGER_SCHEMA
    assert Ledger().table().num_rows == 0
