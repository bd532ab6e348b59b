"""Rows hold every token of every document once, with its place; nothing else moves them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError
from tokenizers import Tokenizer

from tasks.dataset import Workspace
from tasks.encoding import Encoder, without_special_tokens
from tasks.errors import ConfigError, DataError
from tasks.manifest import Manifest
from tasks.mixture import MixConfig, split_documents
from tasks.pack import CHECKED_CHARS, PackConfig, PackRequest, check_sample, join_parts, pack_schema, pack_source
from tasks.parts import Part, read_ledger, read_part
from tasks.splits import split_of
from tasks.vocabulary import VocabularyConfig, train_tokenizer
from tests.conftest import MakeDocuments

RATIO = 0.25
TEXTS = {
    "web": [f"document {n}: " + "lorem ipsum dolor sit amet " * (n % 9) for n in range(40)]
    + ["", "\x00\n \t", "größe 🙂 <|eos|><|bos|>", "x" * 700],
    "code": [f"def f{n}():\n    return {n}\n" * (1 + n % 3) for n in range(12)],
}
VOCABULARY = VocabularyConfig(size=300, sample_bytes=20_000, sample_weights={"web": 1})
WEB = PackRequest(source="web", sequence_length=32)


class Inputs:
    """Documents, mix and vocabulary on one root, and packs made of them."""

    def __init__(self, into: Workspace, documents: Manifest, vocabulary: VocabularyConfig = VOCABULARY) -> None:
        self.into = into
        self.documents = documents
        self.mix = split_documents(documents, into=into, config=MixConfig(held_out_ratio=RATIO))
        self.vocabulary = train_tokenizer(documents, self.mix, into=into, config=vocabulary)
        data = self.vocabulary.read_file(into.storage, "tokenizer.json")
        self.tokenizer = Tokenizer.from_str(without_special_tokens(data))

    def pack(self, request: PackRequest = WEB, **config: Any) -> Manifest:
        return pack_source(
            self.documents, self.mix, self.vocabulary, into=self.into, config=PackConfig(**config), request=request
        )

    def rows(self, pack: Manifest) -> list[dict[str, Any]]:
        tables = [table for part in pack.parts for table in read_part(self.into.storage, part)]
        return [row for table in tables for row in table.to_pylist()]

    def expected(self, source: str, split: str = "train") -> dict[str, list[int]]:
        """bos + HF's ids + eos of each document of the split."""
        tables = [table for part in self.documents.parts_of(source) for table in read_part(self.into.storage, part)]
        rows = [row for table in tables for row in table.to_pylist() if split_of(row["doc_id"], RATIO) == split]
        return {row["doc_id"]: [0, *self.tokenizer.encode(row["text"]).ids, 1] for row in rows}


@pytest.fixture
def inputs(workspace: Workspace, make_documents: MakeDocuments) -> Inputs:
    return Inputs(workspace, make_documents(TEXTS))


def documents_in(rows: list[dict[str, Any]], pad: int = 2) -> dict[str, list[int]]:
    """Documents put together again from rows; asserts that rows are filled from their start and padded after."""
    pieces: dict[str, list[tuple[int, list[int]]]] = {}
    for row in rows:
        ends = [*row["document_starts"][1:], row["num_tokens"]]
        assert row["document_starts"][0] == 0
        assert set(row["input_ids"][row["num_tokens"] :]) <= {pad}
        places = zip(row["doc_ids"], row["document_starts"], ends, row["document_offsets"], strict=True)
        for doc_id, start, end, offset in places:
            assert end > start
            pieces.setdefault(doc_id, []).append((offset, row["input_ids"][start:end]))
    joined = {}
    for doc_id, own in pieces.items():
        joined[doc_id] = [token for offset, ids in sorted(own) for token in ids]
        assert [offset for offset, _ in sorted(own)] == [
            sum(len(ids) for _, ids in sorted(own)[:n]) for n in range(len(own))
        ]
    return joined


@pytest.mark.parametrize("strategy", ["best_fit", "concat"])
@pytest.mark.parametrize("split", ["train", "held_out"])
def test_rows_hold_each_document_of_the_split_as_bos_ids_eos(inputs: Inputs, strategy: str, split: Any) -> None:
    pack = inputs.pack(PackRequest(source="web", split=split, sequence_length=32), strategy=strategy)
    rows = inputs.rows(pack)
    expected = inputs.expected("web", split)
    assert documents_in(rows) == expected
    tokens = sum(map(len, expected.values()))
    assert pack.extra["tokens"] == sum(row["num_tokens"] for row in rows) == tokens
    assert pack.extra["padding"] == len(rows) * 32 - tokens
    assert (pack.extra["rows"], pack.extra["documents"]) == (len(rows), len(expected))
    assert pack.extra["utilisation"] == tokens / (len(rows) * 32)
    assert pack.extra["checked"] > 0


