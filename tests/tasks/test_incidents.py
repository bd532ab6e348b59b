"""Poison in real documents: training stumbles, names them, they are excluded, and the next run has none of them."""

import json
import math
import random
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from flows.cli import app
from model.job import Settings, order_of
from tasks.dataset import Workspace
from tasks.documents import DOCUMENT_SCHEMA
from tasks.errors import ConfigError, NotComputed
from tasks.incidents import (
    Incident,
    by_document,
    documents_of,
    exclude,
    in_common,
    incidents_of,
    is_named,
    signals_behind,
)
from tasks.manifest import Manifest
from tasks.mixture import MixConfig, split_documents
from tasks.pack import PackConfig, PackRequest, pack_source
from tasks.parts import read_ledger, read_part
from tasks.recipe import Recipe
from tasks.report import write_report
from tasks.runs import DatasetLine, RunRecord
from tasks.select import select_documents
from tasks.select.drop_list import DROP_LIST
from tasks.select.rules import SelectConfig
from tasks.signals import SignalsConfig, measure_signals
from tasks.storage import Storage
from tasks.trace import Span, TracedRow, traced_rows
from tasks.train import pack_of, train_phase
from tasks.vocabulary import VocabularyConfig, train_tokenizer
from tests.conftest import document_rows, write_rows
from tests.tasks.conftest import WORDS

LENGTH, ROWS, STEPS, FIRST = 64, 8, 120, 90  # the poisoned steps are FIRST to FIRST + 3, counted from 1
CHARS = LENGTH - 2  # a document with bos and eos fills a row, since each byte is a token
POISON = "Z" * CHARS
COUNTS = {"web": 900, "code": 420}
RECIPE = {
    "name": "poisoned",
    "ingest": {"sources": {source: {"base": f"/raw/{source}"} for source in COUNTS}},
    "vocabulary": {"size": 259},
    "model": {"size": "tiny", "num_layers": 1, "width": 32, "num_heads": 2, "num_kv_heads": 1, "mlp_width": 64},
    "train": {
        "precision": "fp32",
        "stability": {
            "window_steps": 32, "min_window_steps": 16, "distance_steps": 8, "calm_steps": 10, "checkpoint_steps": 10,
        },
        "phases": [
            {
                "name": "main", "tokens": STEPS * ROWS * LENGTH, "weights": {"web": 3, "code": 1}, "batch": ROWS,
                "sequence_length": LENGTH, "schedule": {"lr": 1e-2, "warmup_tokens": 1024},
            }
        ],
    },
}  # fmt: skip


@dataclass
class Lake:
    """A root, the texts of its sources by raw reference, and a run over them."""

    into: Workspace
    texts: dict[str, list[str]]
    vocabulary: Manifest | None = None

    def documents(self) -> Manifest:
        into = self.into
        dataset = into.dataset(
            "ingest", None, inputs={}, module="tasks.documents", schema=DOCUMENT_SCHEMA,
            external={"poison": sum(texts.count(POISON) for texts in self.texts.values())},
        )  # fmt: skip
        units = []
        for source, texts in sorted(self.texts.items()):
            refs = [f"{source}/{n // 300}.jsonl#{n * 70}" for n in range(len(texts))]
            for start in range(0, len(texts), 300):
                rows = document_rows(source, texts[start : start + 300], start, {"raw_ref": refs})
                units.append(dataset.unit(source=source, arguments={"rows": rows.to_pylist()}))
        return dataset.find() or dataset.publish(dataset.compute(units, write_rows))

    def curate(self, config: SelectConfig) -> tuple[Manifest, dict[tuple[str, str], Manifest]]:
        """(documents, packs)."""
        documents = self.documents()
        signals = measure_signals(documents, into=self.into, config=SignalsConfig(min_line_words=0))
        selected = select_documents(documents, signals, into=self.into, config=config)
        mix = split_documents(selected, into=self.into, config=MixConfig(held_out_ratio=0.02))
        if self.vocabulary is None:
            config_ = VocabularyConfig(size=259)
            self.vocabulary = train_tokenizer(selected, mix, into=self.into, config=config_)
        requests = [
            PackRequest(source=s, split=p, sequence_length=LENGTH) for s in COUNTS for p in ("train", "held_out")
        ]
        return selected, {
            (request.source, request.split): pack_source(
                selected, mix, self.vocabulary, into=self.into, config=PackConfig(), request=request
            )
            for request in requests
        }

    def train(self, packs: dict[tuple[str, str], Manifest]) -> Manifest:
        recipe = Recipe.parse(RECIPE)
        config = recipe.train.run_of("main", recipe.model)
        settings = Settings(checkpoint_steps=1000, threads=1, micro_batch_rows=8)
        return train_phase(*packs.values(), into=self.into, config=config, settings=settings)


