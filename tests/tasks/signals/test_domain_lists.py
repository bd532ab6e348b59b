"""Lists of domains: what a file may hold, what matches, and that a missing or changed file is an error."""

import gzip
import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tasks.dataset import Workspace
from tasks.errors import ConfigError, DataError, NotComputed
from tasks.manifest import Manifest
from tasks.parts import read_part
from tasks.signals import SignalsConfig, measure_signals
from tasks.signals.domain_lists import DomainListConfig, by_content, find_listed, load_list, read_domains
from tests.conftest import MakeDocuments

LIST = "# ours\nBad.Example.\n*.ads.example  # trackers\n\nwww.worse.example\nBücher.example\n1.2.3.4\n[2001:db8::1]\n"


def listed(*hosts: str | None) -> list[str | None]:
    return find_listed(hosts, [read_domains(LIST.encode(), "list")])


def test_subdomains_match_and_nothing_else() -> None:
    assert listed("bad.example", "a.b.bad.example", "notbad.example", "example", "bad.example.org") == [
        "bad.example", "bad.example", "", "", "",
    ]  # fmt: skip
    assert listed("ads.example", "worse.example", "www.worse.example", "xn--bcher-kva.example") == [
        "ads.example", "worse.example", "worse.example", "xn--bcher-kva.example",
    ]  # fmt: skip


def test_addresses_have_no_domains_above_them() -> None:
    assert listed("1.2.3.4", "9.1.2.3.4", "[2001:db8::1]", None, "") == ["1.2.3.4", "", "[2001:db8::1]", None, ""]


def test_the_longest_listed_domain_of_several_lists_is_named() -> None:
    lists = [read_domains(text, "list") for text in (b"example\n", b"a.example\nb.example")]
    assert find_listed(["x.a.example", "c.example", "other"], lists) == ["a.example", "example", ""]
    assert find_listed(["a.example"], []) == [""]


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lambda data: b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n")])
def test_files_may_be_packed(pack: type[bytes]) -> None:
    hashes = read_domains(pack(LIST.encode()), "list")
    assert len(hashes) == 6
    assert (np.diff(hashes) > 0).all()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a.example\nhttp://b.example/x", r"list: line 2: 'http://b.example/x' is no domain"),
        (b"0.0.0.0 a.example", "line 1: '0.0.0.0 a.example' is no domain"),
        (b"# nothing\n\n", "list: holds no domain"),
        (b"\xff\xfe", "no text in UTF-8"),
        (gzip.compress(b"a.example")[:-6], "plain, gz or zst"),
    ],
)
def test_a_file_that_is_no_list_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_domains(data, "list")


def config_with(path: Path | str, **facts: str) -> SignalsConfig:
    return SignalsConfig.model_validate({"url": {"domain_lists": [{"path": str(path), **facts}]}})


def test_a_missing_or_changed_list_is_an_error_before_anything_runs(
    workspace: Workspace, make_documents: MakeDocuments, tmp_path: Path
) -> None:
    """A list that is missing, or that has another digest than the recipe names, is never an empty list."""
    documents, path = make_documents(["a"]), tmp_path / "list.txt"
    dry = Workspace(workspace.storage, dry=True)
    with pytest.raises(ConfigError, match=r"signals\.url\.domain_lists\[0\]\.path: .*list.txt: no such file"):
        measure_signals(documents, into=dry, config=config_with(path))
    path.write_text("a.example")
    digest = hashlib.sha256(b"a.example").hexdigest()
    with pytest.raises(NotComputed):
        measure_signals(documents, into=dry, config=config_with(path, sha256=digest))
    with pytest.raises(ConfigError, match=rf"domain_lists\[0\]\.sha256: .* has {digest}, not 0000"):
        measure_signals(documents, into=dry, config=config_with(path, sha256="0" * 64))
    own = SignalsConfig.model_validate({"by_source": {"web": {"url": {"domain_lists": [{"path": "/no/such"}]}}}})
    with pytest.raises(ConfigError, match=r"signals\.by_source\.web\.url\.domain_lists\[0\]\.path"):
        measure_signals(documents, into=dry, config=own)


def test_the_digest_in_the_recipe_finds_signals_whose_list_is_gone(
    workspace: Workspace, make_documents: MakeDocuments, tmp_path: Path
) -> None:
    """What was measured is found by content; what is to be measured needs the list: published before, or the file."""
    path, digest = tmp_path / "list.txt", hashlib.sha256(b"a.example").hexdigest()
    path.write_text("a.example")
    documents = make_documents(["a"], url=["http://a.example"])
    made = measure_signals(documents, into=workspace, config=config_with(path))
    path.unlink()
    with pytest.raises(ConfigError, match=r"no such file .*; with its sha256 in the recipe, signals made before"):
        measure_signals(documents, into=workspace, config=config_with(path))
    dry = Workspace(workspace.storage, dry=True)
    assert measure_signals(documents, into=dry, config=config_with(path, sha256=digest)) == made
    others = make_documents(["b", "c"], url=["http://a.example", "http://b.example"])
    found = measure_signals(others, into=workspace, config=config_with(path, sha256=digest))
    assert hosts_listed(workspace, found) == ["a.example", ""]
    with pytest.raises(ConfigError, match=r"signals\.url\.domain_lists\[0\]\.path: .*list.txt: no such file"):
        measure_signals(others, into=workspace, config=config_with(path, sha256="0" * 64))


def hosts_listed(into: Workspace, signals: Manifest) -> list[str | None]:
    return [row for part in signals.parts for t in read_part(into.storage, part) for row in
            t["url_listed_domains"].to_pylist()]  # fmt: skip


def test_content_counts_and_not_the_place(workspace: Workspace, make_documents: MakeDocuments, tmp_path: Path) -> None:
    """Another file with the same content is the same dataset; other content measures again; sources have their own."""
    urls = ["http://x.a.example/", "http://b.example", None]
    documents = make_documents({"web": ["t"] * 3, "wiki": ["t"] * 3}, url=urls)
    first, second = tmp_path / "one.txt", tmp_path / "two.txt"
    first.write_text("a.example")
    second.write_text("a.example")
    results = [measure_signals(documents, into=workspace, config=config_with(path)) for path in (first, second)]
    assert results[0] == results[1]
    assert hosts_listed(workspace, results[0]) == ["a.example", "", None] * 2
    second.write_text("b.example")
    over = {"by_source": {"wiki": {"url": {"domain_lists": [{"path": str(second)}]}}}}
    values = config_with(first).model_dump(mode="json") | over
    mixed = measure_signals(documents, into=workspace, config=SignalsConfig.model_validate(values))
    assert hosts_listed(workspace, mixed) == ["a.example", "", None, "", "b.example", None]
    assert [part.key for part in mixed.parts_of("web")] == [part.key for part in results[0].parts_of("web")]


def test_a_damaged_published_list_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("a.example")
    _, named = by_content(workspace.storage, config_with(path))
    [(sha256, given)] = named.items()
    assert given.config == DomainListConfig(path=str(path))
    part = given.publish(workspace, sha256)
    assert len(load_list(workspace.storage, part)) == 1
    workspace.storage.delete(f"{part.stage}/{part.key}")
    with pytest.raises(DataError, match="is missing"):
        load_list(workspace.storage, replace(part, sha256="0" * 64))
    workspace.storage.write_bytes(f"{part.stage}/{part.key}", b"12345678")
    with pytest.raises(DataError, match="is not the file that was written"):
        load_list(workspace.storage, replace(part, sha256="1" * 64))