def test_documents_that_fit_stay_whole_and_longer_ones_are_cut_at_l(inputs: Inputs) -> None:
    lengths = {doc_id: len(ids) for doc_id, ids in inputs.expected("web").items()}
    for row in inputs.rows(inputs.pack()):
        for doc_id, offset in zip(row["doc_ids"], row["document_offsets"], strict=True):
            assert offset % 32 == 0
            assert offset == 0 or lengths[doc_id] > 32
            start = row["document_starts"][row["doc_ids"].index(doc_id)]
            assert (row["input_ids"][start] == 0) == (offset == 0)  # a continuation has no bos


def test_special_tokens_never_come_from_text(inputs: Inputs) -> None:
    for row in inputs.rows(inputs.pack()):
        ids = row["input_ids"][: row["num_tokens"]]
        begins = [s for s, o in zip(row["document_starts"], row["document_offsets"], strict=True) if o == 0]
        assert [place for place, token in enumerate(ids) if token == 0] == begins
        assert 2 not in ids
        assert all(place + 1 in {*row["document_starts"], len(ids)} for place, token in enumerate(ids) if token == 1)


def test_row_groups_hold_exactly_256_rows(workspace: Workspace, make_documents: MakeDocuments) -> None:
    inputs = Inputs(workspace, make_documents({"web": ["some words here " * 40] * 60}, parts=1))
    [part] = inputs.pack(PackRequest(source="web", sequence_length=8)).parts
    metadata = pq.ParquetFile(workspace.storage.path(part.path)).metadata
    sizes = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
    assert len(sizes) > 2
    assert sizes[:-1] == [256] * (len(sizes) - 1)
    assert 1 <= sizes[-1] <= 256


@pytest.mark.parametrize(("size", "kind"), [(1 << 16, "uint16"), ((1 << 16) + 1, "uint32")])
def test_ids_are_as_wide_as_the_vocabulary_needs(size: int, kind: str) -> None:
    schema = pack_schema(16, size)
    assert str(schema.field("input_ids").type.value_type) == kind
    assert schema.field("input_ids").type.list_size == 16
    assert schema.names == ["input_ids", "doc_ids", "document_starts", "document_offsets", "num_tokens"]


def test_short_documents_are_left_out_and_named(inputs: Inputs) -> None:
    request = WEB.model_copy(update={"min_document_tokens": 60})
    pack = inputs.pack(request)
    expected = inputs.expected("web")
    long = {doc_id: ids for doc_id, ids in expected.items() if len(ids) >= 60}
    assert documents_in(inputs.rows(pack)) == long
    ledger = [row for part in pack.parts for row in read_ledger(inputs.into.storage, part).to_pylist()]
    short = {doc_id: (float(len(ids)), 60.0) for doc_id, ids in expected.items() if len(ids) < 60}
    assert {row["doc_id"]: (row["value"], row["threshold"]) for row in ledger} == short
    assert pack.reasons == {"below_min_document_tokens": len(short)}
    assert inputs.pack().fingerprint != pack.fingerprint