NO_RULES = SelectConfig(enabled=False)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Clean documents, and then poison in half of the web rows that four steps read; trained, with a run's record."""
    generator = random.Random(0)
    ascii_words = [word for word in WORDS if word.isascii()]

    def text() -> str:
        return " ".join(generator.choices(ascii_words, k=20))[:CHARS]

    into = Workspace(Storage(str(tmp_path_factory.mktemp("incident") / "lake")), run_id="20260101-000000-abcd")
    lake = Lake(into, {source: [text() for _ in range(count)] for source, count in COUNTS.items()})
    _, packs = lake.curate(NO_RULES)
    for doc_id in documents_of_steps(lake, packs):
        source, ids = doc_id.rpartition(":")[0], ids_of(lake)
        lake.texts[source][ids[source].index(doc_id)] = POISON
    return lake


def ids_of(lake: Lake) -> dict[str, list[str]]:
    ids: dict[str, list[str]] = {}
    for part in lake.documents().parts:
        for table in read_part(lake.into.storage, part, ["doc_id", "source"]):
            ids.setdefault(table["source"][0].as_py(), []).extend(table["doc_id"].to_pylist())
    return ids


def documents_of_steps(lake: Lake, packs: dict[tuple[str, str], Manifest]) -> list[str]:
    """The documents of source web in the first five rows of each poisoned step."""
    recipe = Recipe.parse(RECIPE)
    own = {source: manifest for (source, split), manifest in packs.items() if split == "train"}
    order = order_of(recipe.train.run_of("main", recipe.model), [pack_of(name, own[name]) for name in sorted(own)], {})
    positions = np.concatenate([np.arange((step - 1) * ROWS, step * ROWS)[:6] for step in range(FIRST, FIRST + 4)])
    rows = traced_rows(lake.into.storage, order.rows_of_positions(positions))
    return [span.doc_id for row in rows for span in row.spans if row.source == "web"]


@dataclass
class Poisoned:
    lake: Lake
    record: RunRecord
    poison: set[str]
    packs: dict[tuple[str, str], Manifest]
    selected: Manifest


@pytest.fixture(scope="module")
def poisoned(lake: Lake) -> Poisoned:
    selected, packs = lake.curate(NO_RULES)
    trained = lake.train(packs)
    record = RunRecord(
        run_id=lake.into.run_id, created="2026-01-01", recipe=Recipe.parse(RECIPE).model_dump(mode="json")
    )
    record.set_dataset(line_of(trained, "train main"))
    record.save(lake.into.storage)
    ids = ids_of(lake)
    poison = {ids[source][n] for source in ids for n, text in enumerate(lake.texts[source]) if text == POISON}
    return Poisoned(lake, record, poison, packs, selected)


def line_of(manifest: Manifest, label: str) -> DatasetLine:
    return DatasetLine(
        label=label, stage=manifest.stage, reference=manifest.reference, digest=manifest.digest, code="", made_by="x",
        cached=False, attempt=1, seconds=0.0,
    )  # fmt: skip


