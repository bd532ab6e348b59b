"""Exact duplicates by URL and by text: who stays, what the ledger says, and that nothing depends on the way it ran."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import ValidationError

from tasks import dedup_exact
from tasks.dataset import Workspace
from tasks.dedup_exact import ExactDedupConfig, drop_exact_duplicates, normalise_text, normalise_url
from tasks.errors import DataError
from tasks.manifest import Manifest
from tasks.parts import PartWriter, Unit, find_receipt, read_ledger, read_part
from tasks.storage import Storage

MakeDocuments = Callable[..., Manifest]
PLAIN = ExactDedupConfig()


def column_of(workspace: Workspace, manifest: Manifest, name: str) -> list[str]:
    tables = [table for part in manifest.parts for table in read_part(workspace.storage, part, [name])]
    return [value for table in tables for value in table[name].to_pylist()]


def texts_of(workspace: Workspace, manifest: Manifest) -> list[str]:
    return column_of(workspace, manifest, "text")


def ids_of(workspace: Workspace, manifest: Manifest) -> list[str]:
    return column_of(workspace, manifest, "doc_id")


def ledger_of(workspace: Workspace, manifest: Manifest) -> dict[str, dict[str, object]]:
    tables = [read_ledger(workspace.storage, part) for part in manifest.parts]
    return {row["doc_id"]: row for row in pa.concat_tables(tables).to_pylist()}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://www.example.com/a/", "https://example.com/a"),
        ("https://EXAMPLE.com:443/a#top", "http://example.com/a"),
        (" http://example.com ", "https://example.com/"),
        ("http://example.com/?q=1", "https://example.com?q=1"),
    ],
)
def test_spellings_of_one_url_are_the_same(one: str, other: str) -> None:
    assert normalise_url(one) == normalise_url(other) is not None


def test_different_urls_differ_and_what_is_none_takes_no_part() -> None:
    urls = ["http://a.com/x", "http://a.com/X", "http://a.com/x?b=1", "http://a.com:8080/x", "http://[broken", "x y"]
    assert len({normalise_url(url) for url in urls}) == len(urls)
    assert [normalise_url(url) for url in (None, "", "  ")] == [None, None, None]


def test_texts_are_the_same_up_to_case_space_and_composition_only() -> None:
    assert normalise_text(" Caf\u0065\u0301 \n\n au\u00a0LAIT ") == normalise_text("café au lait")
    assert len({normalise_text(text) for text in ("pay 5 now", "pay 6 now", "pay 5 now!", "a-b", "a b")}) == 5


def test_a_million_marks_on_one_letter_take_linear_time() -> None:
    marks = "a" + "\u0301\u0323" * 500_000  # NFC alone sorts them for half an hour
    assert normalise_text(marks) == normalise_text(marks.upper()) != normalise_text(marks + "\u0323")


def test_one_of_each_text_stays_and_the_ledger_names_it(workspace: Workspace, make_documents: MakeDocuments) -> None:
    documents = make_documents(["a b c", "A b\nC", "a B c", "unique"], parts=3)
    kept = drop_exact_duplicates(documents, into=workspace, config=PLAIN)
    ids = ids_of(workspace, documents)
    assert ids_of(workspace, kept) == [min(ids[:3]), ids[3]]  # equal lengths and no dates: the lowest id
    ledger = ledger_of(workspace, kept)
    assert set(ledger) == set(ids[:3]) - {min(ids[:3])}
    assert {(row["reason"], row["matched_id"]) for row in ledger.values()} == {("same_text", min(ids[:3]))}
    assert kept.totals["rows_in"] == 4
    assert kept.reasons == {"same_text": 2}


def test_the_latest_record_of_a_url_stays_and_texts_are_compared_among_survivors(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    documents = make_documents(
        ["old text", "new text", "old text", "no date"],
        url=["http://a.com/1", "https://www.a.com/1/", "http://a.com/2", "http://a.com/1#x"],
        timestamp=["2020-01-01T00:00:00Z", "2021-01-01T00:00:00+02:00", None, None],
    )
    kept = drop_exact_duplicates(documents, into=workspace, config=PLAIN)
    assert texts_of(workspace, kept) == ["new text", "old text"]  # the first "old text" lost its URL, not its text
    ids = ids_of(workspace, documents)
    assert {row["matched_id"] for row in ledger_of(workspace, kept).values()} == {ids[1]}
    assert kept.reasons == {"same_url": 2}


def test_sources_of_higher_priority_are_kept_and_a_source_can_be_left_out(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    texts = {"web": ["shared", "web only"], "books": ["shared", "shared"], "raw": ["shared", "shared"]}
    documents = make_documents(texts, parts=1)
    config = ExactDedupConfig(priorities={"books": 1}, by_source={"raw": {"enabled": False}})
    kept = drop_exact_duplicates(documents, into=workspace, config=config)
    assert {source: totals["rows_out"] for source, totals in kept.by_source.items()} == {"web": 1, "books": 1, "raw": 2}
    assert len({row["matched_id"] for row in ledger_of(workspace, kept).values()}) == 1
    by_url_only = drop_exact_duplicates(documents, into=workspace, config=ExactDedupConfig(by_text=False))
    assert by_url_only.totals["dropped"] == 0


def test_protected_sources_lose_no_document_and_others_lose_theirs_to_them(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    texts = {"web": ["shared", "page", "web only", "newer page"], "books": ["shared", "old page", "shared"]}
    urls = [None, "http://a.com", None, "http://a.com"]
    documents = make_documents(texts, parts=1, url=urls, timestamp=["2023", "2023", "2023", "2024-01-01"])
    kept = drop_exact_duplicates(documents, into=workspace, config=ExactDedupConfig(protected=("books",)))
    assert texts_of(workspace, kept) == ["web only", *texts["books"]]
    ids = ids_of(workspace, documents)
    gone = {name: row["matched_id"] for name, row in ledger_of(workspace, kept).items()}
    assert gone == {ids[0]: min(ids[4], ids[6]), ids[1]: ids[5], ids[3]: ids[5]}


def test_any_number_of_different_texts_stays(workspace: Workspace, make_documents: MakeDocuments) -> None:
    """dclm#71: a Bloom filter made for a hundredth of the texts saturated and dropped nearly all of them.

    Keys are compared by sorting: there is no number of texts to guess, and no share of false matches.
    """
    documents = make_documents([f"text number {number}" for number in range(20_000)], parts=4)
    kept = drop_exact_duplicates(documents, into=workspace, config=PLAIN)
    assert (kept.totals["rows_out"], kept.totals["dropped"]) == (20_000, 0)


def test_short_and_empty_texts_are_told_apart(workspace: Workspace, make_documents: MakeDocuments) -> None:
    documents = make_documents(["yes", "no", "ok then", "", "no", "\u00e9"])
    kept = drop_exact_duplicates(documents, into=workspace, config=PLAIN)
    assert sorted(texts_of(workspace, kept)) == ["", "no", "ok then", "yes", "\u00e9"]


def test_a_source_that_nearly_vanishes_stops_the_stage_unless_allowed(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    documents = make_documents({"web": ["same"] * 1200, "small": ["same"] * 300}, parts=2)
    with pytest.raises(DataError, match=r"web: 1199 of 1200 documents .*by_source"):
        drop_exact_duplicates(documents, into=workspace, config=ExactDedupConfig(priorities={"web": 1}))
    config = ExactDedupConfig(priorities={"web": 1}, by_source={"web": {"max_dropped_ratio": 1.0}})
    assert drop_exact_duplicates(documents, into=workspace, config=config).totals["rows_out"] == 1
    with pytest.raises(ValidationError, match="max_dropped_ratio"):
        ExactDedupConfig(by_source={"web": {"max_dropped_ratio": 2}})


def random_corpus(seed: int) -> tuple[list[str], list[str | None], list[str | None]]:
    rng = random.Random(seed)
    texts = [f"text number {rng.randrange(150)}" for _ in range(300)]
    urls = [f"http://a.com/{rng.randrange(200)}" if rng.random() < 0.7 else None for _ in texts]
    dates = [f"2024-01-{rng.randrange(1, 29):02}" if rng.random() < 0.8 else None for _ in texts]
    return texts, urls, dates


def slow_survivors(texts: list[str], urls: list[str | None], dates: list[str | None], ids: list[str]) -> set[str]:
    """The definition, in memory."""
    rows = list(zip(ids, texts, urls, dates, strict=True))
    by_url: dict[str, list[tuple[str, str, str | None, str | None]]] = {}
    for row in rows:
        by_url.setdefault(row[2] or row[0], []).append(row)
    latest = [max(group, key=lambda r: (r[3] or "", len(r[1]), [-ord(c) for c in r[0]])) for group in by_url.values()]
    by_text: dict[str, list[tuple[str, str, str | None, str | None]]] = {}
    for row in latest:
        by_text.setdefault(row[1], []).append(row)
    return {max(group, key=lambda r: (r[3] or "", [-ord(c) for c in r[0]]))[0] for group in by_text.values()}


@pytest.mark.parametrize("partition_bytes", [1 << 28, 5_000])
def test_equals_the_definition_for_any_number_of_partitions(
    workspace: Workspace, make_documents: MakeDocuments, partition_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.exchange.PARTITION_BYTES", partition_bytes)
    monkeypatch.setattr(dedup_exact, "BUFFERED_ROWS", 16)
    texts, urls, dates = random_corpus(1)
    documents = make_documents(texts, parts=5, url=urls, timestamp=dates)
    kept = drop_exact_duplicates(documents, into=workspace, config=PLAIN)
    assert set(ids_of(workspace, kept)) == slow_survivors(texts, urls, dates, ids_of(workspace, documents))
    assert not [file for file in workspace.storage.list_files() if ".by-" in file.key]  # exchange files are gone


def test_interrupted_and_run_again_gives_the_same_and_repeats_no_finished_part(
    workspace: Workspace, make_documents: MakeDocuments, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    texts, urls, dates = random_corpus(2)
    documents = make_documents(texts, parts=4, url=urls, timestamp=dates)
    elsewhere = Workspace(Storage(str(tmp_path / "elsewhere")))
    straight = drop_exact_duplicates(
        make_documents(texts, parts=4, url=urls, timestamp=dates, into=elsewhere), into=elsewhere, config=PLAIN
    )
    calls: list[str] = []

    def fails_at(limit: int) -> None:
        for name in ("key_documents", "send_keys", "judge_partition"):
            original = getattr(dedup_exact, name)

            def wrapped(unit: Unit, writer: PartWriter, original: Callable[..., None] = original) -> None:
                if len(calls) == limit:
                    raise KeyboardInterrupt
                assert find_receipt(unit) is None, "a finished part was computed again"
                calls.append(unit.key)
                original(unit, writer)

            monkeypatch.setattr(dedup_exact, name, wrapped)

    for limit in (2, 5, 8):
        with monkeypatch.context() as patch:
            patch.setattr(dedup_exact, "key_documents", dedup_exact.key_documents)
            fails_at(limit)
            with pytest.raises(KeyboardInterrupt):
                drop_exact_duplicates(documents, into=workspace, config=PLAIN)
        monkeypatch.undo()
    fails_at(10**6)
    resumed = drop_exact_duplicates(documents, into=workspace, config=PLAIN)
    assert len(calls) == len(set(calls))
    assert resumed.digest == straight.digest
    assert [part.sha256 for part in resumed.parts] == [part.sha256 for part in straight.parts]


def test_a_new_part_costs_its_keys_and_the_parts_whose_decisions_change(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    texts = {"web": [f"text {n}" for n in range(30)]}
    first = drop_exact_duplicates(make_documents(texts, parts=3), into=workspace, config=PLAIN)
    longer = {"web": texts["web"], "new": ["text 3", "fresh"]}
    config = ExactDedupConfig(priorities={"new": 1})
    before = {f.key for f in workspace.storage.list_files("dedup-exact.keys/parts")}
    second = drop_exact_duplicates(make_documents(longer, parts=3), into=workspace, config=config)
    keys = {f.key for f in workspace.storage.list_files("dedup-exact.keys/parts")} - before
    assert len([key for key in keys if key.endswith(".json")]) == 2  # of the two new parts alone
    shared = {part.key for part in first.parts} & {part.key for part in second.parts}
    assert len(shared) == 2  # "text 3" changed one of three
    assert first.totals["dropped"] == 0
    assert second.reasons == {"same_text": 1}


@pytest.mark.usefixtures("ray_cluster")
def test_one_two_and_four_workers_give_the_same_bytes(
    make_documents: MakeDocuments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.exchange.PARTITION_BYTES", 10_000)  # several partitions
    texts, urls, dates = random_corpus(3)
    results = set()
    for workers in (0, 1, 2, 4):
        own = Workspace(Storage(str(tmp_path / str(workers))), workers=workers)
        serial = replace(own, workers=0)
        documents = make_documents(texts, parts=4, url=urls, timestamp=dates, into=serial)
        kept = drop_exact_duplicates(documents, into=own, config=PLAIN)
        results.add(tuple(part.sha256 for part in kept.parts))
    assert len(results) == 1


def test_a_source_that_mostly_goes_by_url_is_named(
    workspace: Workspace, make_documents: MakeDocuments, caplog: pytest.LogCaptureFixture
) -> None:
    """Chapters under the address of their book, beside a source of fewer documents."""
    texts = {"books": [f"chapter {n}" for n in range(20)], "few": [f"page {n}" for n in range(19)]}
    urls = [*["http://books.org/one"] * 12, *[None] * 8, *["http://few.org"] * 19]
    documents = make_documents({"books": texts["books"]}, parts=1, url=urls[:20])
    drop_exact_duplicates(documents, into=workspace, config=PLAIN)
    drop_exact_duplicates(make_documents({"few": texts["few"]}, parts=1, url=urls[20:]), into=workspace, config=PLAIN)
    [record] = [record for record in caplog.records if record.name == "tasks.dedup_exact"]
    assert "11 of 20 documents (55 %) of source books" in record.getMessage()
    assert "set dedup_exact.by_source.books.by_url: false" in record.getMessage()
