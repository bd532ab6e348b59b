"""import: weights and tokenizer of a transformers folder, continued by a first phase; what does not fit is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from model.config import PhaseRun
from model.job import Settings
from model.transformer import Transformer
from tasks.contamination import status_of_sets
from tasks.dataset import Workspace
from tasks.errors import ConfigError, NotComputed
from tasks.evaluate import EvaluateConfig, evaluate_checkpoint
from tasks.export import ExportConfig, export_model
from tasks.import_weights import import_weights, read_model, take_tokenizer
from tasks.manifest import Manifest, load_manifest
from tasks.recipe import Recipe
from tasks.train import train_phase
from tasks.trained_model import load_weights, run_of
from tests.tasks.conftest import LENGTH, TrainedRun


@pytest.fixture(scope="module")
def folder(trained_run: TrainedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export, as if it came from elsewhere."""
    exported = export_model(trained_run.trained, trained_run.vocabulary, into=trained_run.into, config=ExportConfig())
    target = tmp_path_factory.mktemp("foreign") / "llama"
    shutil.copytree(trained_run.into.storage.path(exported.reference), target)
    return target


@pytest.fixture(scope="module")
def imported(trained_run: TrainedRun, folder: Path) -> Manifest:
    return import_weights(into=trained_run.into, config=read_model(str(folder)), path=str(folder))


@pytest.fixture(scope="module")
def continued(trained_run: TrainedRun, folder: Path, imported: Manifest) -> Manifest:
    """Ten more steps at a fresh learning rate."""
    run = run_of(trained_run.trained)
    phase = run.phase.model_copy(update={"name": "more", "tokens": 10 * 8 * LENGTH})
    config = PhaseRun.model_validate(run.model_dump() | {"model": read_model(str(folder)), "phase": phase})
    packs = [load_manifest(trained_run.into.storage, f"pack/{i['fingerprint']}") for i in trained_run.trained.inputs]
    return train_phase(*packs, imported, into=trained_run.into, config=config, settings=Settings(threads=1))


def test_weights_are_those_of_the_folder_and_found_again(
    trained_run: TrainedRun, folder: Path, imported: Manifest
) -> None:
    ours = load_weights(trained_run.into.storage, trained_run.trained.reference, run_of(trained_run.trained))
    again = load_weights(trained_run.into.storage, imported.reference, run_of(trained_run.trained)).state_dict()
    for name, tensor in ours.state_dict().items():
        assert torch.equal(again[name][:300], tensor[:300]), name
    facts = ("import", "llama", LENGTH, 5_000.0)
    assert (imported.stage, *(imported.extra[name] for name in ("shape", "context", "rope_base"))) == facts
    dry = replace(trained_run.into, dry=True)
    assert import_weights(into=dry, config=read_model(str(folder)), path=str(folder)).reference == imported.reference


def test_a_first_phase_continues_them(trained_run: TrainedRun, imported: Manifest, continued: Manifest) -> None:
    assert continued.extra["loss_first"] < trained_run.trained.extra["loss_first"] / 2
    assert [line["stage"] for line in continued.inputs if line["role"] == "parent"] == ["import"]
    assert continued.extra["ordinals"] == {
        key: value for key, value in continued.extra["ordinals"].items() if value <= 80
    }  # counted from 0: nothing of this text was read before


def test_no_score_of_imported_weights_counts_as_decontaminated(
    trained_run: TrainedRun, imported: Manifest, continued: Manifest
) -> None:
    status = status_of_sets(trained_run.into.storage, continued, [], ["other"])
    assert status == dict.fromkeys(("other", "quiz", "watched"), "not decontaminated (imported weights)")
    arguments: dict[str, Any] = {"into": trained_run.into, "config": EvaluateConfig(prompts=(), rows_per_source=16)}
    held_out = trained_run.held_out.values()
    first, more = (
        evaluate_checkpoint(trained, trained_run.vocabulary, *held_out, **arguments).extra["losses"][-1]
        for trained in (trained_run.trained, continued)
    )
    assert more["nats_before"] == pytest.approx(first["nats_after"], rel=1e-2)  # not those of random weights


def test_its_tokenizer_stands_in_the_place_of_a_trained_one(trained_run: TrainedRun, folder: Path) -> None:
    taken = take_tokenizer(into=trained_run.into, config=read_model(str(folder)), path=str(folder))
    trained = trained_run.vocabulary
    assert taken.stage == "vocabulary"
    assert {name: taken.extra[name] for name in ("size", "special_tokens")} == {
        "size": trained.extra["size"],
        "special_tokens": {role: trained.extra["special_tokens"][role] for role in ("bos", "eos", "pad")},
    }
    storage = trained_run.into.storage
    sizes = [json.loads(manifest.read_file(storage, "token_bytes.json")) for manifest in (taken, trained)]
    assert sizes[0] == sizes[1]


