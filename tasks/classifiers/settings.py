"""Settings of the classifiers, and the files that they name: trained files, labelled sets, word lists.

A classifier is trained, or taken from `path`, whose `sha256` the recipe names. Errors begin with the place in the
recipe, such as `classifiers.toxicity.labelled`.
"""

import hashlib
from collections import Counter
from typing import Annotated, Any, Self

import xxhash
from pydantic import AfterValidator, BaseModel, Field, model_validator

from tasks.config import Several
from tasks.errors import ConfigError, DataError
from tasks.recipe_files import Format, check_path, format_of, read_recipe_file, read_rows, value_of
from tasks.storage import Storage

RESULT_PACKAGES = ("xxhash",)
KINDS = ("quality", "toxicity", "perplexity")
SHOWN_LABELS = 5
PLACE = "/"  # stands for a path in keys

FilePath = Annotated[str, AfterValidator(check_path)]
ModelPath = Annotated[
    FilePath | None, Field(description="a trained file of an earlier run, instead of training")
]  # fmt: skip
Sha256 = Annotated[str | None, Field(pattern="^[0-9a-f]{64}$", description="sha256 of that file; another is refused")]
Buckets = Annotated[int, Field(ge=1 << 10, le=1 << 26, description="weights that n-grams are hashed to; 4 bytes each")]
NgramWords = Annotated[int, Field(ge=1, le=5, description="longest word n-gram")]
SampleBytes = Annotated[int, Field(gt=0, description="text to train on, shared equally by the sources")]


class QualityConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """How much a document is like the positive sources rather than the negative ones (signal quality_score)."""

    path: ModelPath = None
    sha256: Sha256 = None
    positive: Several[str] = Field(default=(), description="sources of good text, such as a reference corpus")
    negative: Several[str] = Field(default=(), description="sources of ordinary text, such as a crawl")
    sample_bytes: SampleBytes = 20_000_000
    ngram_words: NgramWords = 2
    buckets: Buckets = 1 << 20

    @model_validator(mode="after")
    def _check(self) -> Self:
        both = set(self.positive) & set(self.negative)
        if both:
            raise ValueError(f"source {sorted(both)[0]!r} is both positive and negative")
        if self.path is None and not (self.positive and self.negative):
            raise ValueError("name positive and negative sources, or the path of a trained file")
        _check_buckets(self.buckets)
        return _check_artifact(self, "positive", "negative")


class LabelledConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """A labelled set: JSONL, CSV (both plain, gz, zst) or Parquet."""

    path: FilePath = Field(description="file: absolute, s3://..., {root}/... or recipe:name")
    format: Format | None = Field(default=None, description="jsonl, csv or parquet; by the file's name unless given")
    text: str = Field(default="text", description="column of the text")
    label: str = Field(default="label", description="column of the label")
    positive: Several[str | int | float | bool] = Field(min_length=1, description="labels of toxic texts")


class WordListConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """A word list: one word or phrase per line, UTF-8."""

    path: FilePath = Field(description="file: absolute, s3://..., {root}/... or recipe:name")


class ToxicityConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """Toxic text, from a labelled set (signal toxicity_score) and by word lists (signal num_listed_words)."""

    path: ModelPath = None
    sha256: Sha256 = None
    labelled: LabelledConfig | None = Field(default=None, description="the set to train on")
    word_lists: Several[WordListConfig] = Field(default=(), description="lists whose entries are counted")
    ngram_words: NgramWords = 2
    buckets: Buckets = 1 << 18

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.path is None and self.labelled is None and not self.word_lists:
            raise ValueError("name a labelled set, word lists, or the path of a trained file")
        _check_buckets(self.buckets)
        return _check_artifact(self, "labelled")


class PerplexityConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """How unexpected a document's words are to an n-gram model of the named sources (signal perplexity)."""

    path: ModelPath = None
    sha256: Sha256 = None
    sources: Several[str] = Field(default=(), description="sources of text as it should be")
    sample_bytes: SampleBytes = 20_000_000
    order: int = Field(default=3, ge=1, le=5, description="longest n-gram; 4 and 5 double and triple the file")
    min_count: int = Field(default=2, ge=1, description="longest n-grams that are seen less often are left out")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.path is None and not self.sources:
            raise ValueError("name sources, or the path of a trained file")
        return _check_artifact(self, "sources")


