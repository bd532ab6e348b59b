"""The tokenizer is the same bytes for the same text, in the proportions asked for, and does what its report says."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError
from tokenizers import Tokenizer

from tasks.dataset import Workspace
from tasks.errors import ConfigError, DataError
from tasks.manifest import Manifest
from tasks.mixture import MixConfig, split_documents
from tasks.parts import read_part
from tasks.splits import split_of
from tasks.vocabulary import (
    SAMPLE_SCHEMA,
    SpecialTokens,
    VocabularyConfig,
    take,
    train_bpe,
    train_tokenizer,
    wanted_bytes,
)
from tests.conftest import MakeDocuments

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "größe", "naïve", "東京", "mu"]
PROSE = [f"{n} " + " ".join(WORDS[(n * k) % len(WORDS)] for k in range(1, 40)) for n in range(60)]
CODE = [f"def f{n}(x):\n    return x + {n * 7}  # note {n}\n" * 4 for n in range(60)]
TEXTS = {"web": PROSE, "code": CODE}
CONFIG = VocabularyConfig(size=360, sample_bytes=6_000, held_out_bytes=2_000, sample_weights={"web": 3, "code": 1})
FILES = ["tokenizer.json", "report.json", "token_bytes.json"]


def make(workspace: Workspace, documents: Manifest, config: VocabularyConfig = CONFIG) -> Manifest:
    mix = split_documents(documents, into=workspace, config=MixConfig(held_out_ratio=0.2))
    return train_tokenizer(documents, mix, into=workspace, config=config)


def contents(workspace: Workspace, vocabulary: Manifest) -> dict[str, bytes]:
    return {name: vocabulary.read_file(workspace.storage, name) for name in FILES}


def test_files_report_and_ids_of_special_tokens(workspace: Workspace, make_documents: MakeDocuments) -> None:
    vocabulary = make(workspace, make_documents(TEXTS))
    assert [part.key for part in vocabulary.parts] == FILES
    assert vocabulary.extra["size"] == 360
    assert vocabulary.extra["special_tokens"] == {"bos": 0, "eos": 1, "pad": 2}
    files = contents(workspace, vocabulary)
    tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
    assert tokenizer.get_vocab_size() == len(json.loads(files["token_bytes.json"])) == 360
    assert tokenizer.encode("alpha").ids[0] == 0  # prompts begin with bos, as documents do
    assert tokenizer.decode(tokenizer.encode("größe 🙂\x00").ids) == "größe 🙂\x00"
    report = json.loads(files["report.json"])
    assert report["bytes_per_token"].keys() == {"web", "code"}
    assert report["comparison"]["bpe"]["unknown_ratio"] == 0
    assert len(report["misspelt"]) == 10


def test_the_sample_has_the_asked_proportions_to_the_byte(workspace: Workspace, make_documents: MakeDocuments) -> None:
    report = json.loads(contents(workspace, make(workspace, make_documents(TEXTS)))["report.json"])
    taken = {source: (row["wanted_bytes"], row["taken_bytes"]) for source, row in report["sample"].items()}
    assert taken["code"] == (1_500, 1_500)
    assert taken["web"][0] == 4_500
    assert 4_500 - 3 < taken["web"][1] <= 4_500  # a character cut in two is left out


def test_only_train_documents_are_sampled(workspace: Workspace, make_documents: MakeDocuments) -> None:
    documents = make_documents(TEXTS)
    make(workspace, documents, CONFIG.model_copy(update={"sample_bytes": 10**9, "held_out_bytes": 10**9}))
    rows = [
        row for part in documents.parts for table in read_part(workspace.storage, part) for row in table.to_pylist()
    ]
    split_by_text = {row["text"]: split_of(row["doc_id"], 0.2) for row in rows}
    samples = Path(workspace.storage.path("vocabulary.sample/parts")).glob("*.parquet")
    drawn = [row for path in samples for row in pa.parquet.read_table(path).to_pylist()]
    assert sorted(row["text"] for row in drawn) == sorted(PROSE + CODE)
    assert all(row["split"] == split_by_text[row["text"]] for row in drawn)


def test_the_same_text_in_other_parts_gives_the_same_bytes(workspace: Workspace, make_documents: MakeDocuments) -> None:
    one = contents(workspace, make(workspace, make_documents(TEXTS, parts=1)))
    assert contents(workspace, make(workspace, make_documents(TEXTS, parts=7))) == one


def test_a_second_call_finds_it_and_an_interrupted_one_repeats_no_part(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    documents = make_documents(TEXTS)
    first = make(workspace, documents)
    assert make(workspace, documents) == first
    workspace.storage.delete(first.file_path("manifest.json"))
    [lost, *_] = workspace.storage.list_files("vocabulary.model/parts")
    kept = {info.key: info.modified for info in workspace.storage.list_files("vocabulary.sample/parts")}
    for info in workspace.storage.list_files("vocabulary.model/parts"):
        workspace.storage.delete(info.key)
    again = make(workspace, documents)
    assert again.digest == first.digest
    assert workspace.storage.exists(lost.key)
    assert {info.key: info.modified for info in workspace.storage.list_files("vocabulary.sample/parts")} == kept


def test_a_source_that_is_too_small_gives_all_it_has(workspace: Workspace, make_documents: MakeDocuments) -> None:
    config = CONFIG.model_copy(update={"sample_bytes": 80_000})
    report = json.loads(contents(workspace, make(workspace, make_documents(TEXTS), config))["report.json"])
    assert report["sample"]["web"]["taken_bytes"] < report["sample"]["web"]["wanted_bytes"] == 60_000


def test_weights_decide_the_merges_and_nothing_else_does(workspace: Workspace, make_documents: MakeDocuments) -> None:
    documents = make_documents(TEXTS)
    only_code = make(workspace, documents, CONFIG.model_copy(update={"sample_weights": {"code": 1}}))
    vocab = json.loads(contents(workspace, only_code)["tokenizer.json"])["model"]["vocab"]
    assert "Ġreturn" in vocab
    assert not {"alpha", "Ġalpha", "Ġgamma"} & vocab.keys()


def test_bytes_wanted_follow_weights_or_sizes() -> None:
    sizes = {name: {"train": {"bytes": n}, "held_out": {"bytes": 1}} for name, n in (("a", 300), ("b", 100))}
    config = VocabularyConfig(sample_bytes=1_000, held_out_bytes=50)
    assert wanted_bytes(sizes, config)["a"] == {"train": 750, "held_out": 50}
    weighted = config.model_copy(update={"sample_weights": {"b": 2.0}})
    assert [row["train"] for row in wanted_bytes(sizes, weighted).values()] == [0, 1_000]
    with pytest.raises(ConfigError, match=r"sample_weights: no source \['c'\]"):
        wanted_bytes(sizes, config.model_copy(update={"sample_weights": {"c": 1.0}}))
    with pytest.raises(DataError, match="no text"):
        wanted_bytes({"a": {"train": {"bytes": 0}, "held_out": {"bytes": 0}}}, config)


def test_texts_are_taken_in_the_order_of_their_hash_and_the_last_is_cut() -> None:
    rows = [
        ("a", "train", 3, "third"),
        ("a", "train", 1, "größe"),
        ("a", "held_out", 2, "other"),
        ("b", "train", 0, "b"),
    ]
    columns = [
        pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SAMPLE_SCHEMA, strict=True)
    ]
    sample = pa.table(columns, schema=SAMPLE_SCHEMA)
    assert take(sample, "a", "train", 100) == ["größe", "third"]
    assert take(sample, "a", "train", 9) == ["größe", "th"]
    assert take(sample, "a", "train", 3) == ["gr"]
    assert take(sample, "a", "train", 0) == []


def test_a_long_run_is_learnt_in_cuts_and_encoded_whole() -> None:
    texts = ["river stone " * 50, " " * 300_000 + "x", "\n" * 300_000, "中" * 100_000]  # whole: minutes each
    tokenizer = train_bpe(texts, VocabularyConfig(size=320))
    assert tokenizer.decode(tokenizer.encode(texts[1], add_special_tokens=False).ids) == texts[1]
    pieces = tokenizer.pre_tokenizer.pre_tokenize_str(texts[2])
    assert [end - start for _, (start, end) in pieces] == [300_000]


def test_long_rulers_do_not_become_pieces() -> None:
    vocab = train_bpe([("-" * 64 + "\n") * 20, ("-" * 128 + "\n") * 20], VocabularyConfig(size=600)).get_vocab()
    assert 32 <= max(len(piece) for piece in vocab) <= 64


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"size": 258}, "at least 259 are needed"),
        ({"size": 259, "special_tokens": {"more": ["<|tool|>"]}}, "at least 260"),
        ({"sample_weights": {"web": 0}}, "sum to nothing"),
        ({"sample_weights": {"web": -1}}, "greater than or equal to 0"),
        ({"pattern": "gpt5"}, "cl100k"),
        ({"special_tokens": {"bos": "<|eos|>"}}, "must differ"),
        ({"special_tokens": {"pad": ""}}, "at least 1 character"),
        ({"seed": 1}, "Extra inputs"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        VocabularyConfig.model_validate(wrong)
    assert SpecialTokens().more == ()
