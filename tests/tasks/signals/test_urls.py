"""Words, substrings and domains of URLs: what counts, what must not, and what select does with them."""

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tasks.dataset import Workspace
from tasks.hosts import canonical_host
from tasks.parts import read_ledger, read_part
from tasks.select import select_documents
from tasks.select.rules import FAMILIES, SelectConfig
from tasks.signal_table import SIGNALS, URL
from tasks.signals import SignalsConfig, measure_signals
from tasks.signals.urls import UrlConfig, url_signals
from tests.conftest import MakeDocuments

URL_PIECES = (
    "porn", "PORN", "p%6Frn", "free", "-", ".", "_", "/", "casino", "Poker", "%", "%2F", "ſ", "\u212a", "İ", "xxx",
    "video", "hentaİ", "sex\u0307", "\n",
)  # fmt: skip
ONLY_URLS = {name: None for name in FAMILIES if name not in ("url", "quality", "toxicity", "perplexity")}


def found(url: str | None, config: UrlConfig | None = None) -> dict[str, Any]:
    columns = url_signals([url], config or UrlConfig())
    assert columns.keys() == {signal.name for signal in SIGNALS if signal.source == URL}
    return {name.removeprefix("url_"): column[0].as_py() for name, column in columns.items()}


@pytest.mark.parametrize("key", ["hard_words", "substrings"])
def test_a_list_may_be_longer_than_a_pattern_can_be(key: str) -> None:
    config = UrlConfig.model_validate({key: [f"word{number}x" for number in range(100_000)]})
    assert found("http://a.example/word77777x", config)[key] == "word77777x"
    assert found("http://a.example/other", config)[f"num_url_{key}"] == 0


def test_hard_words_are_whole_words_of_the_whole_url() -> None:
    for url in (
        "http://porn.example/", "http://x.example/a/Porn_b", "http://x.example/?q=porn", "http://x.example/%70orn",
        "http://user:porn@x.example",
    ):  # fmt: skip
        assert found(url)["hard_words"] == "porn", url
        assert found(url)["num_url_hard_words"] == 1
    for url in ("http://ot-pornic.example", "http://x.example/pornography-law", "http://x.example/2porn"):
        assert found(url)["num_url_hard_words"] == 0, url


def test_soft_words_count_once_each() -> None:
    assert found("http://poker.example/poker/poker.html")["num_url_soft_words"] == 1
    both = found("https://free.example/play-poker-Casino.html")
    assert (both["soft_words"], both["num_url_soft_words"]) == ("casino poker", 2)


def test_substrings_are_found_across_hyphens_and_dots() -> None:
    """RefinedWeb's strict list: - and . are left out first, since they are put in to hide words."""
    for url in ("http://x.example/myfreepornsite", "http://free-porn.example", "http://free.porn.example"):
        assert found(url)["substrings"] == "freeporn", url
    assert found("http://x.example/free/porn_")["num_url_substrings"] == 0


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(URL_PIECES), st.text(max_size=4)), max_size=8).map("".join))
def test_equal_to_a_plain_reference(path: str) -> None:
    """Most URLs are passed over at one look (a pattern in Arrow); none that has something may be."""
    url = "http://x.example/" + path
    measured, plain = found(url), unquote(url).lower()
    tokens = set(re.findall(r"[^\W_]+", plain))
    assert measured["hard_words"] == " ".join(sorted(tokens & set(UrlConfig().hard_words)))
    assert measured["soft_words"] == " ".join(sorted(tokens & set(UrlConfig().soft_words)))
    squeezed = plain.replace("-", "").replace(".", "")
    assert measured["substrings"] == " ".join(sorted(text for text in UrlConfig().substrings if text in squeezed))


def test_places_are_no_words() -> None:
    for url in (
        "https://www.essex.gov.uk/middlesex", "https://scunthorpe.example/sussex", "http://analysis.example/adult-education",
        "https://therapist.example/sexual-health", "https://en.example.org/wiki/Webcam",
    ):  # fmt: skip
        measured = found(url)
        rules = (("hard_words", 0), ("soft_words", 1), ("substrings", 0), ("listed_domains", 0))
        assert all(measured[f"num_url_{name}"] <= limit for name, limit in rules), url


