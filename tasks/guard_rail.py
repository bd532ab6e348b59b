"""The guard rail: a stage that would drop nearly all of a source stops, unless the recipe allows it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tasks.errors import DataError
from tasks.parts import Receipt

GUARDED_DOCUMENTS = 1_000  # smaller sources may lose any share: a folder of licences holds little else than duplicates


WARNED_DOCUMENTS = 20  # of a source that loses so many in an odd way a warning says so; fewer may be an accident


@dataclass
class Losses:
    """What a stage took in and dropped of one source; `reasons` count edits too."""

    documents: int = 0
    dropped: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


def losses_by_source(receipts: Sequence[Receipt]) -> dict[str, Losses]:
    """The losses of every source, in the order of its parts."""
    found: dict[str, Losses] = {}
    for receipt in receipts:
        own = found.setdefault(receipt.part.source or "", Losses())
        own.documents += receipt.counts["rows_in"]
        own.dropped += receipt.counts["dropped"]
        own.reasons.update(receipt.reasons)
    return found


def check_dropped_share(stage: str, receipts: Sequence[Receipt], limits: dict[str, float]) -> None:
    """The guard rail: a source of GUARDED_DOCUMENTS or more may lose at most its limit. Raises DataError."""
    over = [
        f"{source}: {own.dropped} of {own.documents} documents ({own.dropped / own.documents:.1%}, allowed "
        f"{limits[source]:.0%})"
        for source, own in sorted(losses_by_source(receipts).items())
        if own.documents >= GUARDED_DOCUMENTS and own.dropped > limits[source] * own.documents
    ]
    if over:
        raise DataError(
            f"{stage} would drop nearly all of a source: {'; '.join(over)}. If that is wanted, raise "
            f"{stage.replace('-', '_')}.by_source.<source>.max_dropped_ratio"
        )
