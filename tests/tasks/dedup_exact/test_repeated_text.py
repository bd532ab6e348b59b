"""What several documents repeat is cut from all but the first, on character boundaries, exactly, and nothing else."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from tasks.dataset import Workspace
from tasks.dedup_exact import ExactDedupConfig, drop_exact_duplicates, repeated_text
from tasks.manifest import Manifest
from tasks.parts import read_ledger, read_part
from tasks.storage import Storage

MakeDocuments = Callable[..., Manifest]
MENU = "Home | About us | 連絡先 | Imprint"
LINES = ExactDedupConfig.model_validate({"lines": {"min_documents": 3, "min_bytes": 8}})
PARAGRAPHS = ExactDedupConfig.model_validate({"paragraphs": {"min_documents": 2, "min_bytes": 8}})
SUBSTRINGS = ExactDedupConfig.model_validate({"substrings": {"min_words": 20}})


def texts_of(into: Workspace, manifest: Manifest) -> list[str]:
    tables = [table for part in manifest.parts for table in read_part(into.storage, part, ["text"])]
    return [text for table in tables for text in table["text"].to_pylist()]


def ledger_of(into: Workspace, manifest: Manifest) -> list[dict[str, object]]:
    return [row for part in manifest.parts for row in read_ledger(into.storage, part).to_pylist()]


def test_a_line_of_enough_documents_stays_in_the_first_alone(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    texts = [f"{MENU}\nfirst page", f"second page\n  {MENU}  \n\nits end", "twice here\ntwice here", f"{MENU}\n", "x"]
    kept = drop_exact_duplicates(make_documents(texts), into=workspace, config=LINES)
    assert texts_of(workspace, kept) == [texts[0], "second page\nits end", texts[2], "x"]
    rows = ledger_of(workspace, kept)
    assert [(row["action"], row["reason"]) for row in rows] == [("edit", "repeated_text"), ("drop", "all_repeated")]
    assert [row["value"] for row in rows] == [len(f"  {MENU}  \n\n".encode()), len(f"{MENU}\n".encode())]
    assert [json.loads(str(row["detail"])) for row in rows] == [{"lines": 1}, {"lines": 1}]
    assert (kept.totals["rows_in"], kept.totals["rows_out"], kept.totals["dropped"], kept.totals["edited"]) == (
        5,
        4,
        1,
        1,
    )


def test_too_few_documents_or_too_short_a_line_cut_nothing(workspace: Workspace, make_documents: MakeDocuments) -> None:
    texts = [f"{MENU}\nfirst page", f"{MENU}\n}}\nother page", "a\n}", "b\n}", "c\n}"]
    kept = drop_exact_duplicates(make_documents(texts), into=workspace, config=LINES)
    assert texts_of(workspace, kept) == texts
    assert kept.totals["edited"] == 0


def test_boilerplate_can_be_cut_from_the_first_too(workspace: Workspace, make_documents: MakeDocuments) -> None:
    config = ExactDedupConfig.model_validate({"lines": {"min_documents": 2, "min_bytes": 8, "keep_first": False}})
    texts = [f"{MENU}\nfirst page", f"{MENU}\nsecond page"]
    kept = drop_exact_duplicates(make_documents(texts), into=workspace, config=config)
    assert texts_of(workspace, kept) == ["first page", "second page"]


def test_priority_and_protection_say_which_document_is_first(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    pages = {name: [f"{MENU}\nof {name}"] for name in ("web", "news", "books", "raw")}
    values = {
        "paragraphs": {"min_bytes": 4, "min_documents": 2}, "lines": {"min_documents": 2, "min_bytes": 8},
        "priorities": {"news": 1}, "by_source": {"raw": {"lines": None}},
    }  # fmt: skip
    documents = make_documents(pages, parts=1)
    kept = drop_exact_duplicates(documents, into=workspace, config=ExactDedupConfig.model_validate(values))
    assert texts_of(workspace, kept) == ["of web", *pages["news"], "of books", *pages["raw"]]
    guarded = ExactDedupConfig.model_validate(values | {"protected": ["books", "web"]})
    kept = drop_exact_duplicates(documents, into=workspace, config=guarded)
    assert texts_of(workspace, kept) == [*pages["web"], "of news", *pages["books"], *pages["raw"]]


def test_documents_that_are_dropped_hold_nothing_first(workspace: Workspace, make_documents: MakeDocuments) -> None:
    texts = ["old\n\nshared words", "new\n\nshared words"]
    documents = make_documents(texts, url=["http://a.com"] * 2, timestamp=["2020", "2021-01-01"])
    assert texts_of(workspace, drop_exact_duplicates(documents, into=workspace, config=PARAGRAPHS)) == [texts[1]]


def words(rng: random.Random, number: int) -> list[str]:
    alphabet = "aé漢ß🙂nطक\u0301"
    return ["".join(rng.choices(alphabet, k=1 + rng.randrange(6))) for _ in range(number)]


def slow_cut(texts: list[str], least: int) -> list[str]:
    """The definition for words between spaces: every run of `least` words that an earlier text holds is cut."""
    seen: set[tuple[str, ...]] = set()
    found = []
    for text in texts:
        own = text.split(" ")
        starts = [at for at in range(len(own) - least + 1) if tuple(own[at : at + least]) in seen]
        seen |= {tuple(own[at : at + least]) for at in range(len(own) - least + 1)}
        gone = {at + step for at in starts for step in range(least)}
        found.append(" ".join(word for at, word in enumerate(own) if at not in gone))
    return found


@pytest.mark.parametrize("partition_bytes", [1 << 28, 4_000])
def test_repeated_runs_of_words_are_cut_exactly_in_random_unicode(
    workspace: Workspace, make_documents: MakeDocuments, partition_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """deduplicate-text-datasets#53, text-dedup#14: byte offsets taken for characters cut through letters."""
    monkeypatch.setattr("tasks.exchange.PARTITION_BYTES", partition_bytes)
    monkeypatch.setattr(repeated_text, "BUFFERED_ROWS", 16)
    rng = random.Random(2)
    shared = [[f"w{word}" for word in words(rng, rng.randrange(15, 40))] for _ in range(6)]
    texts = []
    for number in range(40):
        pieces = [words(rng, rng.randrange(12)) + rng.choice(shared) for _ in range(rng.randrange(4))]
        # letters of scripts without spaces would be words of their own: two letters keep these words whole
        texts.append(" ".join([f"t{number}", *(word for piece in pieces for word in piece), f"e{number}"]))
    texts = [text.replace("漢", "ж").replace("क", "к") for text in texts]
    kept = drop_exact_duplicates(make_documents(texts, parts=5), into=workspace, config=SUBSTRINGS)
    assert [" ".join(text.split()) for text in texts_of(workspace, kept)] == slow_cut(texts, 20)
    cut = sum(len(text.encode()) for text in texts) - sum(len(text.encode()) for text in texts_of(workspace, kept))
    assert cut == sum(float(str(row["value"])) for row in ledger_of(workspace, kept)) > 0
    assert not [file for file in workspace.storage.list_files() if file.key.startswith("dedup-exact.anchors/")]


