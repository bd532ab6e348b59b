"""Wikitext to prose: what is kept, what is left out, broken markup, and time linear in the text."""

import pytest

from tasks.ingest.wikitext import MAX_DEPTH, plain_text


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("'''Bold''' and ''italic'' and '''''both'''''.", "Bold and italic and both."),
        ("See [[Tree]], [[Tree|trees]], [[tree]]s and [[:Category:Trees|all]].", "See Tree, trees, trees and all."),
        ("A [https://a.example a site], [//b.example] and [not a link].", "A a site, and [not a link]."),
        ("== Head ==\nBody\n=== Sub ===\n==", "Head\nBody\nSub\n=="),
        ("* one\n** two\n# three\n: four\n;five", "- one\n- two\n- three\nfour\nfive"),
        ("a{{cite|x={{y}}|[[z]]}}b", "ab"),
        ("from {{lang|grc|ἀρχή}}, {{lang-fr|mot}}, {{convert|5|km|mi|abbr=on}}", "from ἀρχή, mot, 5 km"),
        ("top\n{| class=x\n! h\n|-\n| cell\n{|\n| inner\n|}\n|}\nend", "top\n\nend"),
        ("x<ref name=a/> y<ref>z [[q]]</ref>.<!-- no\nno --> w", "x y. w"),
        ("[[File:a.jpg|thumb|A [[cat]] {{x}} sits]]Text", "Text"),
        ("[[Datei:a.jpg|mini|Katze]]Text[[kategorie:Tier]]", "Text"),
        ("Text\n[[fr:Texte]]\n[[zh-min-nan:Te]]\nThe film [[Re:Zero]].", "Text\n\nThe film Re:Zero."),
        ("E is <math>\\frac{{a}}{b}</math>; H<sub>2</sub>O<br/>x", "E is $\\frac{ {a} }{b}$; H2O\nx"),
        ("Ada ({{IPA|x}}; born 1815) and Bob ({{x}}, {{y}})", "Ada (born 1815) and Bob"),
        ("a&nbsp;b &amp; c &lt;d&gt; __NOTOC__", "a b & c <d>"),
        ("<gallery>\nFile:a.jpg|one\n</gallery>after", "after"),
        ("", ""),
    ],
)
def test_markup(wikitext: str, text: str) -> None:
    assert plain_text(wikitext, ("Datei", "Kategorie")) == text


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("open {{template and text", "open {{template and text"),
        ("open [[link and text", "open [[link and text"),
        ("closed}} and ]] alone\n|} x", "closed}} and ]] alone\n|} x"),
        ("{{a [[b}} c", "c"),
        ("[[a {{b]] c", "[[a {{b]] c"),
        ("a <ref>open and text", "a open and text"),
        ("a <!-- open and text", "a <!-- open and text"),
        ("{| open\ntable", "{| open\ntable"),
        ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
    ],
)
def test_markup_that_is_never_closed_loses_nothing(wikitext: str, text: str) -> None:
    assert plain_text(wikitext) == text


def test_depth_is_bounded() -> None:
    deep = "[[" * 1_000 + "x" + "]]" * 1_000
    assert plain_text(deep).count("[[") == 1_000 - MAX_DEPTH


@pytest.mark.parametrize(
    "piece",
    [
        *("{{", "[[", "}}", "]]", "{|\n", "<ref>", "<ref ", "<!--", "<math>", "<gallery>", "<a", "[http://a ", "''"),
        *("= ", "=", "* ", "( ", "\t", " ", "-->", "__A", "&", "[[a|", "[[fr:", "(,", "<ref>{{[[", "</ref><ref>"),
    ],
)
def test_a_hundred_thousand_characters_of_anything_take_linear_time(piece: str) -> None:
    """Quadratic time would be minutes, beyond the test's limit."""
    size = 100_000 // len(piece)
    assert isinstance(plain_text(piece * size + "end"), str)
    assert isinstance(plain_text("=" + piece * size + "="), str)
