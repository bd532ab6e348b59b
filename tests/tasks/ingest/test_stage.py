"""The stage: a golden source with counted reasons, resume, reuse when files are added, the same bytes for workers."""

import bz2
import gzip
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from tasks.dataset import Workspace
from tasks.documents import document_id
from tasks.errors import ConfigError, DataError
from tasks.ingest import IngestConfig, ingest_sources, list_inputs, stage
from tasks.manifest import Manifest
from tasks.parts import read_ledger, read_part
from tasks.storage import Storage

WORDS = "The quick brown fox jumps over the lazy dog, and nobody in the village minds it at all. "


def run(workspace: Workspace, part_bytes: int = 1 << 20, **sources: dict[str, Any]) -> Manifest:
    config = IngestConfig.model_validate({"sources": sources, "part_bytes": part_bytes})
    return ingest_sources(list_inputs(config, workspace.storage), into=workspace, config=config)


def documents(workspace: Workspace, manifest: Manifest) -> list[dict[str, Any]]:
    return [row for part in manifest.parts for table in read_part(workspace.storage, part) for row in table.to_pylist()]


def ledger(workspace: Workspace, manifest: Manifest) -> list[dict[str, Any]]:
    return [row for part in manifest.parts for row in read_ledger(workspace.storage, part).to_pylist()]