def test_a_source_without_documents_in_the_split_gives_an_empty_pack(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    inputs = Inputs(workspace, make_documents({"web": TEXTS["web"], "code": TEXTS["code"][:1]}))
    pack = inputs.pack(PackRequest(source="code", split="held_out", sequence_length=32))
    other = inputs.pack(PackRequest(source="code", sequence_length=32))
    assert sorted((pack.extra["rows"], other.extra["rows"])) == [0, 1]
    assert {pack.extra["utilisation"], other.extra["padding"] > 0} == {0.0, True}
    with pytest.raises(ConfigError, match=r"no source 'docs'; sources are \['code', 'web'\]"):
        inputs.pack(PackRequest(source="docs", sequence_length=32))


def test_weights_and_another_source_change_no_pack(workspace: Workspace, make_documents: MakeDocuments) -> None:
    alone = Inputs(workspace, make_documents({"web": TEXTS["web"]}))
    before = alone.pack()
    both = Inputs(workspace, make_documents(TEXTS))  # the tokenizer's sample comes from web alone, so it is the same
    files = {info.key for info in workspace.storage.list_files("pack/parts")}
    after = both.pack()
    assert alone.vocabulary.parts[0].digest == both.vocabulary.parts[0].digest
    assert (after.digest, after.parts) == (before.digest, before.parts)
    assert {info.key for info in workspace.storage.list_files("pack/parts")} == files


def test_a_second_call_finds_it_and_a_lost_part_is_made_again_alike(inputs: Inputs) -> None:
    first = inputs.pack(part_bytes=1_000)
    assert len(first.parts) > 1
    assert inputs.pack(part_bytes=1_000) == first
    storage = inputs.into.storage
    contents = [storage.read_bytes(part.path) for part in first.parts]
    storage.delete(first.file_path("manifest.json"))
    storage.delete(first.parts[1].receipt_path)
    storage.delete(first.parts[1].path)
    again = inputs.pack(part_bytes=1_000)
    assert again.parts == first.parts
    assert [storage.read_bytes(part.path) for part in again.parts] == contents


def test_two_workers_give_the_bytes_of_one(tmp_path: Path, workspace: Workspace, make_documents: MakeDocuments) -> None:
    """All three stages, on Ray: same keys, same file hashes."""
    storage = type(workspace.storage)(str(tmp_path / "other"))
    serial = Inputs(workspace, make_documents(TEXTS))
    other = Workspace(storage, run_id="ray", workers=2)
    parallel = Inputs(other, make_documents(TEXTS, into=Workspace(storage)))
    assert parallel.mix.parts == serial.mix.parts
    assert parallel.vocabulary.parts == serial.vocabulary.parts
    assert parallel.pack(part_bytes=1_000).parts == serial.pack(part_bytes=1_000).parts


def test_every_row_group_is_compared_with_hf_tokenizers(inputs: Inputs) -> None:
    encoder = Encoder(inputs.vocabulary.read_file(inputs.into.storage, "tokenizer.json"), "gigatoken")
    texts = ["one", "two words", "x" * (CHECKED_CHARS + 1), "three more words"]
    ids, lengths = encoder.encode(texts)
    assert check_sample(encoder, ["a", "b", "c", "d"], texts, ids, lengths) == 3  # not the long one
    wrong = ids.copy()
    wrong[-1] += 1
    with pytest.raises(DataError, match=r"^d: gigatoken and HF tokenizers disagree"):
        check_sample(encoder, ["a", "b", "c", "d"], texts, wrong, lengths)


def test_packs_follow_the_pattern_that_only_hf_knows(workspace: Workspace, make_documents: MakeDocuments) -> None:
    inputs = Inputs(workspace, make_documents(TEXTS))
    data = json.loads(inputs.vocabulary.read_file(workspace.storage, "tokenizer.json"))
    data["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\w+|\s|[^\w\s]"
    raw = json.dumps(data).encode()
    foreign = workspace.dataset(
        "vocabulary", None, inputs={}, module="tasks.vocabulary", external={"from": "elsewhere"}
    )
    inputs.vocabulary = foreign.publish_files({"tokenizer.json": raw}, extra=inputs.vocabulary.extra)
    inputs.tokenizer = Tokenizer.from_str(without_special_tokens(raw))
    pack = inputs.pack()
    assert documents_in(inputs.rows(pack)) == inputs.expected("web")


def parts_of(digests: list[int], sizes: list[int]) -> list[tuple[Part, Part, Any]]:
    parts = [Part("x", str(n), 1, 9, "", f"{digest:08x}", "web") for n, digest in enumerate(digests)]
    return [(part, part, {"train": size, "held_out": 1}) for part, size in zip(parts, sizes, strict=True)]


def names(joined: list[list[Part]]) -> list[str]:
    return ["".join(part.key for part in unit[::2]) for unit in joined]


def test_parts_are_joined_until_they_hold_enough_or_may_end_early() -> None:
    assert names(join_parts(parts_of([1] * 6, [40] * 6), "train", 100)) == ["012", "345"]
    assert names(join_parts(parts_of([1, 4, 1, 1], [40] * 4), "train", 100)) == ["01", "23"]
    assert names(join_parts(parts_of([4, 4, 4], [20] * 3), "train", 100)) == ["01", "2"]
    assert names(join_parts(parts_of([1, 1], [500, 1]), "train", 100)) == ["0", "1"]
    assert names(join_parts(parts_of([1] * 3, [500] * 3), "held_out", 100)) == ["012"]
    assert join_parts([], "train", 100) == []


def test_a_new_part_moves_its_own_pack_part_and_a_few_after_it() -> None:
    moved = []
    for seed in range(100):
        random = np.random.default_rng(seed)
        digests, place = random.integers(0, 2**31, 60).tolist(), int(random.integers(60))
        before = contents_of(digests)
        after = contents_of([*digests[:place], 2**31 + seed, *digests[place:]])
        same = [unit in before for unit in after]
        first, end = same.index(False), len(same) - same[::-1].index(False)
        assert after[:first] == before[:first]
        assert after[end:] == before[len(before) - len(after) + end :]
        moved.append(end - first)
    assert np.mean(moved) < 3
    assert max(moved) < 10


def contents_of(digests: list[int]) -> list[list[str]]:
    """What each pack part is made of, for document parts that hold a little over a quarter of one."""
    return [[part.digest for part in unit] for unit in join_parts(parts_of(digests, [30] * len(digests)), "train", 100)]


@pytest.mark.parametrize(
    ("model", "wrong"),
    [
        (PackConfig, {"strategy": "first_fit"}),
        (PackConfig, {"part_bytes": 0}),
        (PackRequest, {"source": "web", "sequence_length": 0}),
        (PackRequest, {"source": "web", "sequence_length": 8, "split": "test"}),
        (PackRequest, {"source": "web", "sequence_length": 8, "min_document_tokens": -1}),
        (PackRequest, {"source": "", "sequence_length": 8}),
    ],
)
def test_wrong_settings_are_refused(model: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        model.model_validate(wrong)
