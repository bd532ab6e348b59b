"""The trained model as it is loaded, and the text it writes."""

import subprocess
import sys

import pytest

from tasks.errors import DataError
from tasks.trained_model import SamplingConfig, first_weights, generate_text, load_weights, run_of
from tests.tasks.conftest import WORDS, TrainedRun


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


def test_stages_load_no_torch_before_they_compute() -> None:
    loaded = "{'torch', 'transformers', 'ray'} & set(sys.modules)"
    code = f"import sys, tasks.evaluate, tasks.export, tasks.trained_model; print({loaded})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
