"""The whole recipe, from raw text to an exported model, on real text: once for the module, then questions about it."""

import heapq
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from tokenizers import Tokenizer

from flows import launch
from flows.pipeline import plan
from tasks.evaluate.task_scores import score_text
from tasks.funnel import FUNNEL_STAGES, funnel
from tasks.ledger import LEDGER_SCHEMA
from tasks.manifest import Manifest, load_manifest
from tasks.parts import read_ledger, read_part
from tasks.recipe import Recipe
from tasks.runs import RunRecord, load_record, new_run_id
from tasks.storage import Storage
from tasks.summary import summarise
from tasks.trace import trace_step
from tasks.why import tell_story


def run_recipe(server_url: str, root: str, values: dict[str, Any]) -> RunRecord:
    run_id = new_run_id()
    recipe = Recipe.parse(values).model_dump(mode="json")
    parameters = {"root": root, "recipe": recipe, "from_stage": None, "until_stage": None, "force": False}
    with launch.connected(server_url) as client:
        state = launch.execute(client, launch.create_run(client, run_id, parameters))
    assert state.is_completed(), state.message
    return load_record(Storage(root), run_id)


class Whole:
    """A finished run of the module's recipe, and the means to run it again in another way."""

    def __init__(self, server_url: str, folder: Path, values: dict[str, Any]) -> None:
        self.server_url, self.folder, self.values = server_url, folder, values
        self.root = str(folder / "lake")
        self.storage = Storage(self.root)
        self.record = self.again(values)

    def again(self, values: dict[str, Any]) -> RunRecord:
        return run_recipe(self.server_url, self.root, values)

    def dataset(self, label: str, record: RunRecord | None = None, storage: Storage | None = None) -> Manifest:
        [line] = [line for line in (record or self.record).datasets if line.label == label]
        return load_manifest(storage or self.storage, line.reference)

    def planned(self, values: dict[str, Any]) -> dict[str, str]:
        recipe = Recipe.parse(values).model_dump(mode="json")
        return {line.label: str(line) for line in plan(self.root, recipe, None, None, False)}


@pytest.fixture(scope="module")
def whole(server_url: str, tmp_path_factory: pytest.TempPathFactory, tiny_recipe: Any) -> Iterator[Whole]:
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BASEMILL_WORKERS", "0")
        yield Whole(server_url, folder, with_task(tiny_recipe(folder / "raw"), folder / "piqa.jsonl"))


def with_task(values: dict[str, Any], file: Path) -> dict[str, Any]:
    """The recipe with a task of two items, which no document holds and which is searched for."""
    goal = "By which means could a visitor of that lighthouse have measured how far the second island lies?"
    items = [{"goal": f"{goal} {n}", "sol1": "with a rope", "sol2": "by asking", "label": n} for n in (0, 1)]
    file.write_text("".join(json.dumps(item) + "\n" for item in items))
    sets = {"piqa": {"path": str(file), "question": "goal"}}
    return values | {
        "decontaminate": {"evaluation_sets": sets},
        "evaluate": {"tasks": {"piqa": {"path": str(file)}, "arc_easy": {"path": str(arc_file(file.parent))}}},
    }


def arc_file(folder: Path) -> Path:
    """A task that is not searched for."""
    file = folder / "arc.jsonl"
    file.write_text(json.dumps({"query": "Question: which?", "choices": ["this", "that"], "gold": 0}))
    return file


def test_every_stage_made_what_it_should(whole: Whole) -> None:
    labels = [line.label for line in whole.record.datasets]
    assert labels == [
        *("ingest", "dedup-exact", "signals", "select", "dedup-near", "redact", "decontaminate", "mix", "vocabulary"),
        *(f"pack {source} {split} 64" for split in ("train", "held_out") for source in ("code", "web")),
        *("train main", "evaluate", "export"),
    ]  # fmt: skip


def test_no_document_is_lost_between_stages(whole: Whole) -> None:
    out = whole.dataset("ingest").totals["rows_out"]
    for label in ("dedup-exact", "select", "dedup-near", "redact", "decontaminate"):
        manifest = whole.dataset(label)
        totals = manifest.totals
        assert totals["rows_in"] == out
        assert totals["rows_in"] == totals["rows_out"] + totals["dropped"] + totals["errors"]
        ledgers = [read_ledger(whole.storage, part) for part in manifest.parts]
        assert all(ledger.schema == LEDGER_SCHEMA for ledger in ledgers)
        assert sum(ledger["action"].to_pylist().count("drop") for ledger in ledgers) == totals["dropped"]
        out = totals["rows_out"]
    sizes = whole.dataset("mix").extra["sizes"]
    assert sum(size["documents"] for splits in sizes.values() for size in splits.values()) == out


