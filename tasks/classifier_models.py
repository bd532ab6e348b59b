"""Trained classifiers: their files, and the signals that they give. No pickle: safetensors and JSON.

    quality.safetensors      linear over hashed word n-grams  -> quality_score, the probability of the positive sources
    toxicity.safetensors     the same, of a labelled set      -> toxicity_score
    perplexity.safetensors   Kneser-Ney word n-grams          -> perplexity
    listed_words.json        entries of the word lists        -> num_listed_words

A text without words has no score (null); num_listed_words is 0 then.
"""

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from tasks.errors import DataError
from tasks.kernels.buffers import Bytes, Offsets, frozen
from tasks.kernels.folding import UNICODE_VERSION
from tasks.kernels.kneser_ney import Model, Table, hash_table, log_perplexities
from tasks.kernels.linear import margins
from tasks.kernels.listed_words import WordList, count_listed, make_word_list
from tasks.kernels.words import Words, hash_words
from tasks.manifest import Manifest
from tasks.parts import Part, read_published_file
from tasks.storage import Storage

RESULT_PACKAGES = ("numba",)
FORMAT = 1  # of the files; moves with the definition of a word or an n-gram's hash too
METADATA = "basemill"
SCORE_DIGITS, PERPLEXITY_DIGITS = 6, 3  # decimals: the last bits of exp() differ between processors
MAX_PERPLEXITY = 1e12  # of texts that are unknown throughout: a finite number can be compared and drawn

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LinearModel:
    """Weights of hashed n-grams; probability = 1 / (1 + exp(-(scale * margin + offset)))."""

    weights: NDArray[np.float32]
    bias: float
    ngram_words: int
    scale: float = 1.0
    offset: float = 0.0

    def margins(self, words: Words) -> Floats:
        """The uncalibrated score of each text."""
        return margins(words, self.weights, self.bias, self.ngram_words)

    def probabilities(self, words: Words) -> Floats:
        """0 to 1 for each text; NaN for one without words."""
        scores = 1 / (1 + np.exp(-(self.scale * self.margins(words) + self.offset)))
        return np.where(words.heads > 0, np.round(scores, SCORE_DIGITS), np.nan)

    def to_bytes(self, kind: str) -> bytes:
        """The model's file."""
        facts = {"bias": self.bias, "ngram_words": self.ngram_words, "scale": self.scale, "offset": self.offset}
        return _to_bytes(kind, {"weights": self.weights}, facts)


def perplexity_bytes(model: Model, order: int) -> bytes:
    """The file of an n-gram model."""
    tensors = {name: getattr(model, name) for name in ("keys", "log_probabilities", "log_backoffs")}
    return _to_bytes("perplexity", tensors, {"log_unknown": model.log_unknown, "order": order})


def listed_words_bytes(entries: list[str]) -> bytes:
    """The file of the word lists, joined."""
    listed = sorted(set(entries))
    return orjson.dumps({"format": FORMAT, "kind": "listed_words", "entries": listed}, option=orjson.OPT_INDENT_2)


@dataclass(frozen=True)
class Models:
    """The classifiers of a dataset, loaded; None: that one is not configured."""

    quality: LinearModel | None = None
    toxicity: LinearModel | None = None
    perplexity: Table | None = None
    listed_words: WordList | None = None

    def score(self, data: Bytes, offsets: Offsets) -> dict[str, pa.Array]:
        """The signals of all texts, by name; a classifier that is not configured gives none."""
        found: dict[str, pa.Array] = {}
        if self is NO_MODELS:
            return found
        words = hash_words(data, offsets)
        for name, model in (("quality_score", self.quality), ("toxicity_score", self.toxicity)):
            if model is not None:
                found[name] = pa.array(model.probabilities(words), pa.float64(), from_pandas=True)
        if self.perplexity is not None:
            logs = log_perplexities(words, self.perplexity)
            values = np.round(np.exp(np.minimum(logs, np.log(MAX_PERPLEXITY))), PERPLEXITY_DIGITS)
            found["perplexity"] = pa.array(values, pa.float64(), from_pandas=True)
        if self.listed_words is not None:
            found["num_listed_words"] = pa.array(count_listed(words, self.listed_words), pa.int64())
        return found


NO_MODELS = Models()


def model_files(classifiers: Manifest) -> list[Part]:
    """The files of a dataset as inputs of a unit: where they lie is `stage`; their content alone counts in keys."""
    return [replace(part, stage=classifiers.reference, source=part.key.split(".")[0]) for part in classifiers.parts]


def load_models(storage: Storage, parts: tuple[Part, ...]) -> Models:
    """The models of these files (`stage`: the folder, `source`: the kind, `sha256` is checked). Raises DataError."""
    if not parts:
        return NO_MODELS
    return Models(**{str(part.source): _load(storage, f"{part.stage}/{part.key}", part.sha256) for part in parts})


def parse_model(data: bytes, place: str) -> Any:
    """LinearModel, Table or WordList from the bytes of a file. Raises DataError when it is none of ours."""
    return _PARSERS[kind_of(data, place)](data)


def kind_of(data: bytes, place: str) -> str:
    """quality, toxicity, perplexity or listed_words. Raises DataError."""
    facts = _facts(data, place)
    if facts.get("format") != FORMAT or facts.get("kind") not in _PARSERS:
        raise DataError(f"{place}: a {facts.get('kind')} model of format {facts.get('format')}; wanted format {FORMAT}")
    return str(facts["kind"])


@lru_cache(maxsize=8)
def _load(storage: Storage, path: str, sha256: str) -> Any:
    """Once per process: a model is used for every part."""
    return parse_model(read_published_file(storage, path, sha256), path)


def _to_bytes(kind: str, tensors: dict[str, NDArray[Any]], facts: dict[str, Any]) -> bytes:
    values = {"format": FORMAT, "kind": kind, "unicode": UNICODE_VERSION} | facts
    return bytes(save(tensors, {METADATA: json.dumps(values, sort_keys=True)}))  # one entry: safetensors orders none


def _facts(data: bytes, place: str) -> dict[str, Any]:
    try:
        if data[8:9] == b"{":  # safetensors: the header's length, then the header
            header = orjson.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            facts = orjson.loads(header["__metadata__"][METADATA])
        else:
            facts = orjson.loads(data)
        if not isinstance(facts, dict):
            raise TypeError(type(facts).__name__)
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise DataError(f"{place}: no file of a basemill classifier ({type(error).__name__}: {error})") from error
    return facts


def _tensors(data: bytes) -> dict[str, Any]:
    try:
        return {name: frozen(np.array(tensor)) for name, tensor in load(data).items()}
    except SafetensorError as error:
        raise DataError(f"a classifier's file is damaged: {error}") from error


def _linear(data: bytes) -> LinearModel:
    facts = _facts(data, "linear model")
    names = ("bias", "ngram_words", "scale", "offset")
    return LinearModel(_tensors(data)["weights"], **{name: facts[name] for name in names})


def _perplexity(data: bytes) -> Table:
    facts = _facts(data, "n-gram model")
    return hash_table(Model(**_tensors(data), log_unknown=facts["log_unknown"]), facts["order"])


def _listed_words(data: bytes) -> WordList:
    return make_word_list(_facts(data, "word list")["entries"])


_PARSERS = {"quality": _linear, "toxicity": _linear, "perplexity": _perplexity, "listed_words": _listed_words}