def test_words_in_other_scripts_and_punycode() -> None:
    config = UrlConfig(hard_words=("казино",), soft_words=(), substrings=())
    for host in ("казино.example", "КАЗИНО.example", "xn--80aaxitdbjk.example", canonical_host("казино.example")):
        expected = "" if host.startswith("xn--80aax") else "казино"  # that one is another word
        assert found(f"http://{host}/", config)["hard_words"] == expected, host
    assert found("http://x.example/%D0%BA%D0%B0%D0%B7%D0%B8%D0%BD%D0%BE", config)["hard_words"] == "казино"


@pytest.mark.parametrize("url", [None, ""])
def test_without_a_url_nothing_is_measured(url: str | None) -> None:
    """datatrove asserts that a URL is there; a document without one is none that a URL rule can judge."""
    assert set(found(url).values()) == {None}
    assert all(column.null_count == 1 for column in url_signals(["http://porn.example"], None).values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hard_words": ["Porn"]}, r"url\.hard_words[\s\S]*'Porn': a word of a URL"),
        ({"soft_words": ["two words"]}, "one run of lower-case"),
        ({"substrings": ["a-b"]}, "without the - and dots"),
        ({"domain_lists": [{"path": "list.txt"}]}, "depends on the working folder"),
        ({"domain_lists": [{"path": "/x", "sha256": "12"}]}, r"domain_lists\[?\.?0\]?\.sha256"),
        ({"words": []}, r"url\.words"),
    ],
)
def test_wrong_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SignalsConfig.model_validate({"url": changes})


def test_select_drops_and_names_what_it_found(
    workspace: Workspace, make_documents: MakeDocuments, tmp_path: Path
) -> None:
    """Every kind of find is a reason of its own; the ledger names words and domains; books without URLs pass."""
    listing = tmp_path / "list.txt"
    listing.write_text("bad.example\n")
    urls = [
        "http://a.example/porn", "http://casino.example/poker", "http://casino.example/",
        "http://www.free.pornsite.example", "http://good.example@x.bad.example:80/", None,
    ]  # fmt: skip
    documents = make_documents(["Some text it is."] * len(urls), url=urls, parts=1)
    measured = SignalsConfig.model_validate({"url": {"domain_lists": [{"path": str(listing)}]}})
    signals = measure_signals(documents, into=workspace, config=measured)
    kept = select_documents(documents, signals, into=workspace, config=SelectConfig.model_validate(ONLY_URLS))
    ledger = {row["reason"]: row for part in kept.parts for row in read_ledger(workspace.storage, part).to_pylist()}
    assert {reason: json.loads(row["detail"]) for reason, row in ledger.items() if row["action"] == "drop"} == {
        "url.max_url_hard_words": {"url_hard_words": "porn"},
        "url.max_url_soft_words": {"url_soft_words": "casino poker"},
        "url.max_url_listed_domains": {"url_listed_domains": "bad.example"},
        "url.max_url_substrings": {"url_substrings": "freeporn"},
    }
    rows = [row for part in kept.parts for t in read_part(workspace.storage, part) for row in t.to_pylist()]
    assert [row["url"] for row in rows] == ["http://casino.example/", None]
    assert ledger["url.max_url_soft_words"]["value"] == 2
    assert ledger["url.max_url_soft_words"]["threshold"] == 1
    extra = workspace.storage.read_json(kept.parts[0].receipt_path)["extra"]
    assert extra["not_applied"]["url.max_url_hard_words"] == 1


def test_hosts_are_a_signal_for_rules_of_your_own(workspace: Workspace, make_documents: MakeDocuments) -> None:
    documents = make_documents(["Some text it is."] * 2, url=["http://A.example:1/x", "http://b.example"])
    signals = measure_signals(documents, into=workspace, config=SignalsConfig())
    config = SelectConfig.model_validate(ONLY_URLS | {"rules": {"host": 'url_host in ("a.example",)'}})
    kept = select_documents(documents, signals, into=workspace, config=config)
    assert kept.reasons["rules.host"] == 1
