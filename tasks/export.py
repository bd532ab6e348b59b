"""export: a trained phase -> a folder that `transformers` loads, and proof that the logits agree.

Reads the last checkpoint, the tokenizer, and rows of the packs that it was trained on. Writes into the dataset's folder
config.json, generation_config.json, safetensors in pieces, tokenizer.json, tokenizer_config.json, the model card
(README.md) and the certificate (parity.json):

    AutoModelForCausalLM.from_pretrained(".../export/<fingerprint>"); AutoTokenizer.from_pretrained(the same)

Rows of the embedding above the tokenizer's size stand for no token and are left out. Before anything is written, our
model and transformers' compute the logits of real rows in fp32; the largest difference is recorded, and one above
MAX_DIFFERENCE refuses the export. A model whose shape transformers does not have was refused with the recipe.
"""

import logging
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import orjson
from pydantic import BaseModel, Field
from tokenizers import Tokenizer

from tasks.dataset import Workspace
from tasks.errors import DataError
from tasks.manifest import Manifest, load_manifest
from tasks.model_card import model_card
from tasks.parts import read_part
from tasks.storage import Storage
from tasks.trained_model import check_vocabulary, context_of, load_weights, run_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from model.transformer import Transformer

RESULT_PACKAGES = ("transformers", "torch")
MAX_DIFFERENCE = 1e-5  # of a logit, times the largest one if above 1; a wrong base or order of heads is off by 0.1
ROWS_PER_SOURCE = 4  # compared: real text of every source the model knows
TOKENS_PER_ROW = 1024  # compared at most: logits of a long row at a large vocabulary would not fit

logger = logging.getLogger(__name__)


class ExportConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """What the exported weights look like."""

    enabled: bool = Field(
        default=True,
        description="false: no export, for models that transformers has no shape for",
        json_schema_extra={"neutral": True},
    )
    dtype: Literal["fp32", "bf16"] = Field(
        default="fp32", description="type of the written weights; bf16 halves the size and rounds them"
    )
    max_shard_size: str = Field(
        default="5GB",
        pattern=r"^[1-9]\d*(KB|MB|GB)$",
        description="weights are written in pieces of at most so much: what hubs and downloads handle well",
        json_schema_extra={"neutral": "5GB"},
    )


def export_model(trained: Manifest, vocabulary: Manifest, *, into: Workspace, config: ExportConfig) -> Manifest:
    """The exported folder. `extra`: the certificate (max_logit_difference, rows and tokens compared, shape, ...).

    Raises DataError when the logits differ by more than MAX_DIFFERENCE.
    """
    inputs = {"trained": trained, "vocabulary": vocabulary}
    dataset = into.dataset("export", config, inputs=inputs, module=__name__)
    if found := dataset.find():
        return found
    check_vocabulary(run_of(trained).model, vocabulary.extra["size"])
    with dataset.lease(), into.storage.scratch_folder() as scratch:
        parity = write_model(trained, vocabulary, scratch / "model", into.storage, config)
        files: dict[str, bytes | Path] = {path.name: path for path in sorted((scratch / "model").iterdir())}
        files["README.md"] = model_card(into.storage, trained, parity).encode()
        files["parity.json"] = orjson.dumps(parity, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
        return dataset.publish_files(files, extra=parity)


def write_model(
    trained: Manifest, vocabulary: Manifest, folder: Path, storage: Storage, config: ExportConfig
) -> dict[str, Any]:
    """The folder that transformers loads, and the certificate of what was compared before it was written.

    Raises DataError when the logits differ.
    """
    size, run = vocabulary.extra["size"], run_of(trained)
    model, rows = load_weights(storage, trained.reference, run), real_rows(storage, trained)
    try:
        theirs = as_theirs(model, size, context=context_of(storage, trained))
    except ValueError as error:
        raise DataError(f"export: {error}") from error
    difference, largest = largest_difference(model, theirs, rows, size)
    if not difference <= (limit := MAX_DIFFERENCE * max(1.0, largest)):
        raise DataError(f"export: logits differ from transformers' by {difference:.2g}, more than {limit:.2g}")
    logger.info("export: logits of %d rows differ from transformers' by at most %.2g", len(rows), difference)
    write_folder(theirs, folder, vocabulary.read_file(storage, "tokenizer.json"), vocabulary, config)
    return {
        "max_logit_difference": difference,
        "largest_logit": largest,
        "rows": len(rows),
        "tokens": int(rows.size),
        "shape": theirs.config.model_type,
        "vocabulary": size,
        "parameters": run.model.num_parameters,
        "active_parameters": run.model.num_active_parameters,
        "weights_dtype": config.dtype,
        "torch": version("torch"),
        "transformers": version("transformers"),
    }


def real_rows(storage: Storage, trained: Manifest) -> npt.NDArray[np.int64]:
    """The beginnings of the first rows of every pack that the phase was trained on, (rows, T)."""
    rows = []
    for entry in trained.inputs:
        manifest = load_manifest(storage, f"{entry['stage']}/{entry['fingerprint']}")
        parts = [part for part in manifest.parts if part.rows] if manifest.stage == "pack" else []
        for table in read_part(storage, parts[0], ["input_ids"]) if parts else ():
            length = table.schema.field("input_ids").type.list_size
            ids = table.slice(0, ROWS_PER_SOURCE)["input_ids"].combine_chunks().flatten().to_numpy()
            rows.append(ids.astype(np.int64).reshape(-1, length)[:, :TOKENS_PER_ROW])
            break
    if not rows:
        raise DataError(
            f"export: {trained.reference} names no pack with rows, so there is no text to compare logits on"
        )
    return np.concatenate(rows)


def as_theirs(model: "Transformer", size: int, *, context: int) -> "PreTrainedModel":
    """transformers' model with our weights, the vocabulary cut to `size`."""
    from model.hf import build_theirs, trim_vocabulary

    config, weights = trim_vocabulary(model.config, model.state_dict(), size)
    return build_theirs(config, weights, context, model.rope_base)


def largest_difference(
    model: "Transformer", theirs: "PreTrainedModel", rows_BT: npt.NDArray[np.int64], size: int
) -> tuple[float, float]:
    """max |logit - transformers' logit| over all rows, each read as one document; and their largest |logit|."""
    import torch

    difference = largest = 0.0
    with torch.no_grad():
        for row_T in torch.from_numpy(rows_BT):
            ours, wanted = model(row_T[None])[..., :size], theirs(row_T[None]).logits
            between = float((ours - wanted).abs().max())
            difference = max(difference, between) if between == between else float("inf")  # NaN is no agreement
            largest = max(largest, float(wanted.abs().max()))
    return difference, largest


def write_folder(
    theirs: "PreTrainedModel", folder: Path, tokenizer_json: bytes, vocabulary: Manifest, config: ExportConfig
) -> None:
    """Model and tokenizer as transformers stores them."""
    import torch

    from model.hf import SpecialIds, save_theirs

    tokenizer = Tokenizer.from_str(tokenizer_json.decode())
    special: dict[str, Any] = {
        role: (tokenizer.id_to_token(index), index)
        for role, index in vocabulary.extra["special_tokens"].items()
        if role in ("bos", "eos", "pad")
    }
    tokenizer_file = folder.with_suffix(".json")
    tokenizer_file.write_bytes(tokenizer_json)
    theirs = theirs.to({"fp32": torch.float32, "bf16": torch.bfloat16}[config.dtype])
    save_theirs(theirs, folder, tokenizer_file, SpecialIds(**special), config.max_shard_size)
