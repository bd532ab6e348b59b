"""The stage: files by kind, the same for any workers and order, trained again only for what changed; wrong settings."""

import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tasks import classifiers
from tasks.classifiers import train_classifiers, train_part
from tasks.classifiers.settings import ClassifiersConfig, LabelledConfig, PerplexityConfig, read_files, read_labelled
from tasks.dataset import Workspace
from tasks.errors import ConfigError, DataError, NotComputed
from tasks.manifest import Manifest
from tasks.parts import PartWriter, Unit, read_part
from tasks.signals import SignalsConfig, measure_signals
from tasks.storage import Storage
from tests.conftest import MakeDocuments

Train = Callable[..., Manifest]
GOOD, BAD, BOTH = "theorem history river", "buy now cheap", "the of and to in"
SMALL = {"buckets": 1024, "sample_bytes": 100_000}
QUALITY = {"positive": ["books"], "negative": ["web"], **SMALL}
PERPLEXITY = {"sources": ["books", "notes"], "sample_bytes": 50_000}


def draw(words: str, count: int, seed: int) -> list[str]:
    generator = random.Random(seed)
    pool = words.split() + BOTH.split() * 2
    return [" ".join(generator.choices(pool, k=generator.randint(5, 40))) for _ in range(count)]


TEXTS = {"books": draw(GOOD, 60, 1), "notes": draw(GOOD, 30, 2), "web": draw(BAD, 70, 3)}
LABELLED = [{"text": text, "label": "ok"} for text in TEXTS["books"]] + [
    {"text": text, "label": "toxic"} for text in TEXTS["web"]
]


@pytest.fixture
def labelled(tmp_path: Path) -> dict[str, Any]:
    """The settings of a toxicity classifier whose files exist."""
    (tmp_path / "labelled.jsonl").write_text("".join(json.dumps(row) + "\n" for row in LABELLED))
    (tmp_path / "list.txt").write_text("cheap\nbuy now\n")
    set_ = {"path": str(tmp_path / "labelled.jsonl"), "positive": ["toxic"]}
    return {"labelled": set_, "word_lists": [{"path": str(tmp_path / "list.txt")}], "buckets": 1024}


@pytest.fixture
def train(workspace: Workspace, make_documents: MakeDocuments) -> Train:
    """train(texts=TEXTS, into=..., **section): the dataset."""

    def run(texts: Any = TEXTS, into: Workspace = workspace, parts: int = 3, **section: Any) -> Manifest:
        documents = make_documents(texts, into=into, parts=parts)
        return train_classifiers(documents, into=into, config=ClassifiersConfig.model_validate(section))

    return run


def digests(manifest: Manifest) -> dict[str, str]:
    return {part.key: part.sha256 for part in manifest.parts}


def scores(into: Workspace, documents: Manifest, classifiers: Manifest | None) -> list[dict[str, Any]]:
    signals = measure_signals(documents, classifiers, into=into, config=SignalsConfig())
    return [row for part in signals.parts for table in read_part(into.storage, part) for row in table.to_pylist()]


def test_files_reports_and_signals(
    train: Train, workspace: Workspace, make_documents: MakeDocuments, labelled: dict[str, Any]
) -> None:
    manifest = train(quality=QUALITY, toxicity=labelled, perplexity=PERPLEXITY)
    assert set(digests(manifest)) == {
        *("quality.safetensors", "toxicity.safetensors", "perplexity.safetensors"), "listed_words.json",
    }  # fmt: skip
    assert manifest.extra["quality"]["auc"] > 0.9
    assert manifest.extra["toxicity"]["texts"] == {"positive": 70, "negative": 60}
    assert manifest.extra["perplexity"]["texts"] == 90
    assert manifest.extra["listed_words"]["entries"] == 2
    rows = scores(workspace, make_documents(TEXTS), manifest)
    means = {
        (source, name): sum(row[name] for row in rows if row["doc_id"].startswith(source)) / len(TEXTS[source])
        for source in ("books", "web")
        for name in ("quality_score", "toxicity_score", "perplexity", "num_listed_words")
    }
    assert means["books", "quality_score"] > 0.7 > 0.3 > means["web", "quality_score"]
    assert means["books", "toxicity_score"] < 0.3 < 0.7 < means["web", "toxicity_score"]
    assert means["books", "perplexity"] < means["web", "perplexity"]
    assert means["books", "num_listed_words"] == 0 < means["web", "num_listed_words"]
    assert train(quality=QUALITY, toxicity=labelled, perplexity=PERPLEXITY) == manifest