def test_training_learnt_something_and_the_scores_say_so(whole: Whole) -> None:
    trained = whole.dataset("train main").extra
    assert trained["loss_last"] < trained["loss_first"] - 0.3
    losses = whole.dataset("evaluate").extra["losses"]
    assert {row["source"] for row in losses} == {"all", "web", "code"}
    assert all(0 < row["bits_per_byte_after"] < row["bits_per_byte_before"] for row in losses)


def test_the_dashboard_has_the_loss_curve_of_the_training_and_of_the_end(whole: Whole) -> None:
    with launch.connected(whole.server_url) as client:
        found = client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=["loss"])))
        makers = [client.read_task_run(artifact.task_run_id).name for artifact in found if artifact.task_run_id]
    assert {name.rpartition("-")[0] for name in makers} >= {"train", "report"}
    assert all("data:image/svg+xml" in str(artifact.data) for artifact in found)


def test_a_task_that_was_searched_for_has_scores(whole: Whole) -> None:
    arc, piqa = whole.dataset("evaluate").extra["tasks"]
    assert arc == {"task": "arc_easy", "status": "not decontaminated (sources: code, web)"}
    assert (piqa["task"], piqa["status"], piqa["items"]) == ("piqa", "decontaminated", 2)
    figures = summarise(whole.storage, whole.record)
    assert figures["tasks"] == [arc, piqa]
    page = Path(figures["report"]).read_text()
    for line in (arc, piqa):
        assert f"<td>{score_text(line)}</td>" in page


