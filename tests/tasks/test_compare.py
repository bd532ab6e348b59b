"""Two runs side by side: what differs in the recipes, and every figure of both."""

from typing import Any

import pytest

from tasks.compare import compare_runs, differences
from tasks.dataset import Workspace
from tasks.mixture import split_documents
from tasks.recipe import Recipe
from tasks.runs import RunRecord
from tasks.select import select_documents
from tasks.signals import SignalsConfig, measure_signals
from tests.conftest import MakeDocuments
from tests.tasks.test_report import line_of
from tests.tasks.test_select import GOOD
from tests.tasks.test_whatif import recipe

TEXTS = {"web": [GOOD, GOOD + " It is over.", GOOD + " {x}", "The short one of that kind."], "news": [GOOD]}

LONG = f"num_words > {len(GOOD.split())}"


def run_of(into: Workspace, make_documents: MakeDocuments, run_id: str, values: dict[str, Any]) -> RunRecord:
    """A run of this recipe up to mix, without the stages between."""
    parsed = Recipe.parse(values)
    documents = make_documents(TEXTS, parts=1)
    signals = measure_signals(documents, into=into, config=SignalsConfig())
    selected = select_documents(documents, signals, into=into, config=parsed.select)
    mix = split_documents(selected, into=into, config=parsed.mix)
    record = RunRecord(run_id=run_id, created="", recipe=values)
    for manifest in (documents, signals, selected, mix):
        record.set_dataset(line_of(manifest))
    return record


def test_two_runs_side_by_side(workspace: Workspace, make_documents: MakeDocuments) -> None:
    changed = recipe(c4={"max_curly_brackets": None}, rules={"long": LONG})
    changed["train"]["phases"][0]["weights"] = {"news": 1.0, "web": 3.0}
    one = run_of(workspace, make_documents, "20260101-000000-aaaa", recipe())
    other = run_of(workspace, make_documents, "20260102-000000-bbbb", changed)
    found = compare_runs(workspace.storage, one, other)
    assert found.runs == (one.run_id, other.run_id)
    assert {setting.key: setting.values for setting in found.settings} == {
        "select.c4.max_curly_brackets": (0, None),
        "select.rules.long": (None, LONG),
        "train.phases[0].weights.news": (None, 1),
        "train.phases[0].weights.web": (1, 3),
    }
    funnel = {(row.stage, row.source): row.documents for row in found.funnel}
    assert funnel["ingest", "web"] == (4, 4)
    assert funnel["select", "web"] == funnel["mix", "web"] == (2, 1)
    reasons = {row.reason: row.documents for row in found.reasons if row.source == "web"}
    assert reasons == {"c4.max_curly_brackets": (1, None), "gopher_quality.min_words": (1, 1), "rules.long": (None, 2)}
    mixture = {row.source: row for row in found.mixture}
    assert (mixture["web"].share, mixture["news"].share) == ((1, 0.75), (None, 0.25))
    assert (mixture["web"].epochs[0] or 0) > 4
    assert mixture["news"].epochs[0] is None


def test_a_run_beside_itself_differs_in_nothing(workspace: Workspace, make_documents: MakeDocuments) -> None:
    one = run_of(workspace, make_documents, "20260101-000000-aaaa", recipe())
    found = compare_runs(workspace.storage, one, one)
    assert found.settings == []
    assert all(left == right for row in found.funnel for left, right in (row.documents, row.bytes, row.tokens))


def test_a_run_that_came_less_far_has_no_figures_there(workspace: Workspace, make_documents: MakeDocuments) -> None:
    one = run_of(workspace, make_documents, "20260101-000000-aaaa", recipe())
    early = RunRecord(run_id="20260102-000000-bbbb", created="", recipe=recipe())
    early.set_dataset(one.datasets[0])
    found = compare_runs(workspace.storage, one, early)
    pairs = {(row.stage, row.source): row.documents for row in found.funnel}
    assert pairs["ingest", "web"] == (4, 4)
    assert pairs["select", "web"] == (2, None)
    assert [row.epochs[1] for row in found.mixture] == [None]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 2}}, [("a.b", (1, 2))]),
        ({"a": {"b": 1}}, {"a": None}, [("a", ({"b": 1}, None))]),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, [("a[1].b", (2, 3))]),
        ({"a": [1]}, {"a": [1, 2]}, [("a", ([1], [1, 2]))]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, []),
        ({"a": None}, {}, []),
    ],
)
def test_settings_are_compared_key_by_key(one: Any, other: Any, expected: list[Any]) -> None:
    assert [(setting.key, setting.values) for setting in differences(one, other)] == expected
