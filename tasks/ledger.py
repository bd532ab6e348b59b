"""Why each document was dropped, edited or could not be read: one row per decision, sorted by doc_id."""

import json
from collections import Counter
from typing import Literal, TypedDict

import pyarrow as pa

LEDGER_SCHEMA = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("action", pa.string(), nullable=False),  # drop | edit | error
        pa.field("reason", pa.string(), nullable=False),  # from the stage's closed list
        pa.field("value", pa.float64()),
        pa.field("threshold", pa.float64()),
        pa.field("matched_id", pa.string()),  # the document kept instead, the evaluation item, ...
        pa.field("detail", pa.string()),  # JSON
    ]
)

Action = Literal["drop", "edit", "error"]


class Facts(TypedDict, total=False):
    """What a ledger row says beside the reason; each may be left out."""

    value: float | None
    threshold: float | None
    matched_id: str | None
    detail: dict[str, object] | None


class Ledger:
    """Collects the rows of one part; `reasons` restricts the names that may be used."""

    def __init__(self, reasons: frozenset[str] | None = None) -> None:
        self._reasons = reasons
        self._rows: list[tuple[str, str, str, str, float | None, float | None, str | None, str | None]] = []
        self.actions: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()

    def drop(self, doc_id: str, source: str, reason: str, **facts: object) -> None:
        """The document does not reach the output."""
        self._add("drop", doc_id, source, reason, facts)

    def edit(self, doc_id: str, source: str, reason: str, **facts: object) -> None:
        """The document reaches the output with another text."""
        self._add("edit", doc_id, source, reason, facts)

    def error(self, doc_id: str, source: str, reason: str, **facts: object) -> None:
        """The record could not be read; it counts as errored, never as dropped."""
        self._add("error", doc_id, source, reason, facts)

    def _add(self, action: Action, doc_id: str, source: str, reason: str, facts: dict[str, object]) -> None:
        if self._reasons is not None and reason not in self._reasons:
            raise ValueError(f"reason {reason!r} is not one of {sorted(self._reasons)}")
        unknown = facts.keys() - Facts.__annotations__.keys()
        if unknown:
            raise TypeError(f"a ledger row has no field {sorted(unknown)}")
        value, threshold, matched, detail = (facts.get(k) for k in ("value", "threshold", "matched_id", "detail"))
        self._rows.append(
            (
                doc_id,
                source,
                action,
                reason,
                None if value is None else float(value),  # type: ignore[arg-type]
                None if threshold is None else float(threshold),  # type: ignore[arg-type]
                None if matched is None else str(matched),
                None if detail is None else json.dumps(detail, ensure_ascii=False, sort_keys=True, default=str),
            )
        )
        self.actions[action] += 1
        self.reasons[reason] += 1

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def num_edited(self) -> int:
        """Documents with another text; one that was edited for two reasons has two rows."""
        return len({row[0] for row in self._rows if row[2] == "edit"})

    def table(self) -> pa.Table:
        """All rows in the ledger's schema, sorted by doc_id and then by the whole row."""
        rows = sorted(self._rows, key=lambda row: tuple("" if cell is None else str(cell) for cell in row))
        columns = list(zip(*rows, strict=True)) if rows else [() for _ in LEDGER_SCHEMA]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, LEDGER_SCHEMA, strict=True)]
        return pa.Table.from_arrays(arrays, schema=LEDGER_SCHEMA)