def json_lines(*texts: object) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """One source with every kind of bad input, among good documents."""
    folder = tmp_path / "golden"
    folder.mkdir()
    good = [f"good {n}" for n in range(5)]
    files = {
        "bad.jsonl": json_lines(*good, None, "", "\u00a0\u200b", 17, "sur\ud800rogate", "nul\0byte")
        + b'{"body": "x"}\n{"text": "cut in ha\n["list"]\n\n{"text": "c\xe9sar na\xefve", "id": 1}\n',
        "cut.jsonl.gz": gzip.compress(json_lines(*[WORDS + str(n) for n in range(50)]))[:-30],
        "dates-1.jsonl": b'{"text": "one", "date": null, "id": "same"}\n',
        "dates-2.jsonl": b'{"date": "2020", "text": "two", "id": "same"}\n',
        "dates-3.jsonl": b'{"text": "three", "date": {"y": 2020}, "score": 1, "url": 5}\n{"text": "x", "url": ["y"]}\n',
        "members.jsonl.gz": gzip.compress(json_lines("first")) + gzip.compress(json_lines("second")),
        "deep.html": f"<html>{'<div>' * 10_000}text".encode(),
        "page.html": f"<title>T</title><p>{WORDS * 5}<script>alert(1)</script>".encode(),
        "empty.txt": b" \n\t\n",
        "image.txt": b"\x89PNG\r\n\x1a\n\0\0\0",
        "latin.txt": "Ein größerer Text über Straßen, Häuser und Bäume.".encode("cp1252"),
        "text.md.zst": zstandard.compress(b"# Title\n\n<script>alert(1)</script>\n"),
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    pq.write_table(pa.table({"text": ["p1", None], "date": [1.5, 2.5]}), folder / "table.parquet")
    (folder / "broken.parquet").write_bytes(b"PAR1 no footer")
    return folder


GOLDEN_REASONS = {
    "binary": 1,
    "column_type": 1,
    "corrupt_file": 1,
    "empty": 5,
    "invalid_json": 1,
    "lone_surrogate": 1,
    "missing_text": 1,
    "not_object": 1,
    "nul_bytes": 1,
    "too_deep": 1,
    "truncated": 1,
    "wrong_type": 1,
}


def test_the_golden_source(workspace: Workspace, golden: Path) -> None:
    manifest = run(workspace, web={"base": str(golden)})
    rows, entries = documents(workspace, manifest), ledger(workspace, manifest)
    assert manifest.reasons == GOLDEN_REASONS
    totals = manifest.totals
    assert (totals["errors"], totals["edited"], totals["skipped"]) == (13, 3, 1)
    assert totals["rows_in"] == totals["rows_out"] + totals["errors"] + totals["skipped"]
    texts = {row["text"] for row in rows}
    assert {"good 0", "good 4", "sur\ufffdrogate", "nulbyte", "césar naïve", "first", "second", "p1", "three"} <= texts
    assert "Ein größerer Text über Straßen, Häuser und Bäume." in texts
    assert "# Title\n\n<script>alert(1)</script>\n" in texts
    kept = [n for n in range(50) if WORDS + str(n) in texts]
    assert kept == list(range(len(kept)))
    assert len(kept) > 30
    # every row of data and ledger has an id of its own, but for repairs, whose document is there
    errors = [entry["doc_id"] for entry in entries if entry["action"] == "error"]
    ids = [row["doc_id"] for row in rows]
    assert len({*ids, *errors}) == len(ids) + len(errors)
    assert {entry["doc_id"] for entry in entries if entry["action"] == "edit"} <= set(ids)
    for row in rows:
        assert row["doc_id"] == document_id("web", row["raw_ref"])
        assert json.loads(row["meta"]) is not None
        assert str(golden) not in json.dumps(row)
    for entry in entries:
        if entry["action"] == "error":
            assert document_id("web", json.loads(entry["detail"])["raw_ref"]) == entry["doc_id"]


def test_drifting_columns_and_duplicate_ids(workspace: Workspace, golden: Path) -> None:
    rows = {row["text"]: row for row in documents(workspace, run(workspace, web={"base": str(golden)}))}
    metas = {text: json.loads(rows[text]["meta"]) for text in ("one", "two", "three", "x", "p1")}
    assert metas["one"] == {"date": None, "id": "same"}
    assert metas["two"] == {"date": "2020", "id": "same"}
    assert metas["three"] == {"date": {"y": 2020}, "score": 1}
    assert metas["x"] == {"url": ["y"], "repaired": {"column_type": 1}}
    assert metas["p1"] == {"date": 1.5}
    assert rows["one"]["doc_id"] != rows["two"]["doc_id"]
    assert (rows["three"]["url"], rows["x"]["url"]) == ("5", None)


def test_parquet_files_whose_columns_drift(workspace: Workspace, tmp_path: Path) -> None:
    """marin#7351, datatrove#330: a column that is all null, of other types, in other places, or not there at all."""
    tables = {
        "1": pa.table({"text": ["one"], "lang": pa.nulls(1), "url": ["http://a.example"], "timestamp": pa.nulls(1)}),
        "2": pa.table({"lang": pa.array(["de"]).dictionary_encode(), "text": pa.array(["two"], pa.large_string())}),
        "3": pa.table({"url": pa.nulls(1), "text": pa.array(["three"]).dictionary_encode(), "lang": [[1, 2]]}),
        "4": pa.table({"text": pa.nulls(1), "lang": ["en"]}),
        "5": pa.table({"text": ["five"], "timestamp": pa.array([0], pa.timestamp("s"))}),
    }
    for name, table in tables.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    manifest = run(workspace, web={"base": str(tmp_path), "include": ["*.parquet"]})
    rows = {row["text"]: row for row in documents(workspace, manifest)}
    assert [json.loads(rows[text]["meta"]) for text in ("one", "two", "three", "five")] == [
        {"lang": None}, {"lang": "de"}, {"lang": [1, 2]}, {},
    ]  # fmt: skip
    assert [rows[text]["url"] for text in ("one", "two", "three")] == ["http://a.example", None, None]
    assert rows["five"]["timestamp"] == "1970-01-01T00:00:00"
    assert manifest.reasons == {"empty": 1}


@pytest.mark.parametrize("texts", [[None, "", " ", "\u00a0\u200b", "\n\n"]])
def test_texts_that_print_nothing_are_counted_once_and_a_source_may_hold_nothing_else(
    workspace: Workspace, tmp_path: Path, texts: list[str | None]
) -> None:
    """dolma#32: blank documents are named up front, not passed on for later stages to divide by their length."""
    (tmp_path / "blank.jsonl").write_bytes(json_lines(*texts) + b'{"other": 1}\n')
    manifest = run(workspace, web={"base": str(tmp_path), "include": ["blank.jsonl"]})
    assert manifest.reasons == {"empty": 5, "missing_text": 1}
    assert manifest.totals["rows_out"] == 0


def test_a_page_in_a_charset_nobody_knows_is_kept_and_flagged(workspace: Workspace, tmp_path: Path) -> None:
    """warc2zim#450: an unknown label, and bytes that fit no charset, fail neither the file nor the page."""
    page = (
        f"<html><body><p>{WORDS * 3}{'café ' * 5}".encode() + b"\x81\xff \xe2\x28 \xc3\xa9 \xc3\xa9</p></body></html>"
    )
    response = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=iso-8859-1-foo\r\n\r\n" + page
    head = f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://a\r\nContent-Length: {len(response)}\r\n\r\n"
    (tmp_path / "a.warc").write_bytes(head.encode() + response + b"\r\n\r\n")
    manifest = run(workspace, web={"base": str(tmp_path), "include": ["a.warc"]})
    (row,) = documents(workspace, manifest)
    assert manifest.reasons == {"decode_lossy": 1}
    assert "café" in row["text"]
    assert 0 < json.loads(row["meta"])["replaced_ratio"] < 0.1


def test_damage_can_fail_the_stage(workspace: Workspace, golden: Path) -> None:
    for name, reason in (("cut.jsonl.gz", "truncated"), ("broken.parquet", "corrupt_file")):
        with pytest.raises(DataError, match=rf"{name}#.* is damaged \({reason}\)"):
            run(workspace, web={"base": str(golden), "include": [name], "on_damage": "fail"})
    assert run(workspace, web={"base": str(golden), "include": ["bad.jsonl"], "on_damage": "fail"}).totals["errors"]


@pytest.fixture
def many(tmp_path: Path) -> Path:
    folder = tmp_path / "many"
    folder.mkdir()
    for n in range(40):
        (folder / f"{n:03}.jsonl").write_bytes(json_lines(*[f"{n} {row} {WORDS}" for row in range(10 + n % 7)]))
    (folder / "999-big.jsonl").write_bytes(json_lines(*[f"big {row} {WORDS}" for row in range(300)]))
    return folder


def test_a_second_run_finds_everything_and_another_place_counts_the_same(
    workspace: Workspace, many: Path, tmp_path: Path
) -> None:
    first = run(workspace, 5_000, web={"base": str(many)})
    assert run(replace(workspace, run_id="other"), 5_000, web={"base": str(many), "priority": 2}).run_id == first.run_id
    moved = many.rename(tmp_path / "moved")
    assert run(replace(workspace, run_id="other"), 5_000, web={"base": str(moved)}).run_id == first.run_id


def test_cut_files_give_the_same_documents_for_any_part_size(workspace: Workspace, many: Path) -> None:
    whole = documents(workspace, run(workspace, web={"base": str(many)}))
    for part_bytes in (4_000, 30_000):
        manifest = run(workspace, part_bytes, web={"base": str(many)})
        assert documents(workspace, manifest) == whole
        places = manifest.extra["places"]
        assert len(places) == len(manifest.parts)
        assert places[-1][0] == "999-big.jsonl"


def test_a_dump_of_a_wiki_gives_the_same_documents_for_any_part_size(workspace: Workspace, tmp_path: Path) -> None:
    page = "  <page><title>{}</title><ns>0</ns><revision><text>Text {}</text></revision></page>\n"
    groups = ["".join(page.format(n, n) for n in range(at, at + 50)) for at in range(0, 500, 50)]
    streams = [bz2.compress(piece.encode()) for piece in ("<mediawiki>\n", *groups, "</mediawiki>")]
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/dewiki-20240101-pages-articles-multistream.xml.bz2").write_bytes(b"".join(streams))
    whole, cut = (run(workspace, size, web={"base": str(tmp_path / "raw")}) for size in (1 << 20, 1_024))
    assert len(cut.parts) > len(whole.parts) == 1
    assert documents(workspace, cut) == documents(workspace, whole)
    assert whole.totals["rows_out"] == 500


def test_a_new_file_computes_its_own_unit_and_at_most_the_next_few(workspace: Workspace, many: Path) -> None:
    before = run(workspace, 5_000, web={"base": str(many)}, other={"base": str(many)})
    (many / "017-new.jsonl").write_bytes(json_lines("new"))
    after = run(workspace, 5_000, web={"base": str(many)}, other={"base": str(many), "exclude": ["017-new.jsonl"]})
    old = {part.key for part in before.parts}
    new = [part for part in after.parts if part.key not in old]
    assert 1 <= len(new) <= 6
    assert {part.source for part in new} == {"web"}
    assert len(documents(workspace, after)) == len(documents(workspace, before)) + 1


def test_two_sources_that_read_the_same_files_share_no_part(workspace: Workspace, many: Path) -> None:
    """Their documents differ by source and id, so one must not be found in place of the other."""
    manifest = run(workspace, 5_000, web={"base": str(many)}, other={"base": str(many)})
    assert len({part.key for part in manifest.parts}) == len(manifest.parts)
    for source in ("web", "other"):
        tables = [table for part in manifest.parts_of(source) for table in read_part(workspace.storage, part)]
        own = [row for table in tables for row in table.to_pylist()]
        assert {row["source"] for row in own} == {source}
        assert all(row["doc_id"].startswith(f"{source}:") for row in own)


class Interrupted(Exception):
    """Stands for a kill between two parts."""


def test_an_interrupted_run_repeats_no_finished_part(
    workspace: Workspace, many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = run(Workspace(Storage(str(tmp_path / "other"))), 5_000, web={"base": str(many)})
    read: Counter[str] = Counter()
    read_range = stage.read_range

    def counting(place: Storage, key: str, start: int, *rest: Any) -> Any:
        read[f"{key}#{start}"] += 1
        if read.total() == 30 and max(read.values()) == 1:
            raise Interrupted
        return read_range(place, key, start, *rest)

    monkeypatch.setattr(stage, "read_range", counting)
    with pytest.raises((Interrupted, DataError)):
        run(workspace, 5_000, web={"base": str(many)})
    finished = {info.key for info in workspace.storage.list_files("ingest/parts") if info.key.endswith(".json")}
    assert finished
    again = run(workspace, 5_000, web={"base": str(many)})
    assert again.digest == undisturbed.digest
    assert [part.sha256 for part in again.parts] == [part.sha256 for part in undisturbed.parts]
    assert read.most_common(1)[0][1] <= 2


def test_a_file_that_changed_since_it_was_listed_is_an_error(workspace: Workspace, many: Path) -> None:
    config = IngestConfig.model_validate({"sources": {"web": {"base": str(many)}}})
    files = list_inputs(config, workspace.storage)
    (many / "003.jsonl").write_bytes(json_lines("other"))
    with pytest.raises(DataError, match=r"003\.jsonl changed since the run listed its inputs"):
        ingest_sources(files, into=workspace, config=config)


def test_a_source_without_files_is_an_error(workspace: Workspace, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ingest\.sources\.web\.base"):
        run(workspace, web={"base": str(tmp_path / "nowhere")})


def test_large_documents_fill_row_groups_of_their_own(workspace: Workspace, tmp_path: Path) -> None:
    folder = tmp_path / "large"
    folder.mkdir()
    texts = ["a" + " " * 9_000_000 + "b", "word " * 10_000_000, "small", "line\n" * 1_000_000]
    (folder / "a.jsonl").write_bytes(json_lines(*texts))
    (folder / "b.txt").write_text(texts[0])
    manifest = run(workspace, 200 << 20, web={"base": str(folder)})
    assert [row["text"] for row in documents(workspace, manifest)] == [*texts, texts[0]]
    groups = [table.num_rows for part in manifest.parts for table in read_part(workspace.storage, part)]
    assert groups == [1, 1, 2, 1]


@pytest.mark.usefixtures("ray_cluster")
def test_two_workers_give_the_same_bytes(workspace: Workspace, many: Path, golden: Path, tmp_path: Path) -> None:
    sources = {"web": {"base": str(many)}, "golden": {"base": str(golden)}}
    serial = run(workspace, 20_000, **sources)
    spread = run(Workspace(Storage(str(tmp_path / "spread")), workers=2), 20_000, **sources)
    assert spread.digest == serial.digest
    assert [(part.key, part.sha256) for part in spread.parts] == [(part.key, part.sha256) for part in serial.parts]


def test_a_source_on_s3(workspace: Workspace, golden: Path, s3_root: str) -> None:
    names = ("cut.jsonl.gz", "table.parquet", "latin.txt")  # a stream, a file read in places, a whole file
    for name in names:
        Storage(s3_root).write_bytes(f"golden/{name}", (golden / name).read_bytes())
    on_s3 = run(workspace, web={"base": f"{s3_root}/golden"})
    here = run(workspace, web={"base": str(golden), "include": names})
    assert on_s3.reasons == here.reasons
    assert documents(workspace, on_s3) == documents(workspace, here)
