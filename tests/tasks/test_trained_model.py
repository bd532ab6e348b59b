"""The trained model as it is loaded, and the text it writes."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from tasks.errors import DataError
from tasks.manifest import Manifest
from tasks.trained_model import SamplingConfig, context_of, first_weights, generate_text, load_weights, run_of
from tests.tasks.conftest import LENGTH, WORDS, TrainedRun, phase_run


def test_weights_are_the_checkpoint_s(trained_run: TrainedRun) -> None:
    run = run_of(trained_run.trained)
    trained, first = load_weights(trained_run.into.storage, trained_run.trained.reference, run), first_weights(run)
    assert trained.rope_base == first.rope_base == 5_000.0
    assert trained.state_dict().keys() == first.state_dict().keys()
    assert float((trained.embedding.weight - first.embedding.weight).detach().abs().max()) > 1e-3


def test_damage_is_found(trained_run: TrainedRun) -> None:
    storage, key = trained_run.into.storage, trained_run.trained.extra["checkpoint"]
    [shard] = [file.key for file in storage.list_files(key) if file.key.endswith(".safetensors")]
    data = storage.read_bytes(shard)
    storage.write_bytes(shard, data[:-1] + bytes([data[-1] ^ 1]))
    try:
        with pytest.raises(DataError, match="sha256"):
            load_weights(storage, trained_run.trained.reference, run_of(trained_run.trained))
    finally:
        storage.write_bytes(shard, data)


def test_text_repeats_with_its_seed_and_was_learned(trained_run: TrainedRun) -> None:
    def write(seed: int) -> str:
        config = SamplingConfig(max_new_tokens=60, temperature=0.5, seed=seed)
        return generate_text(
            trained_run.into.storage, trained_run.trained, trained_run.vocabulary, "time light", config
        )

    text = write(1)
    assert text == write(1) != write(2)
    known = set("".join(WORDS) + " =.()\n0123456789")
    assert sum(letter in known for letter in text) > 0.9 * len(text), text  # untrained, any byte is as likely
    assert "<|" not in text


def after(trained_run: TrainedRun, parent: Manifest, stage: str, length: int, base: float, **model: Any) -> Manifest:
    """A further phase, or a fork of one, as its manifest tells of it."""
    into = replace(trained_run.into, run_id="lengths")
    run = phase_run(length)
    run = run.model_copy(
        update={
            "phase": run.phase.model_copy(update={"rope_base": base}),
            "model": run.model.model_copy(update=model),
        }
    )
    dataset = into.dataset(stage, run, inputs={"parent": parent}, module="tasks.train", with_code=False)
    return dataset.find() or dataset.publish_files({}, extra={"config": run.model_dump(mode="json")})


@pytest.mark.parametrize(
    ("phases", "context"),
    [
        ([("train", 32, 5_000.0)], LENGTH),  # an annealing with shorter rows
        ([("train", 512, 5_000.0)], 512),
        ([("train", 64, 5_000.0), ("train", 512, 1e6)], 512),  # long context with another base
        ([("train", 512, 1e6), ("train", 32, 1e6)], 512),
        ([("train", 512, 1e6), ("train", 32, 9e6)], 32),  # no more than 32 were met with this base
        ([("fork", 256, 5_000.0), ("train", 32, 5_000.0)], 256),
    ],
)
def test_the_context_is_the_longest_row_met_with_the_base(
    trained_run: TrainedRun, phases: list[tuple[str, int, float]], context: int
) -> None:
    trained = trained_run.trained
    for phase in phases:
        trained = after(trained_run, trained, *phase)
    assert context_of(trained_run.into.storage, trained) == context


def test_learned_positions_are_the_context(trained_run: TrainedRun) -> None:
    learned = after(trained_run, trained_run.trained, "train", 32, 5_000.0, positions="learned", max_positions=96)
    assert context_of(trained_run.into.storage, learned) == 96


def test_stages_load_no_torch_before_they_compute() -> None:
    loaded = "{'torch', 'transformers', 'ray'} & set(sys.modules)"
    code = f"import sys, tasks.evaluate, tasks.export, tasks.trained_model; print({loaded})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