def test_a_tokenizer_without_bos_and_pad_uses_its_eos(trained_run: TrainedRun, folder: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(folder, tmp_path / "copy"))
    settings = json.loads((copied / "tokenizer_config.json").read_text())
    settings |= {"bos_token": None, "pad_token": None, "eos_token": {"content": "<|eos|>", "lstrip": False}}
    (copied / "tokenizer_config.json").write_text(json.dumps(settings))
    taken = take_tokenizer(into=trained_run.into, config=read_model(str(copied)), path=str(copied))
    eos = trained_run.vocabulary.extra["special_tokens"]["eos"]
    assert taken.extra["special_tokens"] == {"bos": eos, "eos": eos, "pad": eos}


def test_qwen3_comes_in_with_its_wide_heads(workspace: Workspace, tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=300, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, head_dim=24, tie_word_embeddings=True, max_position_embeddings=64,
        )
    ).eval()  # fmt: skip
    theirs.save_pretrained(tmp_path / "qwen")
    config = read_model(str(tmp_path / "qwen"))
    imported = import_weights(into=workspace, config=config, path=str(tmp_path / "qwen"))
    phase = {"name": "x", "tokens": 64, "weights": {"web": 1}, "sequence_length": 64, "batch": 1, "schedule": {"lr": 1}}
    model = load_weights(
        workspace.storage, imported.reference, PhaseRun.model_validate({"model": config, "phase": phase})
    )
    assert isinstance(model, Transformer)
    ids = torch.randint(0, 300, (1, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(model(ids), theirs(ids).logits, rtol=0, atol=1e-5)


def test_what_does_not_fit_is_refused_by_name(workspace: Workspace, folder: Path, tmp_path: Path) -> None:
    config = read_model(str(folder))
    import_weights(
        into=workspace, config=config.model_copy(update={"dropout": 0.1}), path=str(folder)
    )  # free to choose
    with pytest.raises(ConfigError, match=r"model\.num_layers is 3, in .* it is 2: leave it out"):
        import_weights(into=workspace, config=config.model_copy(update={"num_layers": 3}), path=str(folder))
    with pytest.raises(ConfigError, match=r"train\.initialize_from\.path .*config\.json"):
        read_model(str(tmp_path))
    broken = Path(shutil.copytree(folder, tmp_path / "broken"))
    (broken / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"no \*\.safetensors there"):
        import_weights(into=workspace, config=config, path=str(broken))
    with pytest.raises(ConfigError, match=r"its tokenizer has 300 entries, model\.vocab_size is 280"):
        take_tokenizer(into=workspace, config=config.model_copy(update={"vocab_size": 280}), path=str(folder))
    tokenizer = json.loads((broken / "tokenizer.json").read_text())
    tokenizer["decoder"] = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
    (broken / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ConfigError, match="its tokenizer is BPE, ByteFallback, Fuse, Sequence; only byte-level BPE"):
        take_tokenizer(into=workspace, config=config, path=str(broken))


def test_another_file_is_another_import(workspace: Workspace, folder: Path, tmp_path: Path) -> None:
    import_weights(into=workspace, config=read_model(str(folder)), path=str(folder))
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    loaded = AutoModelForCausalLM.from_pretrained(other)
    with torch.no_grad():
        loaded.model.norm.weight[0] += 1
    loaded.save_pretrained(other)
    with pytest.raises(NotComputed):
        import_weights(into=replace(workspace, dry=True), config=read_model(str(other)), path=str(other))


def test_a_recipe_takes_the_model_from_the_folder(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    shutil.copytree(folder, tmp_path / "llama")
    phase = {"name": "long", "tokens": 4096, "weights": {"web": 1}, "sequence_length": 128, "batch": 2}
    values = {
        "name": "more",
        "ingest": {"sources": {"web": {"base": "/data/web"}}},
        "model": {"rope_base": 500000.0},
        "train": {"initialize_from": {"path": "llama"}, "phases": [phase | {"schedule": {"lr": 1e-4}}]},
    }
    path.write_text(json.dumps(values))
    recipe = Recipe.load(path)
    assert recipe.model == read_model(str(folder)).model_copy(update={"rope_base": 500_000.0})
    assert recipe.train.initialize_from is not None
    assert recipe.train.initialize_from.path == str(tmp_path / "llama")
    assert Recipe.parse(recipe.model_dump(mode="json")) == recipe
    with pytest.raises(ConfigError, match=r"train\.initialize_from\.path .*nowhere.*config\.json"):
        Recipe.load(path, ["train.initialize_from.path=nowhere"])
