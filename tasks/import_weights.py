"""import: a folder of transformers -> weights that training starts from, and the tokenizer that belongs to them.

Reads config.json, safetensors, tokenizer.json and tokenizer_config.json of `train.initialize_from.path`, a folder of
this machine. Writes a checkpoint without moments (`checkpoints/step-00000000`), which a first phase continues as if it
were a phase before it; the tokenizer becomes the dataset of stage vocabulary, in the place of a trained one.

The text behind foreign weights is unknown: every evaluation set then counts as not decontaminated. The key is the
content of the files. Special tokens that a tokenizer lacks: bos and pad are then its eos.
"""

import hashlib
import json
import uuid
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from model.architecture import ModelConfig
from model.checkpoint_files import TrainState, step_key
from model.imported import model_of
from model.job import METRICS_SCHEMA
from model.scratch import scratch_folder
from tasks.dataset import Workspace
from tasks.encoding import token_bytes, vocabulary_size
from tasks.errors import ConfigError, StorageError
from tasks.manifest import Manifest

RESULT_PACKAGES = ("transformers", "torch")
WEIGHTS = "*.safetensors"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
FREE_FIELDS = {"rope_base", "dropout", "vocab_multiple", "initialization"}  # may differ from config.json
PLACE = "train.initialize_from.path"


def import_weights(*, into: Workspace, config: ModelConfig, path: str) -> Manifest:
    """The weights of the folder as a dataset that a phase can continue.

    `extra`: checkpoint, step, ordinals, shape, context, rope_base. Raises ConfigError when the folder holds no such
    model, or another one than `config`.
    """
    digests = digests_of(path, "config.json", WEIGHTS)
    facts = check_model(path, config)
    dataset = into.dataset("import", config, inputs={}, module=__name__, external={"files": digests})
    if found := dataset.find():
        return found
    with dataset.lease():
        folder = f"{dataset.reference}/checkpoints"
        digest = write_checkpoint(path, config, into, folder)
        result = {"digest": digest, "step": 0, "tokens": 0, "ordinals": {}}
        return dataset.publish_files(
            {"checkpoint.json": orjson.dumps(result, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2)},
            extra={"checkpoint": step_key(folder, 0), "parameters": config.num_parameters} | facts | result,
        )


def take_tokenizer(*, into: Workspace, config: ModelConfig, path: str) -> Manifest:
    """The tokenizer of the folder as a vocabulary. `extra`: size, special_tokens {role: id}.

    Raises ConfigError when it is no byte-level BPE, or larger than the model.
    """
    digests = digests_of(path, *TOKENIZER_FILES)
    dataset = into.dataset("vocabulary", None, inputs={}, module=__name__, external={"files": digests})
    if found := dataset.find():
        return found
    data = (Path(path) / TOKENIZER_FILES[0]).read_bytes()
    check_byte_level(data)
    if (size := vocabulary_size(data)) > config.vocab_size:
        raise ConfigError(f"{PLACE} {path}: its tokenizer has {size} entries, model.vocab_size is {config.vocab_size}")
    report = {"size": size, "special_tokens": special_tokens(path, data), "imported": True}
    with dataset.lease():
        files = {"tokenizer.json": data, "report.json": _json(report), "token_bytes.json": _json(token_bytes(data))}
        return dataset.publish_files(files, extra={name: report[name] for name in ("size", "special_tokens")})


def read_model(path: str) -> ModelConfig:
    """What config.json of a folder says. Raises ConfigError."""
    try:
        return model_of(json.loads((Path(path) / "config.json").read_bytes()))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{PLACE} {path}: {error}") from error


