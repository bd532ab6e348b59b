"""evaluate: exact losses, bytes of real text, what was decontaminated, and caching."""

import dataclasses
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from model.architecture import ModelConfig
from tasks.contamination import cleaned_sets, status_of_sets
from tasks.dataset import Workspace
from tasks.errors import DataError, NotComputed
from tasks.evaluate import (
    SCHEMA,
    EvaluateConfig,
    evaluate_checkpoint,
    losses_of,
    measure_rows,
    rows_of_parts,
)
from tasks.manifest import Manifest
from tasks.pack import pack_schema
from tasks.parts import Part, read_part
from tasks.trained_model import SamplingConfig, check_vocabulary
from tests.tasks.conftest import LENGTH, TrainedRun

CONFIG = EvaluateConfig(prompts=("time light",), sampling=SamplingConfig(max_new_tokens=12))


def evaluate(
    run: TrainedRun, config: EvaluateConfig = CONFIG, into: Workspace | None = None, *more: Manifest
) -> Manifest:
    return evaluate_checkpoint(
        run.trained, run.vocabulary, *run.held_out.values(), *more, into=into or run.into, config=config
    )


@pytest.fixture(scope="module")
def scores(trained_run: TrainedRun) -> Manifest:
    return evaluate(trained_run)


def test_losses_before_are_guesses_and_after_are_better(scores: Manifest) -> None:
    losses = {row["source"]: row for row in scores.extra["losses"]}
    assert list(losses) == ["code", "web", "all"]
    for row in losses.values():
        assert row["nats_before"] == pytest.approx(math.log(320), rel=0.02)  # the rows of the model, padding included
        assert row["nats_after"] < 0.7 * row["nats_before"]
        for when in ("before", "after"):
            assert row[f"perplexity_{when}"] == pytest.approx(math.exp(row[f"nats_{when}"]))
            wanted = row[f"nats_{when}"] * row["tokens"] / row["bytes"] / math.log(2)
            assert row[f"bits_per_byte_{when}"] == pytest.approx(wanted)
    assert losses["all"]["tokens"] == losses["code"]["tokens"] + losses["web"]["tokens"]


def test_bytes_are_those_of_the_held_out_text(trained_run: TrainedRun, scores: Manifest) -> None:
    """Counted by decoding each row's text as a whole, special tokens and first tokens after a cut left out."""
    tokenizer = Tokenizer.from_str(
        trained_run.vocabulary.read_file(trained_run.into.storage, "tokenizer.json").decode()
    )
    special = set(trained_run.vocabulary.extra["special_tokens"].values())
    for row in scores.extra["losses"][:2]:
        pack, total, tokens = trained_run.held_out[row["source"]], 0, 0
        for table in (table for part in pack.parts for table in read_part(trained_run.into.storage, part)):
            for line in table.to_pylist():
                ends = [*line["document_starts"][1:], line["num_tokens"]]
                for start, end in zip(line["document_starts"], ends, strict=True):
                    ids = [token for token in line["input_ids"][start + 1 : end] if token not in special]
                    total += len(tokenizer.decode(ids, skip_special_tokens=False).encode())
                    tokens += len(ids)
        assert row["tokens"] == tokens
        assert row["bytes"] == pytest.approx(
            total, abs=0.002 * total
        )  # a document cut inside a character decodes longer


def test_a_row_per_pack_row(trained_run: TrainedRun, scores: Manifest) -> None:
    assert [part.source for part in scores.parts] == ["code", "web"]
    for part in scores.parts:
        table = pa.concat_tables(read_part(trained_run.into.storage, part))
        assert table["row"].to_pylist() == list(range(trained_run.held_out[part.source or ""].parts[0].rows or 0))
        assert table.schema == SCHEMA


def test_samples_continue_the_prompts(scores: Manifest) -> None:
    [sample] = scores.extra["samples"]
    assert sample["prompt"] == "time light"
    assert sample["text"]


def test_found_again_and_judged_in_a_dry_run(trained_run: TrainedRun, scores: Manifest) -> None:
    dry = dataclasses.replace(trained_run.into, dry=True)
    assert evaluate(trained_run, into=dry).reference == scores.reference
    with pytest.raises(NotComputed, match="rows_per_source"):
        evaluate(trained_run, CONFIG.model_copy(update={"rows_per_source": 3}), dry)


def test_same_bytes_on_a_second_computation(trained_run: TrainedRun, scores: Manifest) -> None:
    again = evaluate(trained_run, into=dataclasses.replace(trained_run.into, generations={"evaluate": 1}))
    assert again.digest == scores.digest
    assert again.extra == scores.extra


