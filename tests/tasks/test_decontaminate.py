"""decontaminate: evaluation text leaves the documents, boilerplate does not, and every decision is named."""

import json
import random
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from tasks.dataset import Workspace
from tasks.decontaminate import DecontaminateConfig, drop_evaluation_text
from tasks.decontaminate.evaluation_sets import EvaluationSetConfig, Item, read_items
from tasks.documents import document_id
from tasks.errors import ConfigError, DataError, NotComputed
from tasks.manifest import Manifest
from tasks.parts import read_ledger, read_part
from tasks.storage import Storage
from tests.conftest import MakeDocuments

SHARED = Path(__file__).parents[3] / "shared/data"
LONG = "A train leaves the old harbour at noon and reaches the northern hills before the evening bell has rung twice"
PASSAGE = "The lighthouse keeper counted seven grey ships and wrote their names into a ledger bound in green cloth"
SPEECH = (
    "Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived in Liberty,"
    " and dedicated to the proposition that all men are created equal."
)
SHORT, ANSWER = "Who painted the Mona Lisa?", "Leonardo da Vinci"
ITEMS: list[dict[str, Any]] = [
    {"id": "train", "q": LONG, "a": "At noon", "p": None},
    {"id": "mona", "q": SHORT, "a": ANSWER, "p": None},
    {"id": "ships", "q": "Why?", "a": "x", "p": PASSAGE},
    {"id": "speech", "q": "Who said this?", "a": "Lincoln", "p": SPEECH},
]
KEYS = {"id": "id", "question": "q", "answer": "a", "passage": "p"}
FILLER = "Nothing of any set stands here, only plain words about the weather and the sea. " * 5
REWRAPPED = textwrap.fill(LONG, 40)
TEXTS = [
    FILLER,
    f"{FILLER} {LONG}. {FILLER}",
    f"Quiz!\nQ: {SHORT.upper()}\nA: {ANSWER}",
    f"{SHORT} I do not know.",
    PASSAGE.replace(" ", "\n"),
    "",
    f"{PASSAGE[:60]} {FILLER}",
]
FOUND = {1: ("quiz:train", 1.0), 2: ("quiz:mona", 1.0), 4: ("quiz:ships", 1.0)}


@pytest.fixture
def config(workspace: Workspace) -> DecontaminateConfig:
    return config_of(workspace.storage)


def config_of(storage: Storage, items: Iterable[dict[str, Any]] = ITEMS, **values: Any) -> DecontaminateConfig:
    storage.write_bytes("evals/quiz.jsonl", "\n".join(json.dumps(item) for item in items).encode())
    own = {key: values.pop(key) for key in ("action", "min_overlap") if key in values}
    return DecontaminateConfig.model_validate(
        {"evaluation_sets": {"quiz": {"path": "{root}/evals/quiz.jsonl", **KEYS, **own}}, **values}
    )


def texts_of(workspace: Workspace, manifest: Manifest) -> list[str]:
    return [
        text for part in manifest.parts for t in read_part(workspace.storage, part) for text in t["text"].to_pylist()
    ]


def ledger_of(workspace: Workspace, manifest: Manifest) -> dict[str, dict[str, Any]]:
    rows = [row for part in manifest.parts for row in read_ledger(workspace.storage, part).to_pylist()]
    return {row["doc_id"]: row for row in rows}


def id_of(number: int, source: str = "web") -> str:
    return document_id(source, f"file#{number}")


def test_golden_fixture_with_counted_reasons(
    workspace: Workspace, make_documents: MakeDocuments, config: DecontaminateConfig
) -> None:
    clean = drop_evaluation_text(make_documents(TEXTS), into=workspace, config=config)
    assert texts_of(workspace, clean) == [TEXTS[n] for n in range(7) if n not in FOUND]
    assert clean.reasons == {"evaluation_text": 3}
    assert {k: clean.totals[k] for k in ("rows_in", "rows_out", "dropped")} == {
        "rows_in": 7,
        "rows_out": 4,
        "dropped": 3,
    }
    rows = ledger_of(workspace, clean)
    assert {(doc, row["matched_id"], row["value"], row["threshold"]) for doc, row in rows.items()} == {
        (id_of(number), item, value, 0.5) for number, (item, value) in FOUND.items()
    }
    assert json.loads(rows[id_of(4)]["detail"]) == {"also": [], "field": "passage", "items": 1, "probes": 6}