def check_model(path: str, config: ModelConfig) -> dict[str, Any]:
    """{shape, context, rope_base} of config.json. Raises ConfigError when it is another model than the recipe's."""
    theirs, ours = (model.model_dump(exclude=FREE_FIELDS) for model in (read_model(path), config))
    if theirs["experts"] and ours["experts"]:  # losses and their weights are this training's own
        theirs["experts"], ours["experts"] = (
            {name: value["experts"][name] for name in ("count", "active")} for value in (theirs, ours)
        )
    for name, value in theirs.items():
        if ours[name] != value:
            raise ConfigError(f"model.{name} is {ours[name]!r}, in {path} it is {value!r}: leave it out of the recipe")
    given = json.loads((Path(path) / "config.json").read_bytes())
    facts = {"shape": given["model_type"], "context": given.get("max_position_embeddings", 0)}
    return facts | {"rope_base": read_model(path).rope_base}


def digests_of(path: str, *patterns: str) -> dict[str, str]:
    """sha256 of the files of a folder, by name. Raises ConfigError when one of the patterns has none."""
    digests = {}
    for pattern in patterns:
        files = sorted(Path(path).glob(pattern))
        if not files:
            raise ConfigError(f"{PLACE} {path}: no {pattern} there; it must be a folder that transformers saved")
        for file in files:
            with file.open("rb") as opened:
                digests[file.name] = hashlib.file_digest(opened, "sha256").hexdigest()
    return digests


def write_checkpoint(path: str, config: ModelConfig, into: Workspace, folder: str) -> str:
    """Read the weights, write them as a checkpoint without moments; returns its digest."""
    from model.checkpoint import Checkpoints  # late: torch, which a cached run never loads
    from model.hf import read_folder
    from model.ranks import Ranks

    try:
        weights = read_folder(Path(path), config)
    except (KeyError, OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{PLACE} {path}: {error}") from error
    state = TrainState(
        phase="import", step=0, applied_steps=0, tokens=0, position=0, ordinals={}, has_moments=False,
        config={"model": config.model_dump(mode="json")},
    )  # fmt: skip
    attempt = f"{into.run_id}-{uuid.uuid4().hex[:6]}"
    with scratch_folder() as scratch:
        checkpoints = Checkpoints(into.storage, folder, scratch, attempt, Ranks())
        tensors = {f"model.{name}": tensor for name, tensor in weights.items()}
        metrics = pa.Table.from_pylist([], METRICS_SCHEMA)
        try:
            manifest = checkpoints.save(tensors, state, metrics, healthy=True, is_last=True)
        except OSError as error:
            raise StorageError(f"{PLACE} {path}: {error}") from error
    return manifest.digest


def check_byte_level(tokenizer_json: bytes) -> None:
    """Raises ConfigError unless each character of a piece stands for one byte: bits per byte rely on it."""
    tokenizer = json.loads(tokenizer_json)
    kinds = {tokenizer["model"].get("type"), *_types(tokenizer.get("decoder"))}
    if not {"BPE", "ByteLevel"} <= kinds:
        raise ConfigError(
            f"{PLACE}: its tokenizer is {', '.join(sorted(map(str, kinds)))}; only byte-level BPE is read"
        )


def special_tokens(path: str, tokenizer_json: bytes) -> dict[str, int]:
    """{bos, eos, pad: id}. Raises ConfigError when there is no eos."""
    settings = json.loads((Path(path) / TOKENIZER_FILES[1]).read_bytes())
    ids = {token["content"]: token["id"] for token in json.loads(tokenizer_json).get("added_tokens") or []}
    found: dict[str, int | None] = {}
    for role in ("bos", "eos", "pad"):
        given = settings.get(f"{role}_token")
        found[role] = ids.get(given["content"] if isinstance(given, dict) else given or "")
    eos = found["eos"]
    if eos is None:
        raise ConfigError(f"{PLACE} {path}: tokenizer_config.json names no eos_token among the added tokens")
    return {role: eos if index is None else index for role, index in found.items()}


def _types(decoder: Any) -> set[str]:
    """The kinds of a decoder, those of a sequence one by one."""
    if not isinstance(decoder, dict):
        return set()
    return {decoder["type"]}.union(*(_types(inner) for inner in decoder.get("decoders", [])))


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True).encode()
