"""The model that a training dataset holds, loaded; and text sampled from it.

The weights are those of the phase's last checkpoint, every file verified by its sha256. torch is imported when a
model is loaded, never before: a cached run does without it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson
from pydantic import BaseModel, Field
from tokenizers import Tokenizer

from model.architecture import ModelConfig
from model.checkpoint_files import step_key
from model.config import PhaseRun
from tasks.contamination import ancestors
from tasks.errors import DataError
from tasks.manifest import Manifest, load_manifest
from tasks.storage import Storage

if TYPE_CHECKING:
    from model.transformer import Transformer

CHECKPOINT_FILE = "checkpoint.json"  # of a training dataset: which checkpoint is its result
TOKENIZER_FILE = "tokenizer.json"  # of a vocabulary
MAX_EXPONENT = 700.0  # e^709 is the largest double


class SamplingConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """How text is drawn from a model."""

    max_new_tokens: int = Field(default=100, ge=1, description="tokens after the prompt, at most")
    temperature: float = Field(default=0.8, ge=0, description="0 takes the most likely token each time")
    top_p: float = Field(
        default=0.95, gt=0, le=1, description="draw from the likeliest tokens of this joint probability"
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="the same seed gives the same text")


@dataclass(frozen=True)
class Decoder:
    """Ids to text without special tokens; plain values, so that it travels to training workers."""

    tokenizer_json: str

    def __call__(self, ids: list[int]) -> str:
        text: str = Tokenizer.from_str(self.tokenizer_json).decode(ids)
        return text


def decoder_of(storage: Storage, pack: Manifest) -> Decoder | None:
    """The decoder of what a pack holds; None where the pack names no tokenizer."""
    for entry in pack.inputs:
        if entry["role"] == "vocabulary":
            vocabulary = load_manifest(storage, f"{entry['stage']}/{entry['fingerprint']}")
            return Decoder(vocabulary.read_file(storage, "tokenizer.json").decode())
    return None


def run_of(trained: Manifest) -> PhaseRun:
    """The settings that the model was trained with."""
    return PhaseRun.model_validate(trained.config)


def context_of(storage: Storage, trained: Manifest) -> int:
    """Tokens that the model sees at most, as its export says: the longest rows met with the RoPE base it now has.

    main at 512, then 2,048 with another base: 2,048; main at 2,048, then 512 with the same base: 2,048, with another
    one: 512. Imported weights count with the context of their config.json; learned positions are as many as there are.
    """
    run = run_of(trained)
    if run.model.positions == "learned":
        return run.model.max_positions
    lengths = [run.phase.sequence_length]
    for manifest in ancestors(storage, trained):
        if manifest.stage in ("train", "fork"):
            before = PhaseRun.model_validate(manifest.config if manifest.stage == "train" else manifest.extra["config"])
            base, length = before.rope_base, before.phase.sequence_length
        elif manifest.stage == "import" and "context" in manifest.extra:  # older ones did not note it
            base, length = manifest.extra["rope_base"], manifest.extra["context"]
        else:
            continue
        lengths += [length] if base == run.rope_base else []
    return max(lengths)


def load_weights(storage: Storage, folder: str, run: PhaseRun) -> "Transformer":
    """The model of the training dataset in `folder`, in fp32 on the CPU. Raises DataError when it is damaged."""
    from model.checkpoint import load_weights as load_checkpoint

    result = orjson.loads(storage.read_bytes(f"{folder}/{CHECKPOINT_FILE}"))
    try:
        weights, _ = load_checkpoint(storage, step_key(f"{folder}/checkpoints", result["step"]))
    except (ValueError, FileNotFoundError) as error:
        raise DataError(f"{folder}: {error}") from error
    model = first_weights(run, is_empty=True)
    model.load_state_dict(weights)
    return model


def first_weights(run: PhaseRun, *, is_empty: bool = False) -> "Transformer":
    """The model as training began, in fp32 on the CPU; `is_empty`: its weights are still to be filled in."""
    import torch

    from model.distribute import build_model
    from model.initialization import initialize

    model = build_model(run.model, "fp32", torch.device("cpu"))
    model.rope_base = run.rope_base
    model.eval()  # no dropout
    if not is_empty:
        initialize(model, run.model, run.seed)
    return model


def generate_text(
    storage: Storage, trained: Manifest, vocabulary: Manifest, prompt: str, config: SamplingConfig
) -> str:
    """What the trained model writes after the prompt."""
    model = load_weights(storage, trained.reference, run_of(trained))
    tokenizer = vocabulary.read_file(storage, "tokenizer.json")
    return continue_text(model, tokenizer, prompt, config, context=context_of(storage, trained))


def continue_text(
    model: "Transformer", tokenizer_json: bytes, prompt: str, config: SamplingConfig, *, context: int
) -> str:
    """Text drawn after the prompt until a special token or `max_new_tokens`."""
    from model.generate import Sampling, generate

    tokenizer = Tokenizer.from_str(tokenizer_json.decode())
    specials = {index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    ids = generate(
        model,
        tokenizer.encode(prompt).ids,
        Sampling(**config.model_dump()),
        context=context,
        vocabulary=min(tokenizer.get_vocab_size(), model.config.vocab_size),
        is_end=specials.__contains__,
    )
    return tokenizer.decode(ids)


@contextmanager
def one_thread() -> Iterator[None]:
    """torch on one thread: their number must not reach results, and parts are computed side by side."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def check_vocabulary(config: ModelConfig, size: int) -> None:
    """Raises DataError when a tokenizer has more entries than the model has rows."""
    if size > config.vocab_size:
        raise DataError(f"the tokenizer has {size} entries, the model {config.vocab_size} rows: not trained together")
