"""The guard rail: large sources keep a share, small ones may lose all, and the limit is per source."""

import pytest

from tasks.errors import DataError
from tasks.guard_rail import check_dropped_share
from tasks.parts import Part, Receipt

LIMITS = {"web": 0.9, "code": 1.0}


def lost(source: str, rows: int, dropped: int) -> Receipt:
    part = Part("drop", "key", rows - dropped, 0, "", "", source)
    counts = {"rows_in": rows, "rows_out": rows - dropped, "dropped": dropped}
    return Receipt(part, counts, {}, {}, "", [], 0.0, 0.0, 0)


def test_small_sources_and_allowed_losses_pass() -> None:
    check_dropped_share("drop", [], LIMITS)
    check_dropped_share("drop", [lost("web", 999, 999), lost("code", 5000, 5000)], LIMITS)
    check_dropped_share("drop", [lost("web", 600, 600), lost("web", 400, 300)], LIMITS)


def test_a_source_that_loses_more_stops_the_stage_and_is_named() -> None:
    receipts = [lost("web", 600, 600), lost("code", 5000, 5000), lost("web", 400, 301)]
    with pytest.raises(
        DataError, match=r"dedup-x would .*: web: 901 of 1000 documents \(90\.1%, allowed 90%\)"
    ) as caught:
        check_dropped_share("dedup-x", receipts, LIMITS)
    assert "dedup_x.by_source.<source>.max_dropped_ratio" in str(caught.value)
    assert "code" not in str(caught.value)
