"""Limits of pages are read from bytes, exactly and in linear time."""

import random
import re

import pytest

from tasks.page_limits import FLAT, PageLimits, Refused, check_limits, count_attributes, measure_tags, tag_starts


@pytest.mark.parametrize(
    ("page", "nodes", "depth"),
    [
        (b"", 0, 0),
        (b"no tags, 1 < 2, <3 and a<", 0, 0),
        (b"<div><b>x</b></div>", 2, 2),
        (b"<DIV><DIV>", 2, 2),
        (b"<p>a<p>b<li>c<li>d<br><img src=x><hr/>", 7, 0),  # flat: no end tag needed
        (b"</b></b></b><i><i>", 2, 2),  # end tags without a start close nothing
        (b"<pre><param><sections>", 3, 2),  # names that begin like flat ones
        (b"<h1>a</h1><h2>b</h2>", 2, 1),
        (b"<blockquotes><blockquotex>", 2, 2),  # longer than the bytes compared
        (b"<!-- x --><!DOCTYPE html><?xml?><b", 1, 1),
    ],
)
def test_tags_are_measured_from_bytes(page: bytes, nodes: int, depth: int) -> None:
    assert measure_tags(page, tag_starts(page)) == (nodes, depth)


@pytest.mark.parametrize(
    ("page", "attributes"),
    [
        (b"", 0),
        (b"<p>" + b"a word " * 2_000 + b"</p>", 0),  # text is no tag
        (b"<p>1 < 2" + b" a" * 2_000, 0),
        (b"<p>" + b"a" * 3_000 + b"<i " + b" b" * 20 + b">" + b" c" * 2_000, 20),
        (b"<img src='data:" + b"a" * 5_000 + b'\'  alt = "x > y = z" width=3 hidden/>' + b"t" * 3_000, 4),
        (b"<p title='1 > 2'" + b" data-x = 'a > b'" * 999 + b" b" * 1_000 + b">text", 2_000),
        (b"<p/a/b/c" + b"/d" * 1_000 + b">" + b"t" * 3_000, 1_003),
        (b"<p title='never closed" + b" a" * 1_500 + b">" + b" b" * 1_500 + b"<i>", 1_502),
        (b"<p title=" + b"a" * 5_000 + b"=b>" + b" t" * 2_000, 1),
        (b"<p " + b"a" * 3_000, 1),  # cut off
    ],
)
def test_attributes_are_counted_as_browsers_count_them(page: bytes, attributes: int) -> None:
    assert count_attributes(page, tag_starts(page), 1_000) == attributes


def test_counting_attributes_is_linear_in_the_page() -> None:
    """Every start tag opens a value that the next one closes: none is read twice."""
    page = (b"<a b='" + b" c" * 3_000) * 1_000
    assert count_attributes(page, tag_starts(page), 2_000) == 3_001 * 500  # one tag: all of the page


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


def plain_measure(page: bytes) -> tuple[int, int]:
    """The same by a regular expression and a loop."""
    nodes = level = lowest = depth = 0
    for end, name in re.findall(rb"<(/?)([a-zA-Z][a-zA-Z0-9]*)", page):
        nodes += not end
        if name.lower().decode() in FLAT:
            continue
        level += -1 if end else 1
        lowest = min(lowest, level)
        depth = max(depth, level - lowest)
    return nodes, depth


def test_measures_equal_those_of_a_plain_loop() -> None:
    generator = random.Random(0)
    for _ in range(2_000):
        page = bytes(generator.choices(b"<</>bBrRpPdiv1 :{`@[/\xc3\xa9", k=generator.randrange(60)))
        assert measure_tags(page, tag_starts(page)) == plain_measure(page), page


@pytest.mark.parametrize("page", [b"<" * 9, b"<br", b"</", b"a<p", b"<optgroup><colgroup>", b"<blockquote"])
def test_pages_that_end_inside_a_tag(page: bytes) -> None:
    assert measure_tags(page, tag_starts(page)) == plain_measure(page)
