"""whatif says what a rerun would do: the same documents, sources and reasons; and what each rule alone removes."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tasks.dataset import Workspace
from tasks.errors import ConfigError
from tasks.manifest import Manifest
from tasks.parts import read_ledger
from tasks.recipe import Recipe
from tasks.runs import DatasetLine, RunRecord
from tasks.select import select_documents
from tasks.select.rules import SelectConfig
from tasks.signals import SignalsConfig, measure_signals
from tasks.whatif import Tally, WhatIf, changed_config, never_firing, what_if
from tests.conftest import MakeDocuments
from tests.tasks.test_select import GOLDEN, GOOD, THAI

GERMAN = "\n".join(f"Grüner Fluss Nummer {n} fließt ruhig durchs alte Tal, sagt man dort." for n in "abcdefgh")
TEXTS = {"web": list(GOLDEN), "news": [GOOD, GERMAN, THAI, "", GOOD + " {x}", "The short one of that kind."]}


def recipe(**select: Any) -> dict[str, Any]:
    """A resolved recipe over the sources web and news."""
    schedule = {"lr": 1e-3}
    phase = {"name": "main", "tokens": 8192, "weights": {"web": 1}, "sequence_length": 64, "batch": 4}
    values = {
        "name": "tiny", "ingest": {"sources": {name: {"base": "/nowhere"} for name in TEXTS}}, "select": select,
        "vocabulary": {"size": 300}, "model": {"size": "tiny"}, "train": {"phases": [phase | {"schedule": schedule}]},
    }  # fmt: skip
    return Recipe.parse(values).model_dump(mode="json")


class Measured:
    """A run up to its signals, and what select makes of them."""

    def __init__(self, into: Workspace, documents: Manifest, **select: Any) -> None:
        self.into, self.documents = into, documents
        self.signals = measure_signals(documents, into=into, config=SignalsConfig())
        self.record = RunRecord(run_id="20260101-000000-abcd", created="", recipe=recipe(**select))
        self.record.set_dataset(
            DatasetLine(
                label="signals", stage="signals", reference=self.signals.reference, digest="", code="", made_by="",
                cached=False, attempt=1, seconds=0,
            )
        )  # fmt: skip

    def what_if(self, overrides: Sequence[str] = (), count: int = 3) -> WhatIf:
        return what_if(self.into.storage, self.record, overrides, count)

    def rerun(self, overrides: Sequence[str]) -> tuple[Manifest, dict[str, str]]:
        """What the stage makes of the changed recipe: its dataset, and doc_id -> reason of those it drops."""
        config = changed_config(self.record, overrides)
        made = select_documents(self.documents, self.signals, into=self.into, config=config)
        rows = [row for part in made.parts for row in read_ledger(self.into.storage, part).to_pylist()]
        return made, {row["doc_id"]: row["reason"] for row in rows if row["action"] == "drop"}


@pytest.fixture
def measured(workspace: Workspace, make_documents: MakeDocuments) -> Callable[..., Measured]:
    return lambda texts=TEXTS, **select: Measured(workspace, make_documents(texts), **select)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["select.gopher_quality.min_words=120"],
        ["select.gopher_quality=null", "select.by_source.news.fineweb=null"],
        ['select.rules.wide=num_words > 150 and language == "en"', "select.rules.low=num_sentences < 3"],
        ["select.by_language.deu.gopher_quality.min_stop_words=null", "select.by_language.deu.gopher_repetition=null"],
        ["select.by_source.web.enabled=false"],
        ["select.language.keep=[en]"],
    ],
)
def test_it_agrees_with_a_rerun_to_the_document(measured: Callable[..., Measured], overrides: list[str]) -> None:
    run = measured()
    answer = run.what_if(overrides, count=100)
    before, after = run.rerun([]), run.rerun(overrides)
    for row in answer.sources:
        figures = after[0].by_source[row.source]
        assert (row.documents, row.kept) == (figures["rows_in"], figures["rows_out"])
        assert row.kept_before == before[0].by_source[row.source]["rows_out"]
        told = {rule.reason: rule.drops for rule in answer.rules if rule.source == row.source and rule.drops}
        assert told == {name: count for name, count in figures["reasons"].items() if name != "line_rules"}
    told_kept = {sample.doc_id: sample.reason for sample in answer.newly_kept}
    told_dropped = {sample.doc_id: sample.reason for sample in answer.newly_dropped}
    assert told_kept == {name: reason for name, reason in before[1].items() if name not in after[1]}
    assert told_dropped == {name: reason for name, reason in after[1].items() if name not in before[1]}


def test_what_a_rule_alone_removes_comes_back_without_it(measured: Callable[..., Measured]) -> None:
    run = measured()
    answer = run.what_if()
    alone = {(rule.source, rule.reason): rule.alone for rule in answer.rules if rule.alone}
    assert alone["web", "c4.max_curly_brackets"] == 1
    for (source, reason), count in alone.items():
        if reason in ("empty", "all_lines_cut"):
            continue
        [row] = [row for row in run.what_if([f"select.{reason}=null"]).sources if row.source == source]
        assert row.newly_kept == count, reason
    assert all(rule.alone <= rule.fails and rule.drops <= rule.fails for rule in answer.rules)


def test_rules_that_never_fire_are_named_and_unjudged_rows_counted(measured: Callable[..., Measured]) -> None:
    news = next(row for row in measured().what_if().sources if row.source == "news")
    assert "fineweb.max_newline_ratio" in news.never
    assert "gopher_quality.min_words" not in news.never
    name = "gopher_quality.min_stop_words"
    rule = next(rule for rule in measured().what_if().rules if rule.source == "news" and rule.reason == name)
    assert rule.not_applied == 1  # the Thai text has no words between spaces


def test_rules_over_urls_and_code_are_judged_from_stored_signals(measured: Callable[..., Measured]) -> None:
    run = measured({"web": [GOOD, "\n".join(GOOD.split("\n")[:2]), GOOD + " " + "x" * 900]})
    overrides = [
        "select.code={max_longest_line_chars: 800, max_mean_line_chars: null}", "select.url=null",
        'select.rules={few: "num_lines < 3"}', "select.gopher_quality=null", "select.c4=null",
    ]  # fmt: skip
    answer = run.what_if(overrides)
    made, dropped = run.rerun(overrides)
    assert {rule.reason: rule.drops for rule in answer.rules if rule.drops} == {
        reason: list(dropped.values()).count(reason) for reason in set(dropped.values())
    }
    assert {"code.max_longest_line_chars", "rules.few"} <= set(dropped.values())
    assert sum(source.kept for source in answer.sources) == made.totals["rows_out"]


def test_samples_are_those_nearest_to_the_threshold(measured: Callable[..., Measured]) -> None:
    texts = {"web": [" ".join(["word"] * n) + " {" for n in (10, 20, 30, 40, 50, 60)]}
    off = {"gopher_quality": None, "gopher_repetition": None, "c4": None, "fineweb": None, "refinedweb": None}
    run = measured(texts, **off, rules={"short": "num_words < 25"})
    answer = run.what_if(["select.rules.short=num_words < 45"], count=2)
    assert [sample.value for sample in answer.newly_dropped] == [40, 30]
    assert {sample.threshold for sample in answer.newly_dropped} == {45}
    assert all(sample.text.startswith("word word") for sample in answer.newly_dropped)
    looser = run.what_if(["select.rules.short=null"], count=1)
    assert [(s.action, s.reason, s.value) for s in looser.newly_kept] == [("keep", "rules.short", 20)]
    row = next(row for row in looser.sources if row.source == "web")
    assert (row.newly_kept, row.newly_dropped, row.kept) == (2, 0, 6)
    assert row.chars == sum(map(len, texts["web"]))


def stopped(answer: WhatIf) -> list[str]:
    return [row.source for row in answer.sources if row.is_stopped]


def test_it_says_when_the_guard_rail_would_stop_the_stage(measured: Callable[..., Measured]) -> None:
    run = measured({"web": [GOOD] * 1000})
    overrides = ["select.rules.all=num_words > 1"]
    assert stopped(run.what_if()) == []
    assert stopped(run.what_if(overrides)) == ["web"]
    assert stopped(run.what_if([*overrides, "select.max_drop_ratio=1"])) == []


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("signals.min_line_words=2", "only keys of select can be judged"),
        ("select.rules.weak=num_wrods < 2", r"select\.rules\.weak: there is no signal num_wrods"),
        ("select.by_language.xx.c4=null", "'xx' does not exist"),
        ("select.by_source.other.c4=null", r"select\.by_source: source 'other' is not in ingest\.sources"),
        ("select.gopher_quality", "write key.path=value"),
        ("select.drop_lists=[{path: /nowhere}]", "a drop list names documents, which no signal says"),
    ],
)
def test_wrong_settings_are_refused(measured: Callable[..., Measured], override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        measured({"web": [GOOD]}).what_if([override])


def test_a_run_without_signals_is_refused(workspace: Workspace) -> None:
    record = RunRecord(run_id="20260101-000000-abcd", created="", recipe=recipe())
    with pytest.raises(ConfigError, match="has no signals"):
        what_if(workspace.storage, record)


def test_counts_add_up(measured: Callable[..., Measured]) -> None:
    answer = measured().what_if(["select.c4=null"])
    drops = Counter[str]()
    for rule in answer.rules:
        drops[rule.source] += rule.drops
    for row in answer.sources:
        assert row.kept + drops[row.source] == row.documents
        assert row.kept == row.kept_before + row.newly_kept - row.newly_dropped


def test_a_source_that_gave_no_document_is_a_row_of_zeros(measured: Callable[..., Measured]) -> None:
    answer = measured({"web": [GOOD], "news": []}).what_if()
    news = next(row for row in answer.sources if row.source == "news")
    assert (news.documents, news.kept_before, news.kept, news.chars, news.is_stopped) == (0, 0, 0, 0, False)
    assert news.never == []  # nothing was judged


def test_rules_whose_signals_are_off_are_not_said_to_be_idle() -> None:
    config, tally = SelectConfig(), Tally()
    tally.documents["documents"] = 5
    tally.not_applied.update({"fineweb.max_newline_ratio": 5, "gopher_quality.min_words": 4})
    assert "gopher_quality.min_words" in never_firing(config, tally)
    assert "fineweb.max_newline_ratio" not in never_firing(config, tally)