AnyConfig = QualityConfig | ToxicityConfig | PerplexityConfig


class ClassifiersConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """The classifiers to train or to take; without any the stage does nothing."""

    quality: QualityConfig | None = Field(default=None, description="like good sources or like ordinary ones")
    toxicity: ToxicityConfig | None = Field(default=None, description="toxic text")
    perplexity: PerplexityConfig | None = Field(default=None, description="expected or unexpected words")

    @property
    def given(self) -> dict[str, AnyConfig]:
        """The classifiers that are configured, by kind."""
        return {kind: config for kind in KINDS if (config := getattr(self, kind)) is not None}

    @property
    def source_lists(self) -> dict[str, tuple[str, ...]]:
        """Key in the section -> sources that it names."""
        quality, perplexity = self.quality, self.perplexity
        lists = {f"quality.{name}": getattr(quality, name) for name in ("positive", "negative") if quality}
        return lists | ({"perplexity.sources": perplexity.sources} if perplexity else {})


def _check_buckets(buckets: int) -> None:
    if buckets & (buckets - 1):
        raise ValueError(f"buckets {buckets}: a power of two, such as {1 << buckets.bit_length()}")


def _check_artifact(config: Any, *training: str) -> Any:
    """A file and its digest together, and nothing beside them that would train another."""
    if (config.path is None) != (config.sha256 is None):
        raise ValueError("path and sha256 belong together: a trained file and its digest")
    beside = [name for name in training if getattr(config, name)]
    if config.path is not None and beside:
        raise ValueError(f"path takes a trained file, so {beside[0]} can't be given beside it")
    return config


def read_files(storage: Storage, config: ClassifiersConfig) -> dict[str, bytes]:
    """Every file that the section names, by its place in it. Raises ConfigError when one is missing or another."""
    files = {}
    for kind, settings in config.given.items():
        if settings.path is not None:
            files[kind] = data = read_recipe_file(storage, settings.path, f"classifiers.{kind}")
            found = hashlib.sha256(data).hexdigest()
            if found != settings.sha256:
                raise ConfigError(f"classifiers.{kind}.sha256: {settings.path} has {found}, not {settings.sha256}")
    if config.toxicity is not None:
        named = {f"toxicity.word_lists[{place}]": item.path for place, item in enumerate(config.toxicity.word_lists)}
        if config.toxicity.labelled is not None:
            named["toxicity.labelled"] = config.toxicity.labelled.path
        files |= {place: read_recipe_file(storage, path, f"classifiers.{place}") for place, path in named.items()}
    return files


def read_labelled(data: bytes, config: LabelledConfig) -> list[tuple[int, str, bool]]:
    """(rank, text, whether its label is a positive one) of each row with a text; the rank is a hash of the text.

    Raises DataError when a column is missing or all rows are of one class.
    """
    place = "classifiers.toxicity.labelled"
    wanted = {str(label).casefold() for label in config.positive}
    rows, labels = [], Counter[str]()
    for number, row in enumerate(read_rows(data, format_of(config.path, config.format, place), place)):
        text, label = (value_of(row, column, f"{place}: row {number}") for column in (config.text, config.label))
        if text is not None and str(text).strip():
            labels[str(label)] += 1
            rows.append((xxhash.xxh64_intdigest(str(text).encode()), str(text), str(label).casefold() in wanted))
    if len({is_positive for _, _, is_positive in rows}) < 2:
        found = ", ".join(f"{label!r} {count}" for label, count in labels.most_common(SHOWN_LABELS)) or "none"
        raise DataError(f"{place}.positive: all rows are of one class with {list(config.positive)}; labels: {found}")
    return rows


def without_paths(config: ClassifiersConfig) -> ClassifiersConfig:
    """The config as it decides the result: the content of a file counts, not its place."""
    values = config.model_dump(mode="json")
    toxicity = values["toxicity"] or {}
    for item in (*filter(None, (values[kind] for kind in KINDS)), *toxicity.get("word_lists", ())):
        item["path"] = item["path"] and PLACE
    if toxicity.get("labelled"):
        toxicity["labelled"] |= {"path": PLACE, "format": None}
    return ClassifiersConfig.model_validate(values)