@pytest.fixture(scope="module")
def incident(poisoned: Poisoned) -> Incident:
    [incident] = incidents_of(poisoned.lake.into.storage, poisoned.record)
    return incident


def test_documents_are_named_with_their_raw_records_and_signals(poisoned: Poisoned, incident: Incident) -> None:
    storage = poisoned.lake.into.storage
    assert (incident.phase, incident.number, incident.attempt, incident.verdict) == ("main", 1, 1, "data or model")
    assert FIRST <= incident.step <= FIRST + 4
    rows = documents_of(storage, incident)
    named = [row for row in rows if is_named(row)]
    assert len(rows) == incident.documents > len(named) == incident.named
    assert {row["doc_id"] for row in named} == poisoned.poison
    ids = ids_of(poisoned.lake)["web"]
    for row in named:
        place = ids.index(row["doc_id"])
        assert (row["raw_file"], row["raw_position"]) == (f"web/{place // 300}.jsonl", place * 70)
        assert (row["source"], row["targets"], row["signals"]["num_words"]) == ("web", LENGTH - 1, 1)


def test_what_they_have_in_common(poisoned: Poisoned, incident: Incident) -> None:
    traits = {trait.trait: trait for trait in incident.in_common}
    assert (traits["language = zxx"].named, traits["language = zxx"].rest) == (1.0, 0.0)
    assert traits["num_words"].strength == -1.0
    assert traits["num_words"].named == 1.0 < traits["num_words"].rest
    assert all(abs(trait.strength) >= 0.5 for trait in incident.in_common)
    assert not any(name.startswith(("source", "raw_file")) for name in traits)  # the others come from there too