def test_the_report_says_what_was_found_where_and_how_sure(
    workspace: Workspace, make_documents: MakeDocuments, config: DecontaminateConfig
) -> None:
    clean = drop_evaluation_text(make_documents(TEXTS), into=workspace, config=config)
    report = clean.extra["evaluation_sets"]["quiz"]
    samples = report.pop("samples")
    assert report == {
        "items": 4, "tested": 4, "untested": 0, "items_found": 3, "items_common": 0, "documents_found": 3,
        "share": 0.75, "items_by_overlap": {"1.0": 3}, "documents_by_source": {"web": 3},
    }  # fmt: skip
    assert {(s["doc_id"], s["item"], s["overlap"]) for s in samples} == {
        (id_of(number), item.removeprefix("quiz:"), value) for number, (item, value) in FOUND.items()
    }
    assert samples[0]["text"].startswith(LONG[:40])
    findings = workspace.load(clean.extra["findings"])
    rows = [row for part in findings.parts for table in read_part(workspace.storage, part) for row in table.to_pylist()]
    assert {row["doc_id"]: (f"{row['set']}:{row['item']}", row["overlap"]) for row in rows} == {
        id_of(number): found for number, found in FOUND.items()
    }


def test_text_that_many_documents_quote_is_no_evidence(workspace: Workspace, make_documents: MakeDocuments) -> None:
    texts = [f"{FILLER} Number {n}: {SPEECH}" for n in range(12)] + [f"{LONG} {SPEECH}", f"Who said this? {SPEECH}"]
    config = config_of(workspace.storage)
    clean = drop_evaluation_text(make_documents(texts), into=workspace, config=config)
    assert list(ledger_of(workspace, clean)) == [id_of(12)]  # for the train, not for the speech
    assert clean.extra["evaluation_sets"]["quiz"]["items_common"] == 1
    wide = config.model_copy(update={"max_documents": 14})
    assert drop_evaluation_text(make_documents(texts), into=workspace, config=wide).totals["dropped"] == 14


COPYRIGHT = "All rights reserved. No part of this text may be copied or stored without written permission of us"
MMLU = (
    "An object is thrown upwards with a speed of ten metres per second from the top of a tower. Neglecting the air,"
    " which of these describes its motion best? A. It speeds up B. It slows down, then speeds up"
)