def test_transformers_loads_the_export_with_the_same_tokens(whole: Whole, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer  # late: five seconds that other tests need not wait

    exported = whole.dataset("export")
    for part in exported.parts:
        (tmp_path / part.key).write_bytes(exported.read_file(whole.storage, part.key))
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    own = Tokenizer.from_buffer(whole.dataset("vocabulary").read_file(whole.storage, "tokenizer.json"))
    text = "The import statement é 中文"
    assert tokenizer(text)["input_ids"] == own.encode(text).ids
    assert model(**tokenizer(text, return_tensors="pt")).logits.shape[-1] == own.get_vocab_size()  # the padding is gone
    assert exported.extra["max_logit_difference"] <= 1e-4


def test_a_second_run_finds_everything(whole: Whole) -> None:
    assert all(verdict == f"cached (run {whole.record.run_id})" for verdict in whole.planned(whole.values).values())
    second = whole.again(whole.values)
    assert all(line.cached for line in second.datasets)


def test_another_weight_trains_again_on_the_same_packs(whole: Whole) -> None:
    values = json.loads(json.dumps(whole.values))
    values["train"]["phases"][0]["weights"] = {"web": 1, "code": 1}
    values["vocabulary"]["sample_weights"] = {"web": 2, "code": 1}  # what it was: the first phase's weights
    changed = [label for label, verdict in whole.planned(values).items() if not verdict.startswith("cached")]
    assert changed == ["train main", "evaluate", "export"]


def test_another_run_goes_on_from_a_checkpoint_anneals_and_extends(whole: Whole) -> None:
    """A fork with another mixture, then longer rows: what came before train is taken as it is."""
    run_id = whole.record.run_id
    usual = whole.values["train"]["phases"][0] | {"tokens": 1024, "schedule": {"lr": 1e-3, "shape": "linear"}}
    anneal = usual | {"name": "anneal", "after": {"run": run_id}, "weights": {"code": 1, "web": 1}}
    long = usual | {"name": "long", "sequence_length": 128, "min_document_tokens": 100, "rope_base": 50_000}
    values = whole.values | {"train": whole.values["train"] | {"phases": [anneal, long]}, "export": {"enabled": False}}
    values |= {"pin": {"vocabulary": run_id}}  # else a tokenizer would be made in the proportions of the first phase
    planned = whole.planned(values)
    assert planned["pack web train 64"] == f"cached (run {run_id})"
    assert planned["fork anneal"].startswith("run (")
    record = whole.again(values)
    assert record.state == "completed"
    annealed, extended = (whole.dataset(f"train {name}", record).extra for name in ("anneal", "long"))
    main = whole.dataset("train main").extra
    assert (annealed["fork"]["run"], annealed["fork"]["step"]) == (run_id, main["step"])
    assert annealed["loss_first"] < main["loss_first"] - 0.3  # it goes on, it does not begin again
    ordinals = {pack: main["ordinals"][pack] for pack in annealed["ordinals"]}
    assert sum(annealed["ordinals"].values()) == sum(ordinals.values()) + 1024 // 64
    assert extended["tokens"] == 1024
    assert trace_step(whole.storage, record, 3, "main").rows == trace_step(whole.storage, whole.record, 3).rows
    before = whole.dataset("evaluate").extra["losses"][0]["bits_per_byte_after"]
    losses = whole.dataset("evaluate", record).extra["losses"][0]
    assert losses["bits_per_byte_before"] == pytest.approx(before, rel=0.2)  # of the weights that it began with


def test_a_traced_batch_is_what_the_packs_hold(whole: Whole) -> None:
    traced = trace_step(whole.storage, whole.record, 3)
    tokenizer = Tokenizer.from_buffer(whole.dataset("vocabulary").read_file(whole.storage, "tokenizer.json"))
    texts = {
        row["doc_id"]: row
        for part in whole.dataset("decontaminate").parts
        for table in read_part(whole.storage, part)
        for row in table.to_pylist()
    }
    assert len(traced.rows) == 4
    assert [row.position for row in traced.rows] == list(range(8, 12))
    for row in traced.rows:
        ids = pq.read_table(io.BytesIO(whole.storage.read_bytes(row.pack_part)))["input_ids"][row.row].as_py()
        start = 0
        for span in row.spans:
            document = texts[span.doc_id]
            assert span.raw_ref == document["raw_ref"]
            assert document["text"].startswith(span.excerpt)
            whole_ids = [0, *tokenizer.encode(document["text"], add_special_tokens=False).ids, 1]
            piece = ids[start : start + span.num_tokens]
            assert piece == whole_ids[span.token_offset : span.token_offset + span.num_tokens]
            start += span.num_tokens


def test_the_story_of_a_duplicate_names_its_twin(whole: Whole) -> None:
    manifest = whole.dataset("dedup-near")
    ledgers = [row for part in manifest.parts for row in read_ledger(whole.storage, part).to_pylist()]
    dropped = next(row for row in ledgers if row["action"] == "drop")
    story = tell_story(whole.storage, whole.record, dropped["doc_id"])
    assert [fact.stage for fact in story.facts] == ["ingest", "dedup-exact", "signals", "select", "dedup-near"]
    assert story.facts[-1].matched_id == dropped["matched_id"]
    assert (story.facts[-1].value or 0) >= 0.7
    twin = tell_story(whole.storage, whole.record, dropped["matched_id"])
    assert twin.is_kept
    assert twin.facts[-1].stage == "pack"


def test_a_new_file_costs_its_own_parts(whole: Whole) -> None:
    """In local stages the new file's parts; in global ones its keys, the exchange, parts whose decisions changed."""
    before = {line.label: {part.key for part in whole.dataset(line.label).parts} for line in whole.record.datasets}
    raw = whole.folder / "raw" / "web"
    essay = json.dumps({"text": heapq.__about__})
    (raw / "zz-new.jsonl").write_text(f"{essay}\n")
    record = whole.again(whole.values)
    (raw / "zz-new.jsonl").unlink()
    for label in ("ingest", "dedup-exact", "signals", "select", "dedup-near", "redact", "decontaminate", "mix"):
        now = {part.key for part in whole.dataset(label, record).parts}
        assert not before[label] - now, label
        assert len(now - before[label]) == 1, label


def test_results_do_not_depend_on_the_run(whole: Whole, finished: tuple[str, RunRecord]) -> None:
    """Another root and run, without the tasks: the same digests of all else, and the same losses to the last bit."""
    storage, other = Storage(finished[0]), finished[1]
    with_tasks = ("evaluate", "export")  # scores, and the card that holds them
    digests = [
        [(line.label, line.digest) for line in record.datasets if line.label not in with_tasks]
        for record in (whole.record, other)
    ]
    assert digests[0] == digests[1]
    first = whole.dataset("train main").read_file(whole.storage, "metrics.parquet")
    second = whole.dataset("train main", other, storage).read_file(storage, "metrics.parquet")
    assert np.array_equal(pq.read_table(io.BytesIO(first))["loss"], pq.read_table(io.BytesIO(second))["loss"])


def test_the_summary_holds_the_figures_that_run_prints(whole: Whole) -> None:
    figures = summarise(whole.storage, whole.record)
    assert figures["state"] == "completed"
    assert figures["training"]["train main"]["tokens"] == 8192
    assert {row["source"] for row in figures["losses"]} == {"all", "web", "code"}
    assert Path(figures["model"], "config.json").exists()
    assert Path(figures["report"]).exists()
    for source in ("web", "code"):
        rows = [row for row in funnel(whole.storage, whole.record) if row.source == source]
        assert [row.stage for row in rows] == list(FUNNEL_STAGES)
        assert rows[-1].tokens == whole.dataset(f"pack {source} train 64").extra["tokens"]
        assert all(row.rows_in == row.rows_out + row.dropped + row.errors + row.skipped for row in rows[:-2])
