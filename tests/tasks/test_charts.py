"""Charts: well-formed SVG, round ticks, spikes kept, hostile labels escaped."""

import base64
import math
import xml.etree.ElementTree as ET

import pytest

from tasks.charts import MAX_POINTS, Mark, Series, data_url, line_chart, short_number, thin, ticks

HOSTILE = "<script>alert(1)</script>"


def elements(svg: str, name: str) -> list[ET.Element]:
    return ET.fromstring(svg).findall(f".//{{http://www.w3.org/2000/svg}}{name}")


def test_a_line_chart_has_a_line_per_series_and_escapes_names() -> None:
    svg = line_chart(HOSTILE, [Series("a", [0, 1, 2], [3, 2, 1]), Series(HOSTILE, [0, 2], [1, 5])], "tokens", "nats")
    assert len(elements(svg, "polyline")) == 2
    assert not elements(svg, "script")
    assert HOSTILE in {element.text for element in elements(svg, "text")}


def test_what_happened_is_marked() -> None:
    marks = [Mark(1, HOSTILE, "#d55e00"), Mark(2, "step 9: roll back", "#d55e00")]
    svg = line_chart("loss", [Series("a", [0, 4], [3, 2])], "tokens", "nats", marks)
    dashed = [line for line in elements(svg, "line") if line.get("stroke-dasharray")]
    assert [line.get("x1") == line.get("x2") for line in dashed] == [True, True]
    assert [float(line.get("x1") or 0) for line in dashed] == sorted(float(line.get("x1") or 0) for line in dashed)
    assert [title.text for title in elements(svg, "title")] == [HOSTILE, "step 9: roll back"]


def test_points_that_are_not_finite_are_left_out() -> None:
    svg = line_chart("loss", [Series("a", [0, 1, 2], [1.0, math.nan, 2.0])], "x", "y")
    assert len((elements(svg, "polyline")[0].get("points") or "").split()) == 2
    assert "nothing to draw" in line_chart("loss", [Series("a", [0], [math.inf])], "x", "y")


def test_one_point_and_equal_points_can_be_drawn() -> None:
    assert elements(line_chart("t", [Series("a", [5], [5])], "x", "y"), "polyline")
    assert elements(line_chart("t", [Series("a", [0, 0], [0, 0])], "x", "y"), "polyline")


@pytest.mark.parametrize(
    ("low", "high"), [(0, 10), (2.31, 8.38), (0, 2_100_000), (-1, 1), (5, 5), (0, 0), (1e-9, 2e-9)]
)
def test_ticks_are_round_and_cover_the_range(low: float, high: float) -> None:
    found = ticks(low, high)
    assert found[0] <= low
    assert found[-1] >= high
    assert 2 <= len(found) <= 8
    assert found == sorted(set(found))


def test_thinning_keeps_spikes() -> None:
    points = [(float(x), 1.0) for x in range(100_000)]
    points[77_777] = (77_777.0, 99.0)
    kept = thin(points)
    assert len(kept) <= 2 * MAX_POINTS
    assert (77_777.0, 99.0) in kept
    assert kept == sorted(kept)
    assert thin(points[:10]) == points[:10]


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (12.3456, "12.3"), (1234, "1.23k"), (2_100_000, "2.1M"), (3e9, "3B"), (-5e12, "-5T")]
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert short_number(value) == text


def test_a_data_url_holds_the_picture() -> None:
    head, _, data = data_url("<svg/>").partition(",")
    assert head == "data:image/svg+xml;base64"
    assert base64.b64decode(data) == b"<svg/>"
