"""The flow picture: every source to one scale, what leaves it with its number, hostile names escaped."""

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from tasks.funnel import FunnelRow
from tasks.report.flow_picture import FLOW_HEIGHT, HAIRLINE, flow_picture

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '<script>"&'


def row(stage: str, source: str, came: int, left: int = 0, reasons: dict[str, int] | None = None) -> FunnelRow:
    figures: dict[str, Any] = dict.fromkeys(("bytes_in", "bytes_out", "edited", "errors", "skipped"), 0)
    return FunnelRow(
        stage=stage, source=source, rows_in=came, rows_out=came - left, dropped=left, tokens=None,
        reasons=reasons or {}, **figures,
    )  # fmt: skip


ROWS = [
    row("ingest", "web", 900), row("ingest", "code", 100), row("select", "web", 900, 300, {HOSTILE: 299, "short": 1}),
    row("select", "code", 100), row("mix", "web/0", 200), row("mix", "web/1", 400), row("mix", "code", 100),
    row("pack", "code", 55),
]  # fmt: skip


def nodes(svg: str) -> dict[str, float]:
    """Tooltip -> height of each node."""
    found = ET.fromstring(svg).findall(f"{SVG}rect")
    return {rect.findtext(f"{SVG}title", ""): float(rect.get("height") or 0) for rect in found if len(rect)}


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter(f"{SVG}text")]


def test_heights_are_documents_to_one_scale() -> None:
    found = nodes(flow_picture(ROWS))
    assert found["web, ingest: 900 in, 900 out"] == pytest.approx(0.9 * FLOW_HEIGHT, abs=0.1)
    assert found["code, ingest: 100 in, 100 out"] == pytest.approx(0.1 * FLOW_HEIGHT, abs=0.1)
    assert found["web/0, mix: 200 in, 200 out; web/1, mix: 400 in, 400 out"] == pytest.approx(
        0.6 * FLOW_HEIGHT, abs=0.1
    )


def test_what_leaves_has_its_number_and_reasons_and_nothing_is_markup() -> None:
    svg = flow_picture(ROWS)
    assert [text for text in texts(svg) if text.startswith("-")] == ["-300"]
    tails = [group.findtext(f"{SVG}title") for group in ET.fromstring(svg).iter(f"{SVG}g")]
    assert tails == [f"{HOSTILE} 299; short 1"]
    assert "<script" not in svg


def test_buckets_part_at_mix_and_packs_are_no_documents() -> None:
    shown = texts(flow_picture(ROWS))
    assert {"web/0: 200 (22%)", "web/1: 400 (44%)", "code: 100 (100%)"} <= set(shown)
    assert "pack" not in shown


def test_small_and_empty_sources_can_be_seen() -> None:
    found = nodes(flow_picture([row("ingest", "big", 10**9), row("ingest", "tiny", 1), row("ingest", "none", 0)]))
    assert min(found.values()) >= HAIRLINE
    assert len(found) == 3


def test_a_run_without_stages_is_a_picture_too() -> None:
    assert ET.fromstring(flow_picture([])).tag == f"{SVG}svg"
