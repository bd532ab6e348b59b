"""Classifiers in the graph: trained after dedup-exact, scored in signals, judged in select, named by `plan`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows.pipeline import plan
from tasks.manifest import load_manifest
from tasks.parts import read_ledger, read_part
from tasks.recipe import Recipe
from tasks.runs import RunRecord
from tasks.storage import Storage

Execute = Callable[..., tuple[Any, RunRecord]]


def with_classifiers(values: dict[str, Any], folder: Path, *toxic: str) -> dict[str, Any]:
    """The recipe with every kind of classifier, and a rule over one of them."""
    (folder / "list.txt").write_text("import\nformal grammar\n")
    labels = [{"text": f"{word} statement {n}", "label": word} for n in range(30) for word in ("vile", "fine", *toxic)]
    (folder / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in labels))
    toxicity = {
        "labelled": {"path": str(folder / "labels.jsonl"), "positive": ["vile", *toxic]},
        "word_lists": [{"path": str(folder / "list.txt")}],
    }
    quality = {"positive": ["web"], "negative": ["code"], "buckets": 4096}
    section = {"quality": quality, "toxicity": toxicity, "perplexity": {"sources": ["web", "code"]}}
    rules = {"toxicity": {"max_listed_words": 20}, "gopher_quality": None, "gopher_repetition": None, "c4": None}
    return values | {"classifiers": section, "select": rules | {"fineweb": None}}


def planned(root: str, values: dict[str, Any]) -> dict[str, str]:
    recipe = Recipe.parse(values).model_dump(mode="json")
    return {line.label: str(line) for line in plan(root, recipe, None, "mix", False)}


def test_trained_scored_judged_and_found_again(
    execute: Execute, root: str, recipe_values: dict[str, Any], tmp_path: Path
) -> None:
    values = with_classifiers(recipe_values, tmp_path)
    state, record = execute(recipe=values)
    assert state.is_completed(), state.message
    labels = [line.label for line in record.datasets]
    assert labels[1:4] == ["dedup-exact", "classifiers", "signals"]

    storage = Storage(root)
    made = {line.label: load_manifest(storage, line.reference) for line in record.datasets}
    assert set(made["classifiers"].extra) == {"quality", "toxicity", "perplexity", "listed_words"}
    assert {entry["role"] for entry in made["signals"].inputs} == {"documents", "classifiers"}
    rows = [r for part in made["signals"].parts for t in read_part(storage, part) for r in t.to_pylist()]
    listed = {row["doc_id"]: row["num_listed_words"] for row in rows}
    assert all(0 <= row["quality_score"] <= 1 < row["perplexity"] for row in rows if row["num_words"])
    ledger = [row for part in made["select"].parts for row in read_ledger(storage, part).to_pylist()]
    dropped = {row["doc_id"]: row["value"] for row in ledger if row["reason"] == "toxicity.max_listed_words"}
    assert dropped == {doc_id: count for doc_id, count in listed.items() if count > 20}
    assert dropped

    assert {verdict.split(" (")[0] for verdict in planned(root, values).values()} == {"cached"}
    other = planned(root, with_classifiers(recipe_values, tmp_path, "awful"))
    assert other["dedup-exact"].startswith("cached")
    assert "toxicity.labelled changed" in other["classifiers"]
    assert other["signals"] == "if changed"


def test_an_empty_section_makes_no_dataset(root: str, recipe_values: dict[str, Any], first: RunRecord) -> None:
    assert "classifiers" not in {line.label for line in first.datasets}
    assert "classifiers" not in planned(root, recipe_values | {"classifiers": {}})
    assert all(verdict.startswith("cached") for verdict in planned(root, recipe_values).values())
