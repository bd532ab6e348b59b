"""Tags are measured from bytes as a plain loop would, wherever they stand in the eight bytes read at once."""

import random
import re

import pytest

from tasks.kernels.page_tags import FLAT, measure_tags


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
    assert measure_tags(page, 100)[:2] == (nodes, depth)


def plain_far(page: bytes, gap_bytes: int) -> list[int]:
    starts = [place for place, byte in enumerate(page) if byte == ord("<")]
    return [one for one, next_one in zip(starts, [*starts[1:], len(page)], strict=False) if next_one - one > gap_bytes]


@pytest.mark.parametrize(
    ("page", "far"),
    [
        (b"", []),
        (b"no tag at all, and longer than the gap", []),
        (b"<p>" + b"x" * 20 + b"</p>" + b"y" * 20, [0, 23]),
        (b"=====<=====", []),  # a byte one above "<"
        (b"x" * 40 + b"<" + b"=" * 10, [40]),
    ],
)
def test_places_after_which_no_tag_follows_for_long(page: bytes, far: list[int]) -> None:
    assert measure_tags(page, 10).far == plain_far(page, 10) == far


def test_tags_can_be_left_out() -> None:
    page = b"<svg><g/><g/><b></b><g/></svg>"
    assert measure_tags(page, 100)[:2] == (5, 4)
    assert measure_tags(page, 100, [5, 9, 20])[:2] == (2, 2)


def plain_measure(page: bytes) -> tuple[int, int]:
    """The same by a regular expression and a loop."""
    nodes = level = lowest = depth = nested = 0
    for end, name in re.findall(rb"<(/?)([a-zA-Z][a-zA-Z0-9]*)", page):
        nodes += not end
        if name.lower() in (b"rp", b"rt", b"optgroup"):
            nested = max(0, nested - 1 if end else nested + 1)
            depth = max(depth, nested)
        if name.lower().decode() in FLAT:
            continue
        level += -1 if end else 1
        lowest = min(lowest, level)
        depth = max(depth, level - lowest)
    return nodes, depth


def test_measures_equal_those_of_a_plain_loop() -> None:
    generator = random.Random(0)
    for _ in range(2_000):
        gap_bytes = generator.randrange(1, 12)
        page = bytes(generator.choices(b"<</>bBrRpPdiv1 :{`@[/\xc3\xa9", k=generator.randrange(60)))
        assert measure_tags(page, gap_bytes)[:3] == (*plain_measure(page), plain_far(page, gap_bytes)), page


@pytest.mark.parametrize("page", [b"<" * 9, b"<br", b"</", b"a<p", b"<optgroup><colgroup>", b"<blockquote"])
def test_pages_that_end_inside_a_tag(page: bytes) -> None:
    assert measure_tags(page, 100)[:2] == plain_measure(page)


@pytest.mark.parametrize(
    ("page", "depth", "options", "roots"),
    [
        (b"<select>" + b"<option>a" * 9 + b"</select><SELECT><option>a<option>b</option>", 1, 9, 0),
        (b"<select><optgroup><option>a<optgroup><option>b<option>c</select>", 2, 3, 0),
        (b"<ruby>a<rt>b<rt>c</ruby>" * 9, 2, 0, 0),  # its parent closes it
        (b"<rt>a" * 9, 9, 0, 0),  # nothing closes it
        (b"<rt>a</rt>" * 9 + b"</rt>", 1, 0, 0),
        (b"<html><body a=b>" + b"<body c=d></body>" * 9 + b"</html>", 0, 0, 11),
    ],
)
def test_tags_that_cost_more_the_more_there_are_of_them(page: bytes, depth: int, options: int, roots: int) -> None:
    tags = measure_tags(page, 100)
    assert (tags.depth, tags.options, tags.roots) == (depth, options, roots)
