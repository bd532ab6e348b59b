"""Trains classifiers of documents, or takes trained ones: quality, toxicity, perplexity (stage "classifiers").

Reads documents of the sources that the recipe names, and its labelled sets and word lists; writes one file per
classifier (tasks/classifier_models.py says which and what they give), with the reports of their training in `extra`.
The signals stage scores every document with them. Steps, each a dataset of its own:

    .sample      per part of the documents: candidates, chosen by a hash of doc_id, their first TEXT_BYTES
    .labelled    the rows of a labelled set: rank, text, whether it is positive
    .models      one part per classifier: its file and its report

Invariant: a model depends on the texts of its own sources alone, never on workers or the order of files; a change of
another source yields the same files, so nothing is scored again. A classifier given by `path` must have the `sha256`
that the recipe names. Worked number: 20 MB for and 20 MB against train in about 5 CPU-seconds.
"""

import hashlib
import io
from collections.abc import Iterable
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tasks.classifiers.settings import (
    ClassifiersConfig,
    PerplexityConfig,
    QualityConfig,
    ToxicityConfig,
    read_files,
    read_labelled,
    without_paths,
)
from tasks.dataset import Dataset, Workspace
from tasks.errors import ConfigError, DataError
from tasks.manifest import Manifest
from tasks.parts import Part, PartWriter, Unit, documents_of, read_part
from tasks.splits import HASH_RANGE, sample_rate

RESULT_PACKAGES = ("xxhash", "numba")
TEXT_BYTES = 1 << 16  # what a document gives to a sample: as much as a linear classifier looks at
SAMPLE_SEED = 2  # another hash than those of the split and of the tokenizer's sample
LABELLED = "labelled.parquet"

SAMPLE_SCHEMA = pa.schema([("source", pa.string()), ("rank", pa.uint64()), ("text", pa.large_string())])
LABELLED_SCHEMA = pa.schema([("rank", pa.uint64()), ("text", pa.large_string()), ("is_positive", pa.bool_())])
MODEL_SCHEMA = pa.schema([("name", pa.string()), ("data", pa.large_binary()), ("report", pa.string())])


def train_classifiers(documents: Manifest, *, into: Workspace, config: ClassifiersConfig) -> Manifest:
    """The classifiers as files; `extra` holds the report of each by kind.

    Raises ConfigError for a file that is missing or has another digest, DataError for text that can't be learnt from.
    """
    files = read_files(into.storage, config)
    digests = {place: hashlib.sha256(data).hexdigest() for place, data in files.items()}
    dataset = into.dataset(
        "classifiers", without_paths(config), inputs={"documents": documents}, module=__name__, external=digests
    )
    if found := dataset.find():
        return found
    with dataset.lease():
        made = _taken(config, files) | _trained(dataset, documents, config, files)
        return dataset.publish_files(
            {name: data for name, (data, _) in made.items()},
            extra={name.partition(".")[0]: report for name, (_, report) in made.items()},
        )


Made = dict[str, tuple[bytes, dict[str, Any]]]  # name of a file -> its bytes, its report


def _taken(config: ClassifiersConfig, files: dict[str, bytes]) -> Made:
    """The classifiers that need no training: those of earlier runs, and the word lists."""
    from tasks.classifier_models import kind_of  # late, as below: a cached run shall not wait for numba
    from tasks.classifiers.training import join_word_lists

    made: Made = {}
    for kind, settings in config.given.items():
        if settings.path is not None:
            found = kind_of(files[kind], f"classifiers.{kind}.path: {settings.path}")
            if found != kind:
                raise ConfigError(f"classifiers.{kind}.path: {settings.path} holds a {found} classifier")
            made[f"{kind}.safetensors"] = files[kind], {"taken_from_sha256": settings.sha256}
    lists = [data for place, data in files.items() if place.startswith("toxicity.word_lists")]
    return made | ({"listed_words.json": join_word_lists(lists)} if lists else {})


def _trained(dataset: Dataset, documents: Manifest, config: ClassifiersConfig, files: dict[str, bytes]) -> Made:
    """One unit per classifier, each with the sample of its own sources."""
    step = dataset.step("models", MODEL_SCHEMA, inputs={"documents": documents})
    assert isinstance(dataset.config, ClassifiersConfig)
    settings = {kind: own for kind, own in dataset.config.given.items() if own.path is None}
    sample = _draw_sample(dataset, documents, _wanted(list(settings.values())))
    units = []
    for own in settings.values():
        if isinstance(own, ToxicityConfig):
            labelled = config.toxicity and config.toxicity.labelled
            inputs = [_labelled_part(dataset, read_labelled(files["toxicity.labelled"], labelled))] if labelled else []
        else:
            inputs = [part for part in sample if part.source in _sources_of(own)]
        if inputs:
            units.append(step.unit(inputs, config=own))
    made = {}
    for receipt in step.compute(units, train_part):
        [row] = (row for table in read_part(dataset.storage, receipt.part) for row in table.to_pylist())
        made[row["name"]] = row["data"], orjson.loads(row["report"])
    return made