def test_an_interrupted_evaluation_goes_on(
    trained_run: TrainedRun, scores: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    into = dataclasses.replace(trained_run.into, generations={"evaluate": 2})
    monkeypatch.setattr("tasks.evaluate.sample_part", lambda unit, writer: (_ for _ in ()).throw(DataError("killed")))
    with pytest.raises(DataError, match="killed"):
        evaluate(trained_run, into=into)
    monkeypatch.undo()
    monkeypatch.setattr(
        "tasks.evaluate.measure_part", lambda unit, writer: (_ for _ in ()).throw(DataError("repeated"))
    )
    assert evaluate(trained_run, into=into).digest == scores.digest


# --- evaluation sets -----------------------------------------------------------------------------------------------


def test_only_what_was_cleaned_counts_as_decontaminated(trained_run: TrainedRun) -> None:
    status = status_of_sets(trained_run.into.storage, trained_run.trained, [], ["never-heard-of"])
    assert status == {
        "quiz": "decontaminated",
        "watched": "not decontaminated (sources: code, web)",  # reported on, never taken out
        "never-heard-of": "not decontaminated (sources: code, web)",
    }


def test_a_newer_report_on_equal_documents_counts(trained_run: TrainedRun, scores: Manifest) -> None:
    sets = trained_run.documents.config["evaluation_sets"]
    newer = dataclasses.replace(
        trained_run.documents,
        fingerprint="0" * 64,
        config=trained_run.documents.config | {"evaluation_sets": sets | {"added": sets["quiz"]}},
        extra={"evaluation_sets": {"quiz": {}, "added": {}}},
    )
    manifest = evaluate(trained_run, CONFIG, None, newer)
    assert manifest.fingerprint != scores.fingerprint
    assert scores.extra["evaluation_sets"].keys() == {"quiz", "watched"}
    assert manifest.extra["evaluation_sets"].keys() == {"quiz", "watched", "added"}
    assert manifest.extra["evaluation_sets"]["added"] == "decontaminated"
    other = dataclasses.replace(newer, digest="0" * 64)
    status = status_of_sets(trained_run.into.storage, trained_run.trained, [other], [])
    assert status["added"] == "not decontaminated (sources: code, web)"


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({}, {"quiz"}),
        ({"enabled": False}, set()),
        ({"by_source": {"code": {"enabled": False}}}, set()),
        ({"by_source": {"web": {"enabled": False}}}, {"quiz"}),
        ({"by_source": {"code": {"evaluation_sets": {"quiz": {"action": "report"}}}}}, set()),
    ],
)
def test_settings_for_one_source(trained_run: TrainedRun, change: dict[str, Any], wanted: set[str]) -> None:
    manifest = dataclasses.replace(trained_run.documents, config=trained_run.documents.config | change)
    assert cleaned_sets(manifest, "code") == wanted


# --- single functions ----------------------------------------------------------------------------------------------


class Uniform(torch.nn.Module):
    """A model that gives each of its `vocabulary` tokens the same probability."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.nats = math.log(vocabulary)

    def forward(self, ids_BT: Tensor, starts: list[list[int]], targets_BT: Tensor) -> Any:
        nll = torch.where(targets_BT >= 0, self.nats, 0.0)
        return type("Losses", (), {"nll_BT": nll})


def test_hand_counted_bits_per_byte() -> None:
    """bos=0 and eos=1 are special; 2 stands for 3 bytes (half a character is 1), 3 for 1 (nanochat#693)."""
    rows = pa.table(
        {
            "input_ids": pa.FixedSizeListArray.from_arrays(
                pa.array([0, 2, 3, 1, 0, 2, 1, 9, 2, 2, 3, 3, 1, 0, 3, 1], pa.uint16()), 8
            ),
            "document_starts": pa.array([[0, 4], [0, 5]], pa.list_(pa.int32())),
            "num_tokens": pa.array([7, 8], pa.int32()),
        }
    )
    table = measure_rows(rows, [Uniform(8), Uniform(2)], torch.tensor([0, 0, 3, 1] + [0] * 6), first=256)
    assert table["row"].to_pylist() == [256, 257]
    assert table["tokens"].to_pylist() == [
        3,
        4,
    ]  # 2 3 | 2; then 2 3 3 | 3: the first token of a continuation has no target
    assert table["bytes"].to_pylist() == [7, 6]
    assert table["nats_before"].to_pylist() == pytest.approx([3 * math.log(8), 4 * math.log(8)])
    figures = losses_of(7, 13, 7 * math.log(8), 7 * math.log(2))
    assert figures["bits_per_byte_before"] == pytest.approx(21 / 13)
    assert figures["bits_per_byte_after"] == pytest.approx(7 / 13)
    assert figures["perplexity_before"] == pytest.approx(8)


def test_nothing_held_out_has_no_figures() -> None:
    figures = losses_of(0, 0, 0.0, 0.0)
    assert figures["bits_per_byte_after"] is None
    assert figures["perplexity_after"] is None


def test_rows_are_spread_over_the_parts(scores: Manifest) -> None:
    parts = [Part("pack", str(index), rows, 1, "", "", "web") for index, rows in enumerate((100, 0, 50, 1))]
    pack = dataclasses.replace(scores, parts=parts)
    chosen = [(part.key, rows) for part, rows in rows_of_parts({"web": pack}, 30)]
    assert sum(rows for _, rows in chosen) == 30
    assert chosen == [("0", 19), ("2", 10), ("3", 1)]
    assert [rows for _, rows in rows_of_parts({"web": pack}, 1000)] == [100, 50, 1]
    assert list(rows_of_parts({"web": dataclasses.replace(pack, parts=[])}, 5)) == []


def test_a_tokenizer_too_large_is_refused() -> None:
    check_vocabulary(ModelConfig.of_size("tiny"), 512)
    with pytest.raises(DataError, match="513 entries, the model 512 rows"):
        check_vocabulary(ModelConfig.of_size("tiny"), 513)


def test_fewer_rows_measure_the_first_ones(trained_run: TrainedRun, scores: Manifest) -> None:
    few = evaluate(trained_run, CONFIG.model_copy(update={"rows_per_source": 3}))
    for part, whole in zip(few.parts, scores.parts, strict=True):
        table, all_rows = (pa.concat_tables(read_part(trained_run.into.storage, p)) for p in (part, whole))
        assert table.num_rows == 3
        assert np.allclose(table["nats_after"], all_rows["nats_after"][:3], rtol=1e-5)
    assert pack_schema(LENGTH, 300).field("input_ids").type.value_type == pa.uint16()