def test_without_classifiers_the_signals_are_null_and_keys_do_not_change(
    train: Train, workspace: Workspace, make_documents: MakeDocuments
) -> None:
    documents = make_documents(TEXTS)
    rows = scores(workspace, documents, None)
    assert {row["quality_score"] for row in rows} == {row["num_listed_words"] for row in rows} == {None}
    off = SignalsConfig(by_source={"web": {"enabled": False}})
    plain = measure_signals(documents, into=workspace, config=off)
    scored = measure_signals(documents, train(quality=QUALITY), into=workspace, config=off)
    same = {part.source for part in plain.parts} - {
        part.source for part in scored.parts if part.key not in {own.key for own in plain.parts}
    }
    assert same == {"web"}  # a source that is not measured does not depend on the classifiers


def test_parts_and_order_of_sources_do_not_matter(train: Train, tmp_path: Path) -> None:
    once = train(quality=QUALITY, perplexity=PERPLEXITY)
    for number, (texts, parts) in enumerate(((dict(reversed(TEXTS.items())), 3), (TEXTS, 1))):
        into = Workspace(Storage(str(tmp_path / f"lake-{number}")))
        other = train(texts, into=into, parts=parts, quality=QUALITY, perplexity=PERPLEXITY)
        assert digests(other) == digests(once)


@pytest.mark.usefixtures("ray_cluster")
def test_workers_do_not_matter(train: Train, tmp_path: Path, labelled: dict[str, Any]) -> None:
    section = {"quality": QUALITY, "perplexity": PERPLEXITY, "toxicity": labelled}
    once = train(**section)
    for workers in (1, 2, 4):
        into = Workspace(Storage(str(tmp_path / f"lake-{workers}")), workers=workers)
        assert digests(train(into=into, **section)) == digests(once)


