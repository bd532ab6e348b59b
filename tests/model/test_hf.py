"""Our model against transformers', shape by shape: the same logits, the same tensors back, a folder that loads."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoModelForCausalLM, AutoTokenizer

from model.architecture import ModelConfig
from model.checkpoint import training_tensors
from model.distribute import build_model
from model.hf import SpecialIds, build_theirs, from_theirs, save_theirs, to_theirs, trim_vocabulary
from model.imported import model_of
from model.initialization import initialize
from model.job import Settings
from model.shapes import shape_of
from model.transformer import Transformer

TINY = ModelConfig.of_size("tiny")
SPECIAL = SpecialIds(("<|bos|>", 0), ("<|eos|>", 1), ("<|pad|>", 2))


EXPERTS = {"count": 4, "active": 2}
GPT2 = {"positions": "learned", "max_positions": 1024, "norm": "layer", "biases": True, "num_kv_heads": 4}
TABLE: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "wide heads": ("llama", {"head_width": 32}),
    "qwen3": ("qwen3", {"qk_norm": True, "norm_eps": 1e-6}),
    "qwen3-moe": ("qwen3_moe", {"qk_norm": True, "experts": EXPERTS, "mlp_width": 64}),
    "mixtral": ("mixtral", {"experts": EXPERTS, "mlp_width": 64}),
    "gpt2 gelu": ("gpt2", GPT2 | {"activation": "gelu"}),
    "gpt2 relu": ("gpt2", GPT2 | {"activation": "relu"}),
}
ROWS = [(name, tie) for name in TABLE for tie in (True, False) if tie or not name.startswith("gpt2")]


def built(**fields: Any) -> Transformer:
    """Weights five times the usual, so that attention and positions weigh in the logits."""
    config = ModelConfig.of_size("tiny", num_layers=3, **fields)
    model = Transformer(config)
    initialize(model, config, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5 if parameter.ndim > 1 else 1)
            parameter.add_(torch.linspace(0, 0.5, len(parameter)) if parameter.ndim == 1 else 0)  # norms unlike 1
    return model


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return torch.randint(0, 512, (2, 1024), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 4], ids=["multi-query", "grouped", "multi-head"])
def test_logits_equal_transformers_at_every_position(tokens: torch.Tensor, tie: bool, kv_heads: int) -> None:
    """Rows of q and k in transformers' order, whatever the number of heads (nanotron#241, TinyLlama#24)."""
    model = built(tie_embeddings=tie, num_kv_heads=kv_heads)
    llama = build_theirs(model.config, model.state_dict(), 1024, model.rope_base)
    other_base = build_theirs(model.config, model.state_dict(), 1024, 9_000.0)
    with torch.no_grad():
        for length in (64, 1024):
            wanted = llama(tokens[:, :length]).logits
            scale = float(wanted.abs().max())
            assert float((model(tokens[:, :length]) - wanted).abs().max()) <= 1e-5 * scale
            assert float((other_base(tokens[:, :length]).logits - wanted).abs().max()) > 1e-3 * scale


@pytest.mark.parametrize(("row", "tie"), ROWS)
def test_every_row_of_the_table_agrees_to_1e_5(tokens: torch.Tensor, row: str, tie: bool) -> None:
    """Every head, every kind of position, at every place of 64 and of 1,024 tokens."""
    shape, fields = TABLE[row]
    model = built(tie_embeddings=tie, **fields)
    with torch.no_grad():
        for (
            name,
            parameter,
        ) in model.named_parameters():  # matrices as GPT-2's, norms unlike 1
            parameter.div_(5 if parameter.ndim > 1 else 1)
            assert parameter.ndim > 1 or len(parameter.unique()) > 1, name
    theirs = build_theirs(model.config, model.state_dict(), 1024, model.rope_base)
    assert theirs.config.model_type == shape == shape_of(model.config)
    with torch.no_grad():
        for length in (64, 1024):
            ours, wanted = model(tokens[:1, :length]), theirs(tokens[:1, :length]).logits
            assert float((ours - wanted).abs().max()) <= 1e-5


@pytest.mark.parametrize(("row", "tie"), ROWS)
def test_import_after_export_returns_the_same_tensors(row: str, tie: bool, tmp_path: Path) -> None:
    model = built(tie_embeddings=tie, **TABLE[row][1])
    theirs = build_theirs(model.config, model.state_dict(), 1024, model.rope_base)
    theirs.save_pretrained(tmp_path)
    config = model_of(json.loads((tmp_path / "config.json").read_text()))
    assert config == model.config
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto").state_dict()
    ours = from_theirs(config, loaded)
    assert all(torch.equal(theirs.state_dict()[name], tensor) for name, tensor in loaded.items())
    assert ours.keys() == model.state_dict().keys()
    assert all(torch.equal(ours[name], tensor) for name, tensor in model.state_dict().items())


