"""Drop lists: named documents go, whatever the rules say; what is no list is refused with its key."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tasks.dataset import Workspace
from tasks.documents import document_id
from tasks.errors import ConfigError, DataError, NotComputed
from tasks.manifest import Manifest
from tasks.parts import read_ledger, read_part
from tasks.select import select_documents
from tasks.select.drop_list import DROP_LIST, FOLDER, DropListConfig, read_drop_lists, write_drop_list
from tasks.select.rules import GopherQualityRules, SelectConfig
from tasks.signals import SignalsConfig, measure_signals
from tasks.storage import Storage

MakeDocuments = Callable[..., Manifest]

SENTENCE = "The old house by the river was green and small, and nobody of that time knew why it stood there at all. "
TEXTS = {"web": [SENTENCE * n for n in range(4, 10)], "code": [SENTENCE * n for n in range(4, 8)]}


@pytest.fixture
def documents(make_documents: MakeDocuments) -> Manifest:
    return make_documents(TEXTS)


@pytest.fixture
def signals(documents: Manifest, workspace: Workspace) -> Manifest:
    return measure_signals(documents, into=workspace, config=SignalsConfig())


def id_of(source: str, number: int) -> str:
    return document_id(source, f"file#{number}")


def ids_in(storage: Storage, manifest: Manifest) -> list[str]:
    return [
        name for part in manifest.parts for table in read_part(storage, part) for name in table["doc_id"].to_pylist()
    ]


def made(workspace: Workspace, *ids: str, **facts: Any) -> DropListConfig:
    return write_drop_list(workspace.storage, dict.fromkeys(ids, facts))


@pytest.mark.parametrize("enabled", [True, False])
def test_named_documents_are_dropped_with_the_reason(
    documents: Manifest, signals: Manifest, workspace: Workspace, enabled: bool
) -> None:
    lists = made(workspace, id_of("web", 1), id_of("web", 5), score=9.5), made(workspace, id_of("web", 1))
    config = SelectConfig(enabled=enabled, gopher_repetition=None, drop_lists=lists)
    without = select_documents(documents, signals, into=workspace, config=config.model_copy(update={"drop_lists": ()}))
    selected = select_documents(documents, signals, into=workspace, config=config)
    gone = {id_of("web", 1), id_of("web", 5)}
    assert ids_in(workspace.storage, selected) == [n for n in ids_in(workspace.storage, without) if n not in gone]
    ledger = [row for part in selected.parts for row in read_ledger(workspace.storage, part).to_pylist()]
    dropped = {row["doc_id"]: row for row in ledger if row["reason"] == DROP_LIST}
    assert set(dropped) == gone
    assert json.loads(dropped[id_of("web", 5)]["detail"]) == {"score": 9.5}
    assert dropped[id_of("web", 1)]["detail"] is None  # the later list counts
    assert selected.extra["drop_lists"] == {"listed": 2, "dropped": 2}
    assert "drop_lists" not in without.extra


def test_a_listed_document_is_judged_by_no_other_rule(
    documents: Manifest, signals: Manifest, workspace: Workspace
) -> None:
    strict = SelectConfig(gopher_quality=GopherQualityRules(min_words=1000), gopher_repetition=None)
    config = strict.model_copy(update={"drop_lists": (made(workspace, id_of("code", 0)),)})
    selected = select_documents(documents, signals, into=workspace, config=config)
    assert selected.reasons[DROP_LIST] == 1
    assert selected.totals["dropped"] == 10


def test_only_parts_of_named_sources_are_computed_again(
    documents: Manifest, signals: Manifest, workspace: Workspace
) -> None:
    plain = SelectConfig(enabled=False)
    first = select_documents(documents, signals, into=workspace, config=plain)
    config = plain.model_copy(update={"drop_lists": (made(workspace, id_of("web", 0), id_of("moon", 3)),)})
    dry = replace(workspace, dry=True)
    with pytest.raises(NotComputed, match="drop_lists changed"):
        select_documents(documents, signals, into=dry, config=config)
    second = select_documents(documents, signals, into=workspace, config=config)
    assert second.extra["drop_lists"] == {"listed": 2, "dropped": 1}  # one is of another corpus
    same = [one.key == other.key for one, other in zip(first.parts, second.parts, strict=True)]
    assert [part.source for part, is_same in zip(first.parts, same, strict=True) if not is_same] == ["web"] * 3
    copied = DropListConfig(path=workspace.storage.path(config.drop_lists[0].path.removeprefix("{root}/")))
    elsewhere = plain.model_copy(update={"drop_lists": (copied,)})  # the content counts, not the place
    assert select_documents(documents, signals, into=dry, config=elsewhere).reference == second.reference


def test_a_list_that_takes_nearly_all_is_stopped_by_the_guard_rail(
    make_documents: MakeDocuments, workspace: Workspace
) -> None:
    documents = make_documents(["text"] * 1000)
    signals = measure_signals(documents, into=workspace, config=SignalsConfig(enabled=False))
    lists = (made(workspace, *(id_of("web", n) for n in range(950))),)
    with pytest.raises(DataError, match=r"950 of 1000 documents of source 'web' would be dropped \(drop_list 950\)"):
        select_documents(documents, signals, into=workspace, config=SelectConfig(enabled=False, drop_lists=lists))


def test_a_list_bears_its_digest(workspace: Workspace) -> None:
    config = made(workspace, "web:b", "web:a", score=1)
    data = workspace.storage.read_bytes(config.path.removeprefix("{root}/"))
    assert data.splitlines() == [b'{"doc_id":"web:a","score":1}', b'{"doc_id":"web:b","score":1}']
    assert config.sha256 == hashlib.sha256(data).hexdigest()
    assert config.path == f"{{root}}/{FOLDER}/{config.sha256[:32]}.jsonl"
    assert made(workspace, "web:a", "web:b", score=1) == config
    assert read_drop_lists(workspace.storage, [config]) == {"web": {"web:a": {"score": 1}, "web:b": {"score": 1}}}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"id": "web:a"}', r"select\.drop_lists\[0\]\.path: .*: row 0 has no doc_id"),
        (b'{"doc_id": 5}', "row 0 has no doc_id"),
        (b'"web:a"', "row 0 has no doc_id"),
        (b"web:a", r"select\.drop_lists\[0\]\.path: the file is no valid jsonl"),
    ],
)
def test_what_is_no_list_is_refused(workspace: Workspace, data: bytes, message: str) -> None:
    workspace.storage.write_bytes("list.jsonl", data)
    with pytest.raises(ConfigError, match=message):
        read_drop_lists(workspace.storage, [DropListConfig(path="{root}/list.jsonl")])


def test_a_missing_or_other_file_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    storage = workspace.storage
    with pytest.raises(ConfigError, match=r"^select\.drop_lists\[0\]\.path: /no/list\.jsonl: no such file"):
        read_drop_lists(storage, [DropListConfig(path="/no/list.jsonl")])
    sound = made(workspace, "web:a")
    other = DropListConfig(path=sound.path, sha256="0" * 64)
    with pytest.raises(ConfigError, match=rf"^select\.drop_lists\[1\]\.sha256: .* has the digest {sound.sha256}"):
        read_drop_lists(storage, [sound, other])
    with pytest.raises(ValidationError, match="depends on the working folder"):
        DropListConfig(path="list.jsonl")
    with pytest.raises(ValidationError, match=r"by_source\.web\.drop_lists: cannot be set in by_source"):
        SelectConfig(by_source={"web": {"drop_lists": []}})
