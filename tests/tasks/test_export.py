"""export: a folder that transformers loads, with logits that agree; a wrong one is refused."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from model.transformer import Attention
from tasks.errors import DataError
from tasks.export import ExportConfig, export_model, real_rows
from tasks.manifest import Manifest
from tasks.trained_model import load_weights, run_of
from tests.tasks.conftest import LENGTH, TrainedRun


@pytest.fixture(scope="module")
def exported(trained_run: TrainedRun) -> Manifest:
    return export_model(trained_run.trained, trained_run.vocabulary, into=trained_run.into, config=ExportConfig())


def folder_of(run: TrainedRun, manifest: Manifest) -> Path:
    return Path(run.into.storage.path(manifest.reference))


def test_transformers_loads_it_and_agrees_on_real_text(trained_run: TrainedRun, exported: Manifest) -> None:
    assert exported.extra["max_logit_difference"] <= 1e-4
    assert exported.extra["rows"] == 8  # four of each source
    folder = folder_of(trained_run, exported)
    llama = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    size = trained_run.vocabulary.extra["size"]
    assert llama.config.vocab_size == len(tokenizer) == size < 320  # the padding of the embedding is gone
    assert llama.config.max_position_embeddings == LENGTH
    assert llama.config.rope_parameters["rope_theta"] == 5_000.0  # the phase's, not the model's
    model = load_weights(trained_run.into.storage, trained_run.trained.reference, run_of(trained_run.trained))
    ids = tokenizer("time walks under water café", return_tensors="pt")["input_ids"]
    assert ids[0, 0] == llama.generation_config.bos_token_id == trained_run.vocabulary.extra["special_tokens"]["bos"]
    with torch.no_grad():
        difference = (model(ids)[..., :size] - llama(ids).logits).abs().max()
    assert float(difference) <= 1e-4
    assert tokenizer.decode(ids[0], skip_special_tokens=True) == "time walks under water café"


def test_the_certificate_says_what_was_shown(trained_run: TrainedRun, exported: Manifest) -> None:
    storage = trained_run.into.storage
    parity = json.loads(exported.read_file(storage, "parity.json"))
    assert parity == exported.extra
    assert (parity["shape"], parity["tokens"], parity["weights_dtype"]) == ("llama", 8 * LENGTH, "fp32")
    assert 0 < parity["max_logit_difference"] <= 1e-5 * max(1.0, parity["largest_logit"])


def test_large_weights_are_written_in_pieces(trained_run: TrainedRun) -> None:
    config = ExportConfig(max_shard_size="200KB")
    manifest = export_model(trained_run.trained, trained_run.vocabulary, into=trained_run.into, config=config)
    pieces = [part for part in manifest.parts if part.key.endswith(".safetensors")]
    assert len(pieces) > 1
    folder = folder_of(trained_run, manifest)
    assert all((folder / part.key).stat().st_size == part.bytes for part in pieces)
    assert AutoModelForCausalLM.from_pretrained(folder).config.vocab_size == trained_run.vocabulary.extra["size"]


def test_files_are_listed_and_found_again(trained_run: TrainedRun, exported: Manifest) -> None:
    names = {part.key for part in exported.parts}
    assert {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    } <= names
    assert json.loads(exported.read_file(trained_run.into.storage, "config.json"))["architectures"] == [
        "LlamaForCausalLM"
    ]
    dry = dataclasses.replace(trained_run.into, dry=True)
    again = export_model(trained_run.trained, trained_run.vocabulary, into=dry, config=ExportConfig())
    assert again.reference == exported.reference


def test_same_bytes_on_a_second_computation(trained_run: TrainedRun, exported: Manifest) -> None:
    into = dataclasses.replace(trained_run.into, generations={"export": 1})
    again = export_model(trained_run.trained, trained_run.vocabulary, into=into, config=ExportConfig())
    assert again.digest == exported.digest


def test_bf16_halves_the_weights(trained_run: TrainedRun, exported: Manifest) -> None:
    small = export_model(
        trained_run.trained, trained_run.vocabulary, into=trained_run.into, config=ExportConfig(dtype="bf16")
    )
    sizes = [next(part.bytes for part in m.parts if part.key == "model.safetensors") for m in (exported, small)]
    assert sizes[1] == pytest.approx(sizes[0] / 2, rel=0.05)
    assert AutoModelForCausalLM.from_pretrained(folder_of(trained_run, small), dtype="auto").dtype == torch.bfloat16


def test_a_difference_refuses_the_export(trained_run: TrainedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(
        self: Attention, x_BTD: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor], layout: object
    ) -> torch.Tensor:
        cos_BTH, sin_BTH = turns
        return original(self, x_BTD, (cos_BTH, -sin_BTH), layout)  # type: ignore[arg-type]

    original = Attention.forward
    into = dataclasses.replace(trained_run.into, generations={"export": 2})
    monkeypatch.setattr(Attention, "forward", shifted)
    with pytest.raises(DataError, match="logits differ from transformers' by"):
        export_model(trained_run.trained, trained_run.vocabulary, into=into, config=ExportConfig())
    assert not [file for file in into.storage.list_files("export") if file.key.count("manifest") and "gen2" in file.key]


def test_real_rows_need_a_pack(trained_run: TrainedRun) -> None:
    assert real_rows(trained_run.into.storage, trained_run.trained).shape == (8, LENGTH)
    with pytest.raises(DataError, match="no text to compare"):
        real_rows(trained_run.into.storage, dataclasses.replace(trained_run.trained, inputs=[]))