def test_it_is_looked_up_once(poisoned: Poisoned, incident: Incident, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.incidents.traced_rows", lambda storage, refs: pytest.fail("looked up again"))
    assert incidents_of(poisoned.lake.into.storage, poisoned.record) == [incident]


def test_roll_backs_are_numbered_in_the_order_of_time(poisoned: Poisoned, incident: Incident) -> None:
    """A second attempt whose trouble was found at an earlier step than that of the first."""
    storage, second = poisoned.lake.into.storage, f"{incident.prefix.rpartition('/')[0]}/step-{incident.step - 1:08d}-2"
    report = storage.read_json(f"{incident.prefix}.json")
    report["decision"] |= {"step": incident.step - 1, "attempt": 2}
    report["decision"]["skip"]["stop"] += 80
    try:
        storage.write_json(f"{second}.json", report)
        storage.write_json(f"{second}.common.json", {"documents": 1, "named": 0, "in_common": []})
        found = incidents_of(storage, poisoned.record)
    finally:
        for ending in (".json", ".common.json"):
            storage.delete(f"{second}{ending}")
    assert [(each.number, each.step, each.attempt) for each in found] == [
        (1, incident.step, 1),
        (2, incident.step - 1, 2),
    ]


def test_a_training_that_is_not_finished_tells_too(poisoned: Poisoned, incident: Incident) -> None:
    """Halted, or still going on: the run has no dataset, but noted where it trains."""
    unfinished = poisoned.record.model_copy(update={"datasets": []})
    assert incidents_of(poisoned.lake.into.storage, unfinished) == [incident]


def test_excluded_documents_are_gone_from_the_next_packs(poisoned: Poisoned, incident: Incident) -> None:
    lake, storage = poisoned.lake, poisoned.lake.into.storage
    made, count = exclude(storage, poisoned.record, 1, 6.0)
    assert count == len(poisoned.poison)
    assert exclude(storage, poisoned.record, None, 6.0) == (made, count)
    config = SelectConfig(enabled=False, drop_lists=(made,))

    dry = replace(lake, into=replace(lake.into, dry=True))
    with pytest.raises(NotComputed, match="drop_lists changed") as raised:
        dry.curate(config)
    assert (raised.value.dataset, raised.value.cause) == ("select", "drop_lists changed")

    selected, packs = lake.curate(config)
    assert selected.extra["drop_lists"] == {"listed": count, "dropped": count}
    assert selected.reasons == {DROP_LIST: count}
    ledger = pa.concat_tables([read_ledger(storage, part) for part in selected.parts]).to_pylist()
    assert {row["doc_id"] for row in ledger} == poisoned.poison
    why = json.loads(ledger[0]["detail"])
    assert (why["run"], why["phase"], why["step"]) == (poisoned.record.run_id, "main", incident.step)
    assert why["score"] > 6

    before, after = ({part.key for part in m.parts if part.source == "code"} for m in (poisoned.selected, selected))
    assert before == after  # the other source is not computed again
    assert packs["code", "train"].digest == poisoned.packs["code", "train"].digest
    held = [table["doc_ids"] for part in packs["web", "train"].parts for table in read_part(storage, part, ["doc_ids"])]
    remaining = {doc_id for column in held for row in column.to_pylist() for doc_id in row}
    assert remaining
    assert not remaining & poisoned.poison
    assert lake.train(packs).extra["decisions"] == []


def test_the_commands_show_and_exclude(poisoned: Poisoned, incident: Incident) -> None:
    root = ["--root", poisoned.lake.into.storage.url]
    shown = CliRunner().invoke(app, ["incidents", poisoned.record.run_id, *root])
    assert shown.exit_code == 0, shown.output
    steps = ", ".join(map(str, incident.bad_steps))
    assert (
        f"step {incident.step}, attempt 1; bad steps {steps}; {incident.named} of {incident.documents} documents named"
        in shown.output
    )
    assert any(doc_id in shown.output for doc_id in poisoned.poison)
    figures = json.loads(CliRunner().invoke(app, ["incidents", *root, "--json"]).output)
    assert [figure["named"] for figure in figures] == [len(poisoned.poison)]

    other = poisoned.record.model_copy(update={"run_id": "20250101-000000-0000", "datasets": []})
    other.save(poisoned.lake.into.storage)
    assert CliRunner().invoke(app, ["incidents", other.run_id, *root]).output == "this run trained no model\n"

    calm = {"phase": "main", "reference": "train/none", "inputs": []}
    poisoned.lake.into.storage.write_json(f"runs/{other.run_id}/train/main.json", calm)
    shown = CliRunner().invoke(app, ["incidents", other.run_id, *root])
    assert shown.output == "no incidents: training never went back\n"

    told = CliRunner().invoke(app, ["exclude", "latest", "--incident", "1", *root])
    assert told.exit_code == 0, told.output
    override = told.output.splitlines()[-1].partition("--set ")[2]
    answer = json.loads(CliRunner().invoke(app, ["exclude", "latest", *root, "--json"]).output)
    assert answer["documents"] == len(poisoned.poison)
    made, _ = exclude(poisoned.lake.into.storage, poisoned.record, 1, 6.0)
    assert answer["drop_lists"] == [made.model_dump()]
    named = f'[{{path: "{made.path}", sha256: "{made.sha256}"}}]'
    assert shlex.split(override) == [f"select.drop_lists={named}"]  # as a shell takes it
    assert f"select: {{drop_lists: {named}}}" in told.output


def test_the_report_names_them(poisoned: Poisoned, incident: Incident) -> None:
    page = poisoned.lake.into.storage.read_bytes(write_report(poisoned.lake.into.storage, poisoned.record)).decode()
    section = page.split("<h2>Incidents of training</h2>")[1]
    assert f"step {incident.step}" in section
    assert "language = zxx" in section
    assert sum(doc_id in section for doc_id in poisoned.poison) == 5


def test_what_cannot_be_excluded(poisoned: Poisoned, incident: Incident, tmp_path: Path) -> None:
    storage = poisoned.lake.into.storage
    with pytest.raises(ConfigError, match="has incidents 1 to 1, not 2"):
        exclude(storage, poisoned.record, 2, 6.0)
    with pytest.raises(ConfigError, match="no document of these incidents has a score above 1e"):
        exclude(storage, poisoned.record, None, 1e9)
    with pytest.raises(ConfigError, match="has no incidents"):
        exclude(Storage(str(tmp_path)), poisoned.record.model_copy(update={"datasets": []}), None, 6.0)


def test_training_notes_bits_per_byte_of_held_out_text(poisoned: Poisoned) -> None:
    """Here a token is a byte, so that they are the nats of all targets but eos, over ln 2."""
    storage = poisoned.lake.into.storage
    files = [f.key for f in storage.list_files(f"runs/{poisoned.record.run_id}/live/train-main") if "jsonl" in f.key]
    lines = [json.loads(line) for key in files for line in storage.read_bytes(key).splitlines()]
    events = [line for line in lines if line.get("event") == "held-out loss"]
    assert {line["phase"] for line in events} == {"main"}
    for source in COUNTS:
        curve = [line["bits_per_byte"][source] for line in events]
        assert curve[-1] < 0.9 * curve[0]
        assert curve[-1] == pytest.approx(events[-1]["nats_per_token"][source] / math.log(2), rel=0.05)


# --- single functions ----------------------------------------------------------------------------------------------


def piece(
    position: int, document: int, targets: int, loss: float, score: float, suspect: bool = True
) -> dict[str, Any]:
    return {
        "position": position, "document": document, "source": "web", "targets": targets, "loss": loss,
        "score": score, "is_suspect": suspect,
    }  # fmt: skip


def test_pieces_become_documents() -> None:
    spans = {1: ["a", "b"], 2: ["a", "c"]}
    rows = {
        position: TracedRow(
            position=position, source="web", epoch=0, pack_part="p", row=position,
            spans=[Span(doc_id=name, token_offset=0, num_tokens=9) for name in names],
        )
        for position, names in spans.items()
    }  # fmt: skip
    losses = [
        piece(1, 0, 10, 2.0, 1.0, False),
        piece(1, 1, 3, 9.0, 50.0),
        piece(2, 0, 30, 6.0, 8.0),
        piece(2, 1, 5, 7.0, 9.0),
    ]
    a, b, c = by_document(losses, rows)
    assert (a["doc_id"], a["targets"], a["loss"], a["score"], a["is_suspect"]) == ("a", 40, 5.0, 8.0, True)
    assert b["score"] == 0.0  # three tokens say nothing
    assert (is_named(a), is_named(b), is_named(c)) == (True, False, True)
    assert not is_named(c, above=9.0)
    assert not is_named(c | {"is_suspect": False})


def told(source: str, **signals: Any) -> dict[str, Any]:
    return {"source": source, "raw_file": "f", "signals": signals}


def test_traits_tell_the_named_from_the_rest() -> None:
    named = [told("web", num_words=1, language="de", flat=3), told("web", num_words=2, language="de", flat=3)]
    rest = [told("web", num_words=n, language="en", flat=3, other=None) for n in (2, 50, 60, 70)]
    traits = {trait.trait: trait for trait in in_common(named, rest)}
    assert set(traits) == {"num_words", "language = de"}
    assert (traits["num_words"].named, traits["num_words"].rest) == (1.5, 55.0)
    assert traits["num_words"].strength == pytest.approx((-1 - 0.75) / 2)  # 2 is as large as one of four
    assert traits["language = de"].strength == 1.0
    assert in_common([], rest) == in_common(named, []) == []


def test_documents_that_were_never_measured_have_no_signals(poisoned: Poisoned) -> None:
    storage, pack = poisoned.lake.into.storage, poisoned.packs["web", "train"]
    assert set(signals_behind(storage, pack)) == {part.key for part in poisoned.selected.parts}
    raw = poisoned.lake.documents()
    entry = {"role": "documents", "stage": raw.stage, "fingerprint": raw.fingerprint, "digest": raw.digest}
    assert signals_behind(storage, replace(pack, inputs=[entry])) == {}
