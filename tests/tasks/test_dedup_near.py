"""Near duplicates: what goes and what must stay, by an independent slow check; and that nothing depends on the way it
ran."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from tasks.dataset import Workspace
from tasks.dedup_near import NearDedupConfig, candidates, drop_near_duplicates, signatures, verify
from tasks.errors import ConfigError, DataError
from tasks.kernels import jaccard
from tasks.manifest import Manifest, list_manifests, load_manifest
from tasks.parts import PartWriter, Unit, find_receipt, read_ledger, read_part
from tasks.storage import Storage

MakeDocuments = Callable[..., Manifest]
PLAIN = NearDedupConfig()
VOCABULARY = ["".join(random.Random(n).choices("abcdefghijklmnopqrstuvwxyz", k=4 + n % 6)) for n in range(3000)]


def prose(rng: random.Random, words: int) -> list[str]:
    return rng.choices(VOCABULARY, k=words)


def edited(rng: random.Random, words: list[str], changes: int) -> list[str]:
    copy = list(words)
    for place in rng.sample(range(len(copy)), changes):
        copy[place] = f"q{rng.choice(VOCABULARY)}"
    return copy


def slow_jaccard(one: str, other: str) -> float:
    """Independent of the kernels: sets of word 5-grams of plain lower-case words."""
    sets = []
    for text in (one, other):
        words = text.split()
        sets.append({" ".join(words[start : start + 5]) for start in range(len(words) - 4)})
    union = len(sets[0] | sets[1])
    return len(sets[0] & sets[1]) / union if union else 0.0


def planted_corpus(seed: int, originals: int = 150, plain: int = 150) -> tuple[list[str], list[tuple[int, int]]]:
    """Texts in random order, and the pairs (original, copy) among them with 0 to 5 edits in 100 to 200 words."""
    rng = random.Random(seed)
    rows: list[tuple[int, str]] = []
    for number in range(originals):
        words = prose(rng, rng.randrange(100, 200))
        rows.append((number, " ".join(words)))
        rows.append((number, " ".join(edited(rng, words, rng.randrange(6)))))
    rows += [(-1, " ".join(prose(rng, rng.randrange(5, 300)))) for _ in range(plain)]
    rng.shuffle(rows)
    places: dict[int, list[int]] = {}
    for place, (number, _) in enumerate(rows):
        places.setdefault(number, []).append(place)
    return [text for _, text in rows], [(pair[0], pair[1]) for number, pair in places.items() if number >= 0]


def rows_of(workspace: Workspace, manifest: Manifest) -> dict[str, str]:
    tables = [table for part in manifest.parts for table in read_part(workspace.storage, part, ["doc_id", "text"])]
    return {row["doc_id"]: row["text"] for row in pa.concat_tables(tables).to_pylist()} if tables else {}


def ledger_of(workspace: Workspace, manifest: Manifest) -> list[dict[str, object]]:
    tables = [read_ledger(workspace.storage, part) for part in manifest.parts]
    return list(pa.concat_tables(tables).to_pylist())


def assert_verified(workspace: Workspace, documents: Manifest, kept: Manifest) -> None:
    """Every dropped document has its true Jaccard with the kept one that the ledger names."""
    texts, stay = rows_of(workspace, documents), rows_of(workspace, kept)
    for row in ledger_of(workspace, kept):
        assert row["matched_id"] in stay
        assert row["value"] == slow_jaccard(texts[str(row["doc_id"])], texts[str(row["matched_id"])])
        assert float(str(row["value"])) >= 0.7 == row["threshold"]
    assert len(stay) + kept.totals["dropped"] == len(texts)


def test_finds_planted_pairs_and_drops_nothing_below_the_threshold(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    texts, pairs = planted_corpus(1)
    documents = make_documents(texts, parts=4)
    kept = drop_near_duplicates(documents, into=workspace, config=PLAIN)
    assert_verified(workspace, documents, kept)
    ids, stay = list(rows_of(workspace, documents)), rows_of(workspace, kept)
    alike = [(ids[a], ids[b]) for a, b in pairs if slow_jaccard(texts[a], texts[b]) >= 0.8]
    together = [pair for pair in alike if pair[0] in stay and pair[1] in stay]
    assert len(alike) > 60
    assert len(together) <= 0.05 * len(alike)
    pairs_manifest = load_manifest(workspace.storage, list_manifests(workspace.storage, "dedup-near.pairs")[0])
    pairs_rows = [
        row for part in pairs_manifest.parts for t in read_part(workspace.storage, part) for row in t.to_pylist()
    ]
    verdicts = Counter(row["reason"] for row in pairs_rows)
    assert verdicts["near_duplicate"] == kept.totals["dropped"]
    assert verdicts["kept"] == len({row["matched_id"] for row in pairs_rows})
    assert kept.extra["members"] >= 2 * kept.extra["components"]


def test_the_longer_then_later_document_of_the_preferred_source_is_kept(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    words = prose(random.Random(2), 120)
    text, longer = " ".join(words), " ".join([*words, "longer"])
    short = make_documents([text, longer], parts=2)
    assert set(rows_of(workspace, drop_near_duplicates(short, into=workspace, config=PLAIN)).values()) == {longer}
    dates = ["2020-01-01", "2024-05-05T10:00:00Z", "not a date"]
    dated = make_documents([text, f"{text}.", f"{text}!"], parts=1, timestamp=dates)
    assert list(rows_of(workspace, drop_near_duplicates(dated, into=workspace, config=PLAIN)).values()) == [f"{text}."]
    sources = make_documents({"web": [longer], "books": [text], "raw": [text]}, parts=1)
    config = NearDedupConfig(priorities={"books": 2}, by_source={"raw": {"enabled": False}})
    kept = drop_near_duplicates(sources, into=workspace, config=config)
    assert sorted(rows_of(workspace, kept).values()) == [text, text]


def test_protected_sources_lose_no_document(workspace: Workspace, make_documents: MakeDocuments) -> None:
    text = " ".join(prose(random.Random(16), 120))
    documents = make_documents({"web": [f"{text} longer", text], "books": [text, text]}, parts=1)
    config = NearDedupConfig(protected=("books",), priorities={"web": 2**62})
    kept = drop_near_duplicates(documents, into=workspace, config=config)
    assert list(rows_of(workspace, kept).values()) == [text, text]
    assert kept.by_source["books"]["dropped"] == 0


def test_exactly_one_of_identical_documents_survives(workspace: Workspace, make_documents: MakeDocuments) -> None:
    rng = random.Random(3)
    same, other = " ".join(prose(rng, 50)), " ".join(prose(rng, 50))
    kept = drop_near_duplicates(make_documents([same, other, same, same], parts=2), into=workspace, config=PLAIN)
    assert sorted(rows_of(workspace, kept).values()) == sorted([same, other])
    assert {row["value"] for row in ledger_of(workspace, kept)} == {1.0}


def test_documents_too_short_for_a_shingle_bypass_it(workspace: Workspace, make_documents: MakeDocuments) -> None:
    """text-dedup#77, bigcode-dataset#35: short documents had equal signatures, and one was left of all."""
    rng = random.Random(4)
    texts = ["yes", "no", "ok then", "", "...", "yes", " ".join(prose(rng, 60)), " ".join(prose(rng, 60))]
    kept = drop_near_duplicates(make_documents(texts), into=workspace, config=PLAIN)
    assert kept.totals["rows_out"] == len(texts)
    assert kept.extra["too_short"] == 6