def test_the_cut_text_is_the_shared_text_to_the_letter(workspace: Workspace, make_documents: MakeDocuments) -> None:
    shared = "héllo wörld 你好 " * 12 + "ende"
    texts = [f"eins {shared} zwei", f"drei, {shared}; vier"]
    kept = drop_exact_duplicates(make_documents(texts), into=workspace, config=SUBSTRINGS)
    first, second = texts_of(workspace, kept)
    assert first == texts[0]
    assert second == "drei,  ende; vier"  # "ende;" is another word; the spaces around what went stay


def test_workers_and_a_new_run_give_the_same(make_documents: MakeDocuments, tmp_path: Path, ray_cluster: None) -> None:
    rng = random.Random(3)
    shared = " ".join(words(rng, 60))
    texts = [f"{number}\n\n{MENU}\n\n{shared if number % 3 else ''} {number}" for number in range(30)]
    config = ExactDedupConfig.model_validate(
        {"lines": {"min_bytes": 8}, "paragraphs": {"min_bytes": 8}, "substrings": {"min_words": 30}}
    )
    results = []
    for workers in (0, 2):
        serial = Workspace(Storage(str(tmp_path / str(workers))))
        documents = make_documents(texts, parts=4, into=serial)
        kept = drop_exact_duplicates(documents, into=replace(serial, workers=workers), config=config)
        results.append([part.sha256 for part in kept.parts])
    assert results[0] == results[1]


def test_limits_of_a_source_of_its_own_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"by_source\.web\.lines: limits hold for the corpus"):
        ExactDedupConfig.model_validate({"lines": {}, "by_source": {"web": {"lines": {"min_bytes": 3}}}})
    with pytest.raises(ValidationError, match="min_documents"):
        ExactDedupConfig.model_validate({"lines": {"min_documents": 1}})