def test_boilerplate_marks_nobody_and_wrapping_or_shortness_hides_nothing(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    """marin#6852, #7126, #5519, #7005: quotations flagged whole sources; re-wrapped and short items escaped."""
    items: list[dict[str, Any]] = [
        {"id": "gettysburg", "q": f"Read this. {SPEECH} Who said it?", "a": "Lincoln", "p": None},
        {"id": "quotation", "q": "Why?", "a": "x", "p": SPEECH},
        {"id": "copyright", "q": "Whose are all the rights here?", "a": "ours", "p": COPYRIGHT},
        {"id": "mmlu", "q": MMLU, "a": "B", "p": None},
        {"id": "short", "q": "In which year did the first steam locomotive run?", "a": "1804", "p": None},
    ]
    assert len(items[-1]["q"].split()) == 9
    quoting = [f"{FILLER} Book {n}. {SPEECH} {FILLER} {COPYRIGHT}." for n in range(30)]
    hits = {
        "mmlu": f"{FILLER}\n{textwrap.fill(MMLU, 40)}\n{FILLER}",
        "short": f"{FILLER} In which year did\nthe first steam locomotive run? Many say 1803, it was 1804. {FILLER}",
    }
    others = [f"{FILLER} In which year did the first steam locomotive run? Nobody knows.", f"1804. {FILLER}"]
    documents = make_documents({"books": quoting, "leaks": list(hits.values()), "other": others})
    clean = drop_evaluation_text(documents, into=workspace, config=config_of(workspace.storage, items))
    assert {source: own["dropped"] for source, own in clean.by_source.items()} == {"books": 0, "leaks": 2, "other": 0}
    assert {row["matched_id"] for row in ledger_of(workspace, clean).values()} == {f"quiz:{name}" for name in hits}
    report = clean.extra["evaluation_sets"]["quiz"]
    assert (report["items_found"], report["items_common"], report["documents_by_source"]) == (2, 1, {"leaks": 2})
    assert {sample["item"] for sample in report["samples"]} == set(hits)


def test_a_source_that_would_lose_nearly_all_stops(workspace: Workspace, make_documents: MakeDocuments) -> None:
    documents = make_documents([f"{LONG} {n}" for n in range(1_000)])
    config = config_of(workspace.storage, max_documents=10_000)
    with pytest.raises(
        DataError, match=r"decontaminate would .*web: 1000 of 1000 documents .*decontaminate\.by_source"
    ):
        drop_evaluation_text(documents, into=workspace, config=config)
    allowed = config.model_copy(update={"max_dropped_ratio": 1.0})
    assert drop_evaluation_text(documents, into=workspace, config=allowed).totals["dropped"] == 1_000


@pytest.mark.parametrize(
    "text",
    [
        LONG,
        REWRAPPED,
        LONG.upper(),
        f"<p>{LONG.replace(' ', '&nbsp; ').replace('&nbsp;', '')}</p>",
        f"{FILLER * 40}{LONG}{FILLER}",
    ],
)
def test_an_item_is_found_however_it_is_wrapped(
    workspace: Workspace, make_documents: MakeDocuments, config: DecontaminateConfig, text: str
) -> None:
    clean = drop_evaluation_text(make_documents([FILLER, text]), into=workspace, config=config)
    assert list(ledger_of(workspace, clean)) == [id_of(1)]


def test_the_share_of_an_item_decides(workspace: Workspace, make_documents: MakeDocuments) -> None:
    documents = make_documents([" ".join(LONG.split()[:16]) + " " + FILLER])  # 4 of 8 n-grams
    for min_overlap, dropped in ((0.5, 1), (0.51, 0)):
        config = config_of(workspace.storage, min_overlap=min_overlap)
        assert drop_evaluation_text(documents, into=workspace, config=config).totals["dropped"] == dropped


def test_cut_takes_the_span_with_a_margin_and_drops_a_remnant(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    before, after = "größer " * 100, " später" * 100
    config = config_of(workspace.storage, action="cut", margin_chars=20, min_remaining_chars=200)
    clean = drop_evaluation_text(
        make_documents([f"{before}{LONG}{after}", LONG, FILLER]), into=workspace, config=config
    )
    assert texts_of(workspace, clean) == ["größer " * 96 + "größer\n" + "später " * 96 + "später", FILLER]
    assert clean.reasons == {"evaluation_remnant": 1, "evaluation_span_cut": 1}
    assert {k: clean.totals[k] for k in ("rows_out", "dropped", "edited")} == {"rows_out": 2, "dropped": 1, "edited": 1}


def test_report_changes_nothing(workspace: Workspace, make_documents: MakeDocuments) -> None:
    clean = drop_evaluation_text(
        make_documents(TEXTS), into=workspace, config=config_of(workspace.storage, action="report")
    )
    assert texts_of(workspace, clean) == TEXTS
    assert (clean.reasons, clean.extra["evaluation_sets"]["quiz"]["documents_found"]) == ({}, 3)


def test_the_strictest_action_of_several_sets_wins(workspace: Workspace, make_documents: MakeDocuments) -> None:
    config = config_of(workspace.storage)
    quiz = config.evaluation_sets["quiz"]
    for first, second, wanted in (
        ("report", "drop", "b:train"),
        ("cut", "drop", "b:train"),
        ("drop", "drop", "a:train"),
    ):
        sets = {name: quiz.model_copy(update={"action": action}) for name, action in (("a", first), ("b", second))}
        both = config.model_copy(update={"evaluation_sets": sets})
        clean = drop_evaluation_text(make_documents(TEXTS[:2]), into=workspace, config=both)
        assert ledger_of(workspace, clean)[id_of(1)]["matched_id"] == wanted


def test_a_source_can_be_left_out_or_have_another_action(workspace: Workspace, make_documents: MakeDocuments) -> None:
    by_source = {"wiki": {"enabled": False}, "code": {"evaluation_sets": {"quiz": {"action": "report"}}}}
    config = config_of(workspace.storage, by_source=by_source)
    documents = make_documents({"web": TEXTS[:2], "wiki": TEXTS[:2], "code": TEXTS[:2]}, parts=1)
    clean = drop_evaluation_text(documents, into=workspace, config=config)
    assert {source: clean.by_source[source]["dropped"] for source in clean.sources} == {"web": 1, "wiki": 0, "code": 0}
    assert clean.extra["evaluation_sets"]["quiz"]["documents_found"] == 2


def test_without_sets_documents_pass(workspace: Workspace, make_documents: MakeDocuments) -> None:
    clean = drop_evaluation_text(make_documents(TEXTS), into=workspace, config=DecontaminateConfig())
    assert (texts_of(workspace, clean), clean.extra["evaluation_sets"]) == (TEXTS, {})
    empty = drop_evaluation_text(make_documents([]), into=workspace, config=config_of(workspace.storage))
    assert (empty.totals["rows_out"], empty.extra["evaluation_sets"]["quiz"]["items_found"]) == (0, 0)


def test_a_missing_or_useless_set_is_an_error(workspace: Workspace, make_documents: MakeDocuments) -> None:
    documents = make_documents(TEXTS)
    useless = config_of(workspace.storage, [{"id": "a", "q": "Why?", "a": "x", "p": None}])
    with pytest.raises(DataError, match=r"evaluation_sets\.quiz: none of its 1 items"):
        drop_evaluation_text(documents, into=workspace, config=useless)
    workspace.storage.delete("evals/quiz.jsonl")
    with pytest.raises(ConfigError, match=r"evaluation_sets\.quiz\.path: \{root\}/evals/quiz\.jsonl: no such file"):
        drop_evaluation_text(documents, into=workspace, config=useless)


def test_the_content_of_a_set_is_in_the_fingerprint_its_place_is_not(
    workspace: Workspace, make_documents: MakeDocuments, config: DecontaminateConfig
) -> None:
    documents = make_documents(TEXTS)
    first = drop_evaluation_text(documents, into=workspace, config=config)
    workspace.storage.write_bytes("other.jsonl", workspace.storage.read_bytes("evals/quiz.jsonl"))
    moved = config.evaluation_sets["quiz"].model_copy(update={"path": "{root}/other.jsonl"})
    again = drop_evaluation_text(
        documents, into=workspace, config=config.model_copy(update={"evaluation_sets": {"quiz": moved}})
    )
    assert again == first
    workspace.storage.write_bytes("evals/quiz.jsonl", json.dumps(ITEMS[0]).encode())
    dry = Workspace(workspace.storage, run_id="test", dry=True)
    with pytest.raises(NotComputed, match="evaluation_sets"):
        drop_evaluation_text(documents, into=dry, config=config)
    assert drop_evaluation_text(documents, into=workspace, config=config).totals["dropped"] == 1


def test_a_changed_decision_computes_only_the_parts_that_it_changes(
    workspace: Workspace, make_documents: MakeDocuments, tmp_path: Path
) -> None:
    documents = make_documents(TEXTS * 2, parts=7)  # two documents a part
    first = drop_evaluation_text(documents, into=workspace, config=config_of(workspace.storage))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("parts/*.json")}
    again = drop_evaluation_text(
        documents, into=workspace, config=config_of(workspace.storage, [*ITEMS, ITEMS[0] | {"id": "z"}])
    )
    assert {path: path.stat().st_mtime_ns for path in before} == before
    same = {part.key for part in first.parts} & {part.key for part in again.parts}
    assert len(same) == 5  # the two with the train name one more item


def test_a_killed_run_is_finished_alike_and_a_second_call_finds_it(
    workspace: Workspace, make_documents: MakeDocuments, config: DecontaminateConfig, tmp_path: Path
) -> None:
    documents = make_documents(TEXTS)
    first = drop_evaluation_text(documents, into=workspace, config=config)
    assert drop_evaluation_text(documents, into=workspace, config=config) == first
    files = {path: path.read_bytes() for path in tmp_path.rglob("parts/*.parquet")}
    for manifest in (tmp_path / "lake").glob("decontaminate*/*/manifest.json"):
        manifest.unlink()
    for part in (first.parts[1], first.parts[2]):
        workspace.storage.delete(part.receipt_path)
    again = drop_evaluation_text(documents, into=workspace, config=config)
    assert (again.digest, again.parts, again.extra) == (first.digest, first.parts, first.extra)
    assert {path: path.read_bytes() for path in files} == files


def test_workers_do_not_change_the_bytes(
    ray_cluster: None, workspace: Workspace, make_documents: MakeDocuments, config: DecontaminateConfig, tmp_path: Path
) -> None:
    texts = TEXTS * 3 + [f"{n} {SPEECH}" for n in range(12)]
    first = drop_evaluation_text(make_documents(texts, parts=5), into=workspace, config=config)
    other = Workspace(Storage(str(tmp_path / "other")), run_id="test", workers=2)
    own = config_of(other.storage)
    again = drop_evaluation_text(make_documents(texts, parts=5, into=other), into=other, config=own)
    assert (again.digest, again.parts, again.extra) == (first.digest, first.parts, first.extra)


QUIZ = {"evaluation_sets": {"quiz": {"path": "/quiz.jsonl", "question": "q"}}}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"evaluation_sets": {"(canary)": {"path": "/x.csv", "question": "q"}}}, "reserved"),
        ({"evaluation_sets": {"quiz": {"question": "q"}}}, r"evaluation_sets\.quiz\.path"),
        ({"max_documents": 0}, "max_documents"),
        ({"by_source": {"web": {"max_documents": 3}}}, r"by_source\.web\.max_documents: cannot be set in by_source"),
        (
            {"by_source": {"web": {"evaluation_sets": {"x": {"action": "cut"}}}}},
            r"by_source\.web\.evaluation_sets\.x\.path",
        ),
        ({"by_source": {"web": QUIZ}}, r"by_source\.web\.evaluation_sets\.quiz: one index serves all sources"),
        (
            QUIZ | {"by_source": {"web": {"evaluation_sets": {"quiz": {"answer": "a"}}}}},
            r"evaluation_sets\.quiz: one index serves all sources; only action and min_overlap",
        ),
        (QUIZ | {"by_source": {"web": {"evaluation_sets": {"quiz": {"action": "burn"}}}}}, r"quiz\.action"),
        ({"by_source": {"web": {"margin_chars": -1}}}, r"by_source\.web\.margin_chars"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DecontaminateConfig.model_validate(wrong)


CHOICES = {"question": "query", "answer": "choices", "answer_index": "gold"}
EVALS: dict[str, dict[str, Any]] = {
    "gsm8k": {"path": "gsm8k/test.jsonl.gz", "question": "question", "answer": "answer"},
    "mmlu": {"path": "mmlu/mmlu.parquet", "question": "question", "answer": "choices", "answer_index": "answer"},
    "arc": {"path": "llm-foundry/arc_challenge_test.jsonl.gz", **CHOICES},
    "boolq": {"path": "llm-foundry/boolq_valid.jsonl.gz", **CHOICES},
    "truthfulqa": {"path": "truthfulqa/TruthfulQA.csv", "question": "Question", "answer": "Best Answer"},
    "humaneval": {"path": "humaneval/HumanEval.jsonl.gz", "question": "prompt"},
}


def inject(items: list[Item], hosts: list[str], rng: random.Random) -> list[str]:
    """Each item in a text of its own: whole, re-wrapped to 40 columns, or in the middle of a long document."""
    texts = []
    for number, item in enumerate(items):
        text = f"{item.questions[0]}\n{'Answer: ' if number % 2 else ''}{item.answers[0] if item.answers else ''}"
        if number % 3 == 1:
            words = text.split()
            text = "\n".join(" ".join(words[at : at + 7]) for at in range(0, len(words), 7))
        elif number % 3 == 2:
            host = rng.choice(hosts)
            middle = host.find(" ", len(host) // 2)
            text = f"{host[:middle]} {text} {host[middle:]}"
        texts.append(text)
    return texts


def injected(num_items: int, num_clean: int) -> tuple[list[str], list[str], dict[str, Any]]:
    """(texts with items, clean texts, sets) from the shared data."""
    rng = random.Random(7)
    folder = SHARED / "text"
    hosts = [t for name in ("docs_en", "books") for t in pq.read_table(folder / f"{name}.parquet")["text"].to_pylist()]
    rng.shuffle(hosts)
    sets = {name: values | {"path": str(SHARED / "evals" / values["path"])} for name, values in EVALS.items()}
    dirty = []
    for name, values in sets.items():
        config = EvaluationSetConfig.model_validate(values)
        items = read_items(Path(values["path"]).read_bytes(), name, config)
        dirty += inject(rng.sample(items, min(num_items, len(items))), hosts[num_clean : num_clean + 200], rng)
    return dirty, hosts[:num_clean], sets


@pytest.mark.skipif(not SHARED.exists(), reason="the shared data is not here")
def test_items_of_six_sets_are_found_among_real_documents(workspace: Workspace, make_documents: MakeDocuments) -> None:
    dirty, clean, sets = injected(num_items=40, num_clean=400)
    documents = make_documents({"dirty": dirty, "clean": clean})
    config = DecontaminateConfig.model_validate({"evaluation_sets": sets})
    result = drop_evaluation_text(documents, into=workspace, config=config)
    assert result.by_source["dirty"]["dropped"] >= 0.98 * len(dirty)
    assert result.by_source["clean"]["dropped"] == 0