def test_long_unrelated_texts_of_few_words_all_stay(workspace: Workspace, make_documents: MakeDocuments) -> None:
    """marin#6854: 51,160 unrelated books were one cluster of character shingles."""
    rng = random.Random(5)
    texts = [" ".join(prose(rng, 9_000)) for _ in range(60)]
    kept = drop_near_duplicates(make_documents(texts), into=workspace, config=PLAIN)
    assert kept.totals["dropped"] == 0


def test_a_chain_of_revisions_is_not_dropped_for_a_neighbour_of_a_neighbour(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    rng = random.Random(6)
    texts = []
    for _ in range(12):
        words = prose(rng, 150)
        for _ in range(10):
            texts.append(" ".join(words))
            words = edited(rng, words, 4)
    documents = make_documents(texts, parts=5)
    kept = drop_near_duplicates(documents, into=workspace, config=PLAIN)
    assert_verified(workspace, documents, kept)
    assert 24 <= kept.totals["rows_out"] < 90


def hot_corpus(rng: random.Random, size: int) -> list[str]:
    """A third of the documents hold the same passage, half of their text: they share bands, and J is about 1/3."""
    passage = prose(rng, 60)
    shared = [" ".join([*prose(rng, 30), *passage, *prose(rng, 30)]) for _ in range(size // 3)]
    return shared + [" ".join(prose(rng, 120)) for _ in range(size - len(shared))]


def test_a_band_shared_by_a_third_of_all_documents_is_bounded(
    workspace: Workspace, make_documents: MakeDocuments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ray#45303, text-dedup#41: a hot key hung the shuffle or took all memory."""
    texts = hot_corpus(random.Random(7), 900)
    keys = candidates.band_keys

    def one_hot_band(matrix: np.ndarray) -> np.ndarray:
        found = keys(matrix)
        found[: len(found) // 3 + 1, 0] = 12345
        return found

    monkeypatch.setattr(candidates, "band_keys", one_hot_band)
    documents = make_documents([*texts, *texts[:20]], parts=6)
    sent: list[int] = []
    send = candidates.send_bands

    def counting(unit: Unit, writer: PartWriter) -> None:
        send(unit, writer)
        sent.append(writer.extra["exchanged_rows"])

    monkeypatch.setattr(candidates, "send_bands", counting)
    kept = drop_near_duplicates(documents, into=workspace, config=PLAIN)
    assert kept.extra["largest"] > 250
    assert kept.totals["dropped"] == 20
    assert max(sent) < 15.5 * 155  # 14 keys per document and an edge: the hot bucket adds no pairs
    assert_verified(workspace, documents, kept)


def test_large_and_small_groups_are_walked_alike(
    workspace: Workspace, make_documents: MakeDocuments, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    texts, _ = planted_corpus(8, originals=60, plain=20)
    monkeypatch.setattr(candidates, "connect_edges", join_all)
    digests = []
    for number, limit in enumerate((2, 10**6)):
        monkeypatch.setattr(jaccard, "SMALL_GROUP", limit)
        own = Workspace(Storage(str(tmp_path / str(number))))
        digests.append(drop_near_duplicates(make_documents(texts, into=own), into=own, config=PLAIN).digest)
    assert digests[0] == digests[1]


def join_all(unit: Unit, writer: PartWriter) -> None:
    """One component of all that have an edge."""
    nodes = candidates._all_nodes(unit)
    writer.write(pa.table([nodes, np.full(len(nodes), nodes[0])], schema=candidates.COMPONENT_SCHEMA))
    writer.extra = {"members": len(nodes), "components": 1, "largest": len(nodes)}


@pytest.fixture
def straight(make_documents: MakeDocuments, tmp_path: Path) -> Manifest:
    """The result of a serial run that nothing disturbed, on another root."""
    elsewhere = Workspace(Storage(str(tmp_path / "elsewhere")))
    documents = make_documents(planted_corpus(9)[0], parts=4, into=elsewhere)
    return drop_near_duplicates(documents, into=elsewhere, config=PLAIN)


@pytest.mark.usefixtures("ray_cluster")
def test_one_two_and_four_workers_give_the_same_bytes(
    make_documents: MakeDocuments, straight: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """marin#6798, text-dedup#28: who was kept depended on workers and their order."""
    monkeypatch.setattr("tasks.exchange.PARTITION_BYTES", 50_000)  # several partitions
    for workers in (1, 2, 4):
        own = Workspace(Storage(str(tmp_path / f"workers-{workers}")), workers=workers)
        documents = make_documents(planted_corpus(9)[0], parts=4, into=replace(own, workers=0))
        kept = drop_near_duplicates(documents, into=own, config=PLAIN)
        assert [part.sha256 for part in kept.parts] == [part.sha256 for part in straight.parts]


def test_more_partitions_give_the_same_documents(
    workspace: Workspace, make_documents: MakeDocuments, straight: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.exchange.PARTITION_BYTES", 8_000)
    monkeypatch.setattr(candidates, "WRITTEN_ROWS", 7)
    monkeypatch.setattr(candidates, "BUFFERED_NODES", 5)
    documents = make_documents(planted_corpus(9)[0], parts=4)
    kept = drop_near_duplicates(documents, into=workspace, config=PLAIN)
    assert [part.sha256 for part in kept.parts] == [part.sha256 for part in straight.parts]
    assert len(workspace.storage.list_files("dedup-near.edges/parts")) > 10
    left = {file.key.split("/")[0] for file in workspace.storage.list_files()}
    assert not left & {"dedup-near.bands", "dedup-near.members"}  # exchange files are gone


def test_interrupted_and_run_again_gives_the_same_and_repeats_no_finished_part(
    workspace: Workspace, make_documents: MakeDocuments, straight: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = make_documents(planted_corpus(9)[0], parts=4)
    calls: list[str] = []
    limit = [0]
    steps = [
        (signatures, "sign_part"), (candidates, "send_bands"), (candidates, "link_buckets"),
        (candidates, "connect_edges"), (verify, "send_members"), (verify, "judge_members"),
    ]  # fmt: skip
    for module, name in steps:
        monkeypatch.setattr(module, name, stopping(getattr(module, name), calls, limit))
    for limit[0] in (2, 6, 9, 10, 13, 14):
        with pytest.raises(KeyboardInterrupt):
            drop_near_duplicates(documents, into=workspace, config=PLAIN)
    limit[0] = 1000
    resumed = drop_near_duplicates(documents, into=workspace, config=PLAIN)
    assert len(calls) == len(set(calls)) == 4 + 4 + 1 + 1 + 4 + 1
    assert [part.sha256 for part in resumed.parts] == [part.sha256 for part in straight.parts]


def stopping(function: Callable[..., None], calls: list[str], limit: list[int]) -> Callable[..., None]:
    """The part function, interrupted once `limit` parts are done in all."""

    def wrapped(unit: Unit, writer: PartWriter) -> None:
        if len(calls) == limit[0]:
            raise KeyboardInterrupt
        assert find_receipt(unit) is None, "a finished part was computed again"
        calls.append(f"{unit.stage} {unit.key}")
        function(unit, writer)

    return wrapped


def test_a_new_part_costs_its_signatures_and_the_parts_whose_decisions_change(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    texts, _ = planted_corpus(10, originals=20, plain=40)
    first = drop_near_duplicates(make_documents({"web": texts}, parts=4), into=workspace, config=PLAIN)
    before = receipts_in(workspace, "dedup-near.signatures")
    named = {row["matched_id"] for row in ledger_of(workspace, first)}
    lonely = next(text for name, text in rows_of(workspace, first).items() if name not in named and len(text) > 900)
    longer = {"web": texts, "new": [f"{lonely} and more", " ".join(prose(random.Random(11), 80))]}
    second = drop_near_duplicates(make_documents(longer, parts=4), into=workspace, config=PLAIN)
    assert len(receipts_in(workspace, "dedup-near.signatures") - before) == 2
    same = [old.key == new.key for old, new in zip(first.parts, second.parts, strict=False)]
    assert same.count(False) == 1
    assert second.totals["dropped"] == first.totals["dropped"] + 1


def receipts_in(workspace: Workspace, stage: str) -> set[str]:
    return {file.key for file in workspace.storage.list_files(f"{stage}/parts") if file.key.endswith(".json")}


def test_another_threshold_or_priority_signs_nothing_again(workspace: Workspace, make_documents: MakeDocuments) -> None:
    documents = make_documents(planted_corpus(12, originals=20, plain=5)[0])
    loose = drop_near_duplicates(documents, into=workspace, config=PLAIN)
    before = workspace.storage.list_files("dedup-near.signatures") + workspace.storage.list_files("dedup-near.edges")
    strict = drop_near_duplicates(documents, into=workspace, config=NearDedupConfig(threshold=0.95))
    after = workspace.storage.list_files("dedup-near.signatures") + workspace.storage.list_files("dedup-near.edges")
    assert before == after
    assert 0 < strict.totals["dropped"] < loose.totals["dropped"]


def test_a_source_that_nearly_vanishes_stops_the_stage_unless_allowed(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    text = " ".join(prose(random.Random(13), 20))
    documents = make_documents([f"{text} {'!' * n}" for n in range(1100)])
    with pytest.raises(DataError, match=r"web: 1099 of 1100 documents .*dedup_near\.by_source"):
        drop_near_duplicates(documents, into=workspace, config=PLAIN)
    config = NearDedupConfig(by_source={"web": {"max_dropped_ratio": 1}})
    assert drop_near_duplicates(documents, into=workspace, config=config).totals["rows_out"] == 1


def test_wrong_settings_are_refused(
    workspace: Workspace, make_documents: MakeDocuments, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValidationError, match="threshold"):
        NearDedupConfig(threshold=0.3)
    with pytest.raises(ValidationError, match=r"by_source\.web\.treshold"):
        NearDedupConfig(by_source={"web": {"treshold": 0.8}})
    monkeypatch.setattr(candidates, "MAX_PARTS", 2)
    with pytest.raises(ConfigError, match="part_bytes"):
        drop_near_duplicates(make_documents(["a"] * 9), into=workspace, config=PLAIN)


def test_no_documents_at_all_give_no_documents(workspace: Workspace, make_documents: MakeDocuments) -> None:
    assert drop_near_duplicates(make_documents([""]), into=workspace, config=PLAIN).totals["rows_out"] == 1
    assert drop_near_duplicates(make_documents({}), into=workspace, config=PLAIN).parts == []
