"""Causes: what differs between two identities, in words."""

from dataclasses import replace

from tasks.cause import Identity, cause_of, config_changes, differences
from tasks.dataset import Workspace

BEFORE = Identity(
    config={"min_words": 50, "rules": {"a": 1, "b": [1, 2]}},
    inputs={"documents": "d1"},
    external={"files": "f1"},
    modules={"tasks.select": "m1", "tasks.select.rules": "m2"},
    packages={"numba": "0.68"},
    generation=0,
)


def test_equal_identities_have_no_difference() -> None:
    assert differences(BEFORE, BEFORE) == []


def test_each_difference_has_a_name() -> None:
    now = replace(
        BEFORE,
        config={"min_words": 60, "rules": {"a": 1, "b": [1]}, "new": True},
        inputs={"documents": "d2"},
        external={"files": "f2"},
        modules={"tasks.select": "m1", "tasks.select.rules": "changed"},
        packages={"numba": "0.69"},
        generation=2,
    )
    assert differences(now, BEFORE) == [
        "input documents changed",
        "files changed",
        "min_words: 50 -> 60",
        "new: None -> True",
        "rules.b: [1, 2] -> [1]",
        "code of tasks.select.rules changed",
        "package numba changed",
        "forced, generation 2",
    ]


def test_config_changes_are_paths_with_both_values() -> None:
    assert config_changes({"a": {"b": 1}}, {"a": {"b": 2}}) == {"a.b": (2, 1)}
    assert config_changes({"a": 1}, {"a": {"b": 2}}) == {"a": ({"b": 2}, 1)}
    assert config_changes({}, {}) == {}


def test_the_most_similar_of_the_earlier_datasets_is_named(workspace: Workspace) -> None:
    now = replace(BEFORE, config={"size": 3}, inputs={}, external={}, modules={}, packages={})
    assert cause_of(workspace.storage, "vocabulary", now) == "never computed here"
    for external in ({"one": 1, "two": 2}, {"one": 1}):
        dataset = workspace.dataset("vocabulary", None, inputs={}, module="tasks.documents", external=external)
        dataset.publish_files({"a": b"1"})
    alike = replace(now, config={}, external={"one": 2})
    assert cause_of(workspace.storage, "vocabulary", alike) == "one changed"
    assert cause_of(workspace.storage, "vocabulary", replace(alike, external={"one": 1})) == "its manifest is gone"
