"""The guard rail: a stage that would drop nearly all of a source stops, unless the recipe allows it."""

from collections.abc import Sequence

from tasks.errors import DataError
from tasks.parts import Receipt

GUARDED_DOCUMENTS = 1_000  # smaller sources may lose any share: a folder of licences holds little else than duplicates


def check_dropped_share(stage: str, receipts: Sequence[Receipt], limits: dict[str, float]) -> None:
    """The guard rail: a source of GUARDED_DOCUMENTS or more may lose at most its limit. Raises DataError."""
    totals: dict[str, list[int]] = {}
    for receipt in receipts:
        total = totals.setdefault(str(receipt.part.source), [0, 0])
        total[0] += receipt.counts["rows_in"]
        total[1] += receipt.counts["dropped"]
    over = [
        f"{source}: {dropped} of {rows} documents ({dropped / rows:.1%}, allowed {limits[source]:.0%})"
        for source, (rows, dropped) in sorted(totals.items())
        if rows >= GUARDED_DOCUMENTS and dropped > limits[source] * rows
    ]
    if over:
        raise DataError(
            f"{stage} would drop nearly all of a source: {'; '.join(over)}. If that is wanted, raise "
            f"{stage.replace('-', '_')}.by_source.<source>.max_dropped_ratio"
        )
