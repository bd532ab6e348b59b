"""Limits of pages are read from bytes, exactly and in linear time."""

import pytest

from tasks.config import resolved
from tasks.ingest.page_limits import PageLimits, Refused, check_limits, count_attributes
from tasks.kernels.page_tags import measure_tags


@pytest.mark.parametrize(
    ("page", "attributes"),
    [
        (b"", 0),
        (b"<p>" + b"a word " * 2_000 + b"</p>", 0),  # text is no tag
        (b"<p>1 < 2" + b" a" * 2_000, 0),
        (b"<p>" + b"a" * 3_000 + b"<i " + b" b" * 20 + b">" + b" c" * 2_000, 0),  # as many as fit into 40 bytes
        (b"<i " + b" b" * 1_020 + b">" + b" c" * 2_000, 1_020),
        (b"<img src='data:" + b"a" * 5_000 + b'\'  alt = "x > y = z" width=3 hidden/>' + b"t" * 3_000, 4),
        (b"<p title='1 > 2'" + b" data-x = 'a > b'" * 999 + b" b" * 1_000 + b">text", 2_000),
        (b"<p/a/b/c" + b"/d" * 1_000 + b">" + b"t" * 3_000, 1_003),
        (b"<p title='never closed" + b" a" * 1_500 + b">" + b" b" * 1_500 + b"<i>", 1_502),
        (b"<p title=" + b"a" * 5_000 + b"=b>" + b" t" * 2_000, 1),
        (b"<p " + b"a" * 3_000, 1),  # cut off
    ],
)
def test_attributes_are_counted_as_browsers_count_them(page: bytes, attributes: int) -> None:
    assert count_attributes(page, measure_tags(page, 2_000).far, 2_000) == attributes


def test_counting_attributes_is_linear_in_the_page() -> None:
    """Every start tag opens a value that the next one closes: none is read twice."""
    page = (b"<a b='" + b" c" * 3_000) * 1_000
    assert count_attributes(page, measure_tags(page, 4_000).far, 4_000) == 3_001 * 500  # one tag: all of the page


def test_a_page_at_the_limit_passes() -> None:
    limits = PageLimits(max_depth=3, max_nodes=3, max_bytes=21)
    assert check_limits(b"<b><b><b></b></b></b>", limits) is None
    refused = check_limits(b"<b><b><b></b></b></b> ", limits)
    assert refused == Refused("too_large", value=22, threshold=21)


def test_thousands_of_closed_parts_of_drawings_are_not_deep() -> None:
    assert check_limits(b"<svg>" + b"<path d='M0 0'/><G><use href=#a /></G>" * 2_000 + b"</svg>", PageLimits()) is None
    for page in (b"<path>" * 2_000, b"<div/>" * 2_000, b"<svg>" + b"<path><b/>" * 2_000):
        refused = check_limits(page, PageLimits())
        assert refused is not None
        assert refused.reason == "too_deep"


@pytest.mark.parametrize(
    ("page", "is_refused"), [(b"<p a b c>", False), (b"<p a b c d>", True), (b"<p a='>' b c d>", True)]
)
def test_small_limits_of_attributes_hold(page: bytes, is_refused: bool) -> None:
    assert (check_limits(page + b" text" * 9, PageLimits(max_attributes=3)) is not None) == is_refused


@pytest.mark.parametrize(
    ("tag", "reason"),
    [(b"<option>a", "too_many_options"), (b"<rt>a", "too_deep"), (b"<body a>", "too_many_attributes")],
)
def test_tags_that_only_repeat_are_refused_where_an_extractor_would_need_minutes(tag: bytes, reason: str) -> None:
    """resiliparse takes minutes for 90,000 options of one list; many lists as people make them pass."""
    refused = check_limits(b"<select>" + tag * 90_000 + b"</select>", PageLimits())
    assert refused is not None
    assert refused.reason == reason
    assert check_limits(b"<select>" + (b"<option>a" * 4_000 + b"</select><select>") * 20, PageLimits()) is None


def test_new_limits_at_rest_leave_keys_as_they_were() -> None:
    assert "max_options" not in resolved(PageLimits())
    assert resolved(PageLimits(max_options=9))["max_options"] == 9