def _sources_of(config: QualityConfig | PerplexityConfig) -> tuple[str, ...]:
    return config.sources if isinstance(config, PerplexityConfig) else config.positive + config.negative


def _wanted(configs: Iterable[Any]) -> dict[str, int]:
    """Bytes to sample from each source: the most that a classifier takes of it."""
    wanted: dict[str, int] = {}
    for config in configs:
        for sources in _classes(config):
            for source in sources:
                wanted[source] = max(wanted.get(source, 0), config.sample_bytes // len(sources))
    return dict(sorted(wanted.items()))


def _classes(config: Any) -> list[tuple[str, ...]]:
    """The lists of sources between which a classifier's sample is shared."""
    if isinstance(config, QualityConfig):
        return [config.positive, config.negative]
    return [config.sources] if isinstance(config, PerplexityConfig) else []


def _draw_sample(dataset: Dataset, documents: Manifest, wanted: dict[str, int]) -> list[Part]:
    step = dataset.step("sample", SAMPLE_SCHEMA, inputs={"documents": documents}, external={}, config=None)
    units = []
    for source, size in wanted.items():
        totals = documents.by_source.get(source, {"bytes_out": 0, "rows_out": 0})
        rate = sample_rate(size, min(totals["bytes_out"], totals["rows_out"] * TEXT_BYTES))
        units += [step.unit([part], source=source, arguments={"rate": rate}) for part in documents.parts_of(source)]
    return [receipt.part for receipt in step.compute(units, sample_part)]


def sample_part(unit: Unit, writer: PartWriter) -> None:
    """The candidates of one part: documents whose hash lies below the rate."""
    limit = unit.arguments["rate"] * HASH_RANGE
    for table in documents_of(unit, writer, columns=["doc_id", "text"]):
        ranks = [xxhash.xxh64_intdigest(doc_id.encode(), seed=SAMPLE_SEED) for doc_id in table["doc_id"].to_pylist()]
        chosen = [row for row, rank in enumerate(ranks) if rank < limit]
        texts = [text.encode()[:TEXT_BYTES].decode(errors="ignore") for text in table["text"].take(chosen).to_pylist()]
        columns = [[unit.source] * len(chosen), [ranks[row] for row in chosen], texts]
        writer.write(pa.table(columns, schema=SAMPLE_SCHEMA))


def _labelled_part(dataset: Dataset, rows: list[tuple[int, str, bool]]) -> Part:
    """The labelled set as a file of its own dataset, so that training it is a unit like the others."""
    file = io.BytesIO()
    columns = [list(column) for column in zip(*sorted(rows), strict=True)]
    pq.write_table(pa.table(columns, schema=LABELLED_SCHEMA), file, compression="zstd")
    data = file.getvalue()
    digest = hashlib.sha256(data).hexdigest()
    step = dataset.into.dataset("classifiers.labelled", None, inputs={}, module=__name__, external={"rows": digest})
    manifest = step.find() or step.publish_files({LABELLED: data})
    return Part(manifest.reference, LABELLED, None, len(data), digest, digest, None)


def train_part(unit: Unit, writer: PartWriter) -> None:
    """One classifier: its file and its report."""
    from tasks.classifiers.training import Sample, train_linear, train_perplexity

    config = unit.config
    if isinstance(config, ToxicityConfig):
        table = pq.read_table(io.BytesIO(unit.storage.read_bytes(f"{unit.inputs[0].stage}/{LABELLED}")))
        rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
        positive, negative = (
            Sample.of((rank, text) for rank, text, is_it in rows if is_it == sign) for sign in (True, False)
        )
        name, made = "toxicity", train_linear("toxicity", positive, negative, config.ngram_words, config.buckets)
    elif isinstance(config, QualityConfig):
        positive, negative = (Sample.of(take(unit, sources, config.sample_bytes)) for sources in _classes(config))
        name, made = "quality", train_linear("quality", positive, negative, config.ngram_words, config.buckets)
    else:
        assert isinstance(config, PerplexityConfig)
        sample = Sample.of(take(unit, config.sources, config.sample_bytes))
        name, made = "perplexity", train_perplexity(sample, config.order, config.min_count)
    data, report = made
    row = [[f"{name}.safetensors"], [data], [orjson.dumps(report, option=orjson.OPT_SORT_KEYS).decode()]]
    writer.write_row_group(pa.table(row, schema=MODEL_SCHEMA))


def take(unit: Unit, sources: tuple[str, ...], wanted: int) -> list[tuple[int, str]]:
    """(rank, text) of each source in the order of rank, until its share of the wanted bytes is reached.

    Raises DataError when a source has no text.
    """
    taken: list[tuple[int, str]] = []
    for source in sources:
        parts = (part for part in unit.inputs if part.source == source)
        tables = [table for part in parts for table in read_part(unit.storage, part, ["rank", "text"])]
        rows = sorted((row["rank"], row["text"]) for table in tables for row in table.to_pylist())
        if not rows:
            raise DataError(f"classifiers: source {source!r} has no documents to learn from")
        left = wanted // len(sources)
        for rank, text in rows:
            if left <= 0:
                break
            taken.append((rank, text))
            left -= len(text.encode())
    return taken