def test_an_interrupted_stage_goes_on_where_it_was(
    train: Train, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the sample and the first model: neither is made again, and the files are the same."""
    section = {"quality": QUALITY, "perplexity": PERPLEXITY}
    calm = digests(train(into=Workspace(Storage(str(tmp_path / "calm"))), **section))
    finished: list[str] = []

    def killed(unit: Unit, writer: PartWriter) -> None:
        if isinstance(unit.config, PerplexityConfig):
            raise KeyboardInterrupt
        train_part(unit, writer)

    def noted(unit: Unit, writer: PartWriter) -> None:
        finished.append(type(unit.config).__name__)
        train_part(unit, writer)

    monkeypatch.setattr(classifiers, "train_part", killed)
    with pytest.raises(KeyboardInterrupt):
        train(**section)
    before = {info.key: info.modified for info in workspace.storage.list_files("classifiers.sample/parts")}
    monkeypatch.setattr(classifiers, "train_part", noted)
    assert digests(train(**section)) == calm
    assert finished == ["PerplexityConfig"]
    after = {info.key: info.modified for info in workspace.storage.list_files("classifiers.sample/parts")}
    assert before
    assert before == after


def test_only_what_changed_is_trained_again(train: Train, workspace: Workspace, make_documents: MakeDocuments) -> None:
    once = train(quality=QUALITY, perplexity=PERPLEXITY)
    other_source = train(TEXTS | {"more": ["a text of another source"]}, quality=QUALITY, perplexity=PERPLEXITY)
    assert other_source.fingerprint != once.fingerprint
    assert other_source.digest == once.digest  # so no document is scored again
    with pytest.raises(NotComputed) as missing:
        train(into=replace(workspace, dry=True), quality=QUALITY | {"ngram_words": 1}, perplexity=PERPLEXITY)
    assert missing.value.cause == "quality.ngram_words: 2 -> 1"
    other_setting = train(quality=QUALITY | {"ngram_words": 1}, perplexity=PERPLEXITY)
    assert digests(other_setting)["perplexity.safetensors"] == digests(once)["perplexity.safetensors"]
    assert digests(other_setting)["quality.safetensors"] != digests(once)["quality.safetensors"]

    documents = make_documents(TEXTS)
    measure_signals(documents, once, into=workspace, config=SignalsConfig())
    with pytest.raises(NotComputed) as missing:
        measure_signals(documents, other_setting, into=replace(workspace, dry=True), config=SignalsConfig())
    assert missing.value.cause == "input classifiers changed"


def test_a_changed_labelled_set_is_named(train: Train, workspace: Workspace, labelled: dict[str, Any]) -> None:
    train(toxicity=labelled)
    Path(labelled["labelled"]["path"]).write_text("".join(json.dumps(row) + "\n" for row in LABELLED[1:]))
    with pytest.raises(NotComputed) as missing:
        train(into=replace(workspace, dry=True), toxicity=labelled)
    assert missing.value.cause == "toxicity.labelled changed"


def test_a_trained_file_of_an_earlier_run_is_taken(train: Train, workspace: Workspace, tmp_path: Path) -> None:
    once = train(quality=QUALITY)
    data = once.read_file(workspace.storage, "quality.safetensors")
    (tmp_path / "mine.safetensors").write_bytes(data)
    taken = {"path": str(tmp_path / "mine.safetensors"), "sha256": hashlib.sha256(data).hexdigest()}
    manifest = train(quality=taken)
    assert digests(manifest) == digests(once)
    assert manifest.digest == once.digest
    (tmp_path / "moved.safetensors").write_bytes(data)
    assert train(quality=taken | {"path": str(tmp_path / "moved.safetensors")}) == manifest
    with pytest.raises(ConfigError, match=r"classifiers\.toxicity\.path: .* holds a quality classifier"):
        train(toxicity=taken)
    with pytest.raises(ConfigError, match=r"classifiers\.quality\.sha256: .* has [0-9a-f]{64}, not 0000"):
        train(quality=taken | {"sha256": "0" * 64})
    with pytest.raises(ConfigError, match=r"classifiers\.quality\.path: .*none\.safetensors: no such file"):
        train(quality=taken | {"path": str(tmp_path / "none.safetensors")})


def test_a_source_without_documents_is_an_error(train: Train) -> None:
    with pytest.raises(DataError, match="source 'books' has no documents to learn from"):
        train({"web": TEXTS["web"], "notes": TEXTS["notes"]}, quality=QUALITY)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"quality": {"positive": ["a"], "negative": ["b", "a"]}}, r"quality[\s\S]*source 'a' is both"),
        ({"quality": {"positive": ["a"]}}, "name positive and negative sources"),
        ({"quality": QUALITY | {"buckets": 3000}}, "a power of two, such as 4096"),
        ({"quality": {"path": "/x"}}, "path and sha256 belong together"),
        ({"quality": QUALITY | {"path": "/x", "sha256": "0" * 64}}, "positive can't be given beside it"),
        ({"quality": {"path": "x"}}, "depends on the working folder"),
        ({"quality": {"path": "/x", "sha256": "ABC"}}, r"quality\.sha256"),
        ({"toxicity": {}}, "name a labelled set, word lists"),
        ({"toxicity": {"labelled": {"path": "/x", "positive": []}}}, r"toxicity\.labelled\.positive"),
        ({"perplexity": {}}, "name sources"),
        ({"perplexity": {"sources": ["a"], "order": 9}}, r"perplexity\.order"),
        ({"qualty": {}}, "qualty"),
    ],
)
def test_wrong_settings_are_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ClassifiersConfig.model_validate(section)


@pytest.mark.parametrize(
    ("changed", "data", "message"),
    [
        ({"label": "lable"}, b'{"text": "a", "label": "x"}', r"row 0 has no column 'lable'; it has: label, text"),
        ({}, b'{"text": "a", "label": "ok"}\n{"text": "b", "label": "fine"}', r"one class .*labels: 'ok' 1, 'fine' 1"),
        ({}, b'{"text": "a", "label": "Toxic"}', r"one class"),
        ({}, b'{"text": " ", "label": "toxic"}', r"labels: none"),
        ({"format": "csv"}, b"\xff", "no valid csv"),
    ],
)
def test_a_wrong_labelled_set_is_refused(changed: dict[str, Any], data: bytes, message: str) -> None:
    config = LabelledConfig.model_validate({"path": "/set.jsonl", "positive": ["toxic"]} | changed)
    with pytest.raises(DataError, match=r"classifiers\.toxicity\.labelled.*" + message):
        read_labelled(data, config)


def test_labels_may_be_numbers_and_booleans() -> None:
    rows: list[dict[str, Any]] = [{"text": "a", "label": 1}, {"text": "b", "label": True}, {"text": "c", "label": "0"}]
    data = "\n".join(json.dumps(row) for row in [*rows, {"text": None, "label": 1}]).encode()
    config = LabelledConfig(path="/set.jsonl", positive=(1, True))
    assert [(text, is_positive) for _, text, is_positive in read_labelled(data, config)] == [
        ("a", True), ("b", True), ("c", False),
    ]  # fmt: skip


def test_a_missing_list_is_named_with_its_place(workspace: Workspace) -> None:
    config = ClassifiersConfig.model_validate({"toxicity": {"word_lists": [{"path": "/no/list.txt"}]}})
    with pytest.raises(
        ConfigError, match=r"^classifiers\.toxicity\.word_lists\[0\]\.path: /no/list\.txt: no such file"
    ):
        read_files(workspace.storage, config)