def test_missing_tensor_is_named() -> None:
    model = built()
    theirs = to_theirs(model.config, model.state_dict())
    del theirs["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(KeyError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        from_theirs(model.config, theirs)


def byte_tokenizer(path: Path) -> Path:
    vocabulary = {text: index for index, (text, _) in enumerate((SPECIAL.bos, SPECIAL.eos, SPECIAL.pad))}
    vocabulary |= {letter: index + 3 for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.add_special_tokens([text for text, _ in (SPECIAL.bos, SPECIAL.eos, SPECIAL.pad)])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single=["<|bos|>", "$A"], special_tokens=[SPECIAL.bos])
    tokenizer.save(str(path))
    return path


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_folder_loads_and_speaks(tmp_path: Path, dtype: torch.dtype) -> None:
    model = built(vocab_size=300)
    config, weights = trim_vocabulary(model.config, {n: t.to(dtype) for n, t in model.state_dict().items()}, 259)
    llama = build_theirs(config, weights, 256, model.rope_base)
    folder = tmp_path / "model"
    save_theirs(llama, folder, byte_tokenizer(tmp_path / "tokenizer.json"), SPECIAL)
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert loaded.dtype == dtype
    assert loaded.config.vocab_size == len(tokenizer) == 259
    assert loaded.config.max_position_embeddings == tokenizer.model_max_length == 256
    inputs = tokenizer("Déjà vu , isn 't it", return_tensors="pt")
    assert inputs["input_ids"][0, 0] == 0
    assert tokenizer.decode(inputs["input_ids"][0], skip_special_tokens=True) == "Déjà vu , isn 't it"
    with torch.no_grad():
        wanted = model(inputs["input_ids"])[..., :259]
        difference = float((loaded(inputs["input_ids"]).logits.float() - wanted).abs().max())
    assert difference <= (1e-4 if dtype == torch.float32 else 0.5) * float(wanted.abs().max())
    out = loaded.generate(**inputs, max_new_tokens=5)
    assert out.shape[1] <= inputs["input_ids"].shape[1] + 5
    assert {loaded.generation_config.eos_token_id, loaded.generation_config.bos_token_id} == {0, 1}


def test_a_bf16_export_has_the_loss_of_the_rounded_weights_when_it_comes_back(tmp_path: Path) -> None:
    """torchtitan#4166, #2622, pytorch#119980: the wanted type, clean names, with recomputation and compilation on."""
    model = build_model(TINY, "fp32", torch.device("cpu"), Settings(recompute=True, compile_blocks=True))
    initialize(model, TINY, 1)
    names = {name.removeprefix("model.") for name in training_tensors(model, None)}
    assert names == Transformer(TINY).state_dict().keys()
    rounded = {name: tensor.bfloat16() for name, tensor in model.state_dict().items()}
    build_theirs(TINY, rounded, 64, TINY.rope_base).save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto").state_dict()
    assert {tensor.dtype for tensor in loaded.values()} == {torch.bfloat16}
    losses, ids = [], torch.randint(0, 512, (2, 64), generator=torch.Generator().manual_seed(0))
    for weights in (rounded, from_theirs(TINY, loaded)):
        again = Transformer(TINY)
        again.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
        losses.append(again(ids, None, ids).objective.item())
    assert losses[0] == losses[1]


def test_config_comes_back(tmp_path: Path) -> None:
    model = built(rope_base=500_000.0, norm_eps=1e-6)
    build_theirs(model.config, model.state_dict(), 256, 500_000.0).config.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["rope_parameters"]["rope_theta"] == 500_000.0
    assert model_of(written) == model.config


def test_a_padded_vocabulary_is_cut_off_and_comes_back_as_zeros() -> None:
    """Megatron-Bridge#5375, litgpt#1334."""
    model = built(vocab_size=300)
    assert model.embedding.weight.shape == (320, 64)
    config, weights = trim_vocabulary(model.config, model.state_dict(), 300)
    theirs = to_theirs(config, weights)
    assert theirs["model.embed_tokens.weight"].shape == (300, 64)
    ours = from_theirs(model.config, theirs)
    assert torch.equal(ours["embedding.weight"][:300], model.embedding.weight[:300])
    assert not ours["embedding.weight"][300:].any()
