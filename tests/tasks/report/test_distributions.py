"""Distributions: what select does with a source, thresholds where they belong, samples of large sources."""

import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest

from tasks.report.distributions import (
    HEIGHT,
    LEFT,
    MAX_DOCUMENTS,
    WIDTH,
    distribution,
    select_pictures,
    signal_of,
    source_rules,
)
from tasks.select.rules import SelectConfig
from tests.tasks.select.test_verdicts import OFF, table_of
from tests.tasks.test_whatif import TEXTS, Measured, measured

__all__ = ["measured"]  # a fixture
SVG = "{http://www.w3.org/2000/svg}"


def bars(svg: str, colour: str) -> list[ET.Element]:
    return [rect for rect in ET.fromstring(svg).findall(f"{SVG}rect") if rect.get("fill") == colour]


def limits_of(svg: str) -> list[float]:
    lines = ET.fromstring(svg).findall(f"{SVG}line")
    return [float(line.get("x1") or 0) for line in lines if line.get("stroke-dasharray")]


def test_before_and_after_and_the_threshold_between_them() -> None:
    values = np.linspace(0, 1, 1001)
    svg = distribution("web: hash_ratio", values, values <= 0.25, [("gopher_quality.max_hash_ratio", 0.25)])
    [limit] = limits_of(svg)
    assert limit == pytest.approx(LEFT + (WIDTH - 2 * LEFT) * 0.25 / 0.99, abs=2)
    assert len(bars(svg, "#c9ced6")) == 40
    after = [float(bar.get("x") or 0) for bar in bars(svg, "#0072b2")]
    assert after
    assert max(after) <= limit
    assert max(float(bar.get("height") or 0) for bar in bars(svg, "#c9ced6")) <= HEIGHT


def test_wide_counts_have_a_logarithmic_axis_and_odd_values_are_drawn() -> None:
    wide = distribution("num_words", np.array([1.0, 5, 10, 20, 9_000, 10_000]), np.ones(6, bool), [("a", 50.0)])
    shown = [element.text for element in ET.fromstring(wide).iter(f"{SVG}text")]
    assert {"10", "100", "1k"} <= set(shown)
    for values in ([3.0], [3.0, 3.0], [np.nan], [], [0.0], [-1.0, 2.0]):
        column = np.array(values)
        svg = distribution("<b>", column, np.ones(len(column), bool), [("<i>", 2.0)])
        assert "<b>" not in svg
        assert ET.fromstring(svg).tag == f"{SVG}svg"


def test_rules_are_counted_as_whatif_counts_them(measured: Any) -> None:
    run: Measured = measured()
    answer = run.what_if()
    drawn = {own.source: own for own in select_pictures(run.into.storage, run.record)}
    assert set(drawn) == set(TEXTS)
    for source, own in drawn.items():
        told = {(r.reason, r.drops, r.fails, r.alone) for r in answer.rules if r.source == source and r.fails}
        assert set(own.rules) == told
        assert own.never == next(row.never for row in answer.sources if row.source == source)
        assert not own.is_sample
        assert 1 <= len(own.pictures) <= 6


def test_a_source_that_select_leaves_alone_has_no_rules(measured: Any) -> None:
    run: Measured = measured(by_source={"news": {"enabled": False}})
    assert [own.source for own in select_pictures(run.into.storage, run.record)] == ["web"]


def test_expressions_are_drawn_where_they_are_simple() -> None:
    rules = {"a": "num_words < 5", "b": "num_words < num_chars", "c": None}
    config = SelectConfig.model_validate(
        OFF | {"rules": rules, "by_language": {"de": {"rules": {"a": "num_words < 9"}}}}
    )
    assert [signal_of(f"rules.{name}", config) for name in "abc"] == ["num_words", None, None]
    assert signal_of("empty", config) is None
    table = table_of(*({"num_words": n, "num_chars": 0, "language": code} for n in (3, 7) for code in ("de", "en")))
    own = source_rules("web", table, documents=MAX_DOCUMENTS * 2, config=config)
    assert own.is_sample
    assert own.rules == [("rules.a", 3, 3, 3)]
    [svg] = own.pictures
    assert len(limits_of(svg)) == 2  # one for German, one for the rest
