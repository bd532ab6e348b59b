"""vocabulary: a sample of the train split -> a byte-level BPE tokenizer, and a report that compares it.

Reads documents and mix. Writes `tokenizer.json` (Hugging Face format), `token_bytes.json` (bytes of text per id,
special tokens 0: what bits per byte divides by) and `report.json` (sample, bytes per token by source, comparison with
characters and whitespace words on held-out text). Step `sample` picks documents by a hash of their id
and step `model` trains, so both run on workers and depend on neither their number nor their order.

Special tokens take the first ids: bos opens every document and is never predicted, eos closes it and is, pad fills
a row.
Invariant: any text round-trips, as each of the 256 bytes is a token. Byte-level BPE: Sennrich et al. 2016 (1508.07909),
Radford et al. 2019. Worked number: 4,096 entries on 10 MB of code and prose: 5.3 CPU-seconds, 2.9 bytes per token.
"""

import io
import json
import logging
from collections.abc import Mapping
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pydantic import BaseModel, Field, model_validator
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from tasks.config import Amount, Several
from tasks.dataset import Dataset, Workspace
from tasks.encoding import token_bytes, vocabulary_size
from tasks.errors import ConfigError, DataError
from tasks.manifest import Manifest
from tasks.parts import PartWriter, Receipt, Unit, read_part
from tasks.splits import HASH_RANGE, SPLITS, Split, paired_parts, read_split, sample_rate
from tasks.vocabulary_report import build_report

RESULT_PACKAGES = ("tokenizers", "xxhash")
NUM_BYTES = 256
SAMPLE_SEED = 1  # another hash than the split's: held-out documents are those with the smallest hash of seed 0
DOCUMENT_BYTES = 1 << 20  # a document gives at most its first MiB: one huge file must not decide merges
MAX_PIECE_BYTES = 64  # longer pieces are rulers of dashes and runs of blanks
TRAINED_PIECE_BYTES = 1024  # training takes time quadratic in a piece: 200,000 spaces in a row 77 s, in such cuts none
PATTERNS = {
    "cl100k": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+",
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
}

SAMPLE_SCHEMA = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("rank", pa.uint64(), nullable=False),  # hash of the id: candidates are taken in this order
        pa.field("text", pa.large_string(), nullable=False),
    ]
)
MODEL_SCHEMA = pa.schema([pa.field("name", pa.string()), pa.field("data", pa.large_binary())])

logger = logging.getLogger(__name__)


class SpecialTokens(BaseModel, frozen=True, extra="forbid", strict=True):
    """Tokens that stand for structure, never for text."""

    bos: str = Field(default="<|bos|>", min_length=1, description="Opens every document; never a training target")
    eos: str = Field(default="<|eos|>", min_length=1, description="Closes every document; generation stops at it")
    pad: str = Field(default="<|pad|>", min_length=1, description="Fills the end of a row; never a training target")
    more: Several[str] = Field(default=(), description="Further tokens kept free for later (chat roles, tools)")

    @model_validator(mode="after")
    def _check(self) -> "SpecialTokens":
        texts = (self.bos, self.eos, self.pad, *self.more)
        if len(set(texts)) < len(texts):
            raise ValueError(f"special tokens must differ: {texts}")
        return self


class VocabularyConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """What the tokenizer is trained on, and how large it is."""

    size: int = Field(
        default=32_768, ge=1, le=1 << 20, description="Entries, special tokens included (4,096 to 262,144)"
    )
    sample_bytes: int = Field(
        default=200_000_000, gt=0, description="UTF-8 bytes to train on; more than some hundred MB changes few merges"
    )
    held_out_bytes: int = Field(default=1_000_000, gt=0, description="UTF-8 bytes per source for the report")
    sample_weights: dict[str, Amount] = Field(
        default={}, description="Share of the sample by source; empty: by the size of the sources"
    )
    pattern: Literal["cl100k", "gpt2"] = Field(
        default="cl100k", description="Rule that cuts text before merging (cl100k: numbers in groups of three)"
    )
    special_tokens: SpecialTokens = Field(default=SpecialTokens(), description="Texts of the special tokens")

    @model_validator(mode="after")
    def _check(self) -> "VocabularyConfig":
        least = NUM_BYTES + 3 + len(self.special_tokens.more)
        if self.size < least:
            raise ValueError(f"size {self.size}: at least {least} are needed (256 bytes and the special tokens)")
        if self.sample_weights and not sum(self.sample_weights.values()):
            raise ValueError("sample_weights sum to nothing: give one source a weight, or leave them out")
        return self


def train_tokenizer(documents: Manifest, mix: Manifest, *, into: Workspace, config: VocabularyConfig) -> Manifest:
    """The tokenizer trained on these documents, as files. `extra`: size, special_tokens {role: id}, bytes_per_token."""
    inputs = {"documents": documents, "mix": mix}
    dataset = into.dataset("vocabulary", config, inputs=inputs, module=__name__)
    if found := dataset.find():
        return found
    with dataset.lease():
        wanted = wanted_bytes(mix.extra["sizes"], config)
        sample = _draw_sample(dataset, documents, mix, wanted)
        step = dataset.step("model", MODEL_SCHEMA, inputs={"sample": sample})
        unit = step.unit(sample.parts, config=config, arguments={"wanted_bytes": wanted})
        [receipt] = step.compute([unit], train_part)
        files = _read_files(dataset, receipt)
        report = json.loads(files["report.json"])
        if report["size"] < config.size:
            logger.warning("vocabulary: the sample gave %d entries, not %d", report["size"], config.size)
        return dataset.publish_files(
            files, extra={name: report[name] for name in ("size", "special_tokens", "bytes_per_token")}
        )


def wanted_bytes(sizes: dict[str, Any], config: VocabularyConfig) -> dict[str, dict[Split, int]]:
    """Bytes to take from each source and split. A source that has less gives all it has, once.

    Raises ConfigError for a weight of an unknown source, DataError when there is no text to train on.
    """
    unknown = config.sample_weights.keys() - sizes.keys()
    if unknown:
        raise ConfigError(f"tokenizer.sample_weights: no source {sorted(unknown)}; sources are {sorted(sizes)}")
    train = {source: split["train"]["bytes"] for source, split in sizes.items()}
    weights = config.sample_weights or train
    total = sum(weights.values())
    if not any(train[source] for source in weights if weights[source]):
        raise DataError("vocabulary: the sources with a weight have no text in the train split")
    return {
        source: {
            "train": round(config.sample_bytes * weights.get(source, 0) / total),
            "held_out": config.held_out_bytes,
        }
        for source in sorted(sizes)
    }


def sample_part(unit: Unit, writer: PartWriter) -> None:
    """The candidates of one part: documents whose hash lies below the rate of their split."""
    documents, mix = unit.inputs
    for split in SPLITS:
        limit = unit.arguments[split] * HASH_RANGE
        tables = read_split(unit.storage, documents, mix, split, unit.source) if limit else ()
        for table in tables:
            ranks = [
                xxhash.xxh64_intdigest(doc_id.encode(), seed=SAMPLE_SEED) for doc_id in table["doc_id"].to_pylist()
            ]
            candidates = table.append_column("rank", pa.array(ranks, pa.uint64()))
            candidates = candidates.filter(pa.array([rank < limit for rank in ranks]))
            constant = {"source": unit.source, "split": split}
            columns = [
                pa.array([constant[name]] * candidates.num_rows, pa.string()) if name in constant else candidates[name]
                for name in SAMPLE_SCHEMA.names
            ]
            writer.write(pa.Table.from_arrays(columns, schema=SAMPLE_SCHEMA))


def train_part(unit: Unit, writer: PartWriter) -> None:
    """Train on the sample and write the files of the dataset, one row each."""
    config = unit.config
    assert isinstance(config, VocabularyConfig)
    empty = SAMPLE_SCHEMA.empty_table()
    sample = pa.concat_tables([empty, *(table for part in unit.inputs for table in read_part(unit.storage, part))])
    wanted = dict(sorted(unit.arguments["wanted_bytes"].items()))
    train = {source: take(sample, source, "train", wanted[source]["train"]) for source in wanted}
    held_out = {source: take(sample, source, "held_out", wanted[source]["held_out"]) for source in wanted}
    tokenizer = train_bpe([text for texts in train.values() for text in texts], config)
    data = tokenizer.to_str(pretty=True).encode()
    report = {
        "size": vocabulary_size(data),
        "special_tokens": special_ids(tokenizer, config.special_tokens),
        "sample": {
            source: {
                "wanted_bytes": wanted[source]["train"],
                "taken_bytes": sum(len(text.encode()) for text in texts),
                "documents": len(texts),
            }
            for source, texts in train.items()
        },
        **build_report(data, train, held_out),
    }
    files = {"tokenizer.json": data, "report.json": _json(report), "token_bytes.json": _json(token_bytes(data))}
    writer.write_row_group(pa.table([list(files), list(files.values())], schema=MODEL_SCHEMA))


def train_bpe(texts: list[str], config: VocabularyConfig) -> Tokenizer:
    """A byte-level BPE tokenizer; equal for any number of threads. Special tokens come first, then the 256 bytes."""
    special = config.special_tokens
    tokenizer = Tokenizer(models.BPE())
    cut = [
        pre_tokenizers.Split(Regex(PATTERNS[config.pattern]), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cut, pre_tokenizers.FixedLength(TRAINED_PIECE_BYTES)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.size,
        special_tokens=[special.bos, special.eos, special.pad, *special.more],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=MAX_PIECE_BYTES,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cut)
    tokenizer.post_processor = processors.TemplateProcessing(  # prompts begin as documents do
        single=[special.bos, "$A"],
        pair=[special.bos, "$A", "$B"],
        special_tokens=[(special.bos, tokenizer.token_to_id(special.bos))],
    )
    return tokenizer


def take(sample: pa.Table, source: str, split: Split, wanted: int) -> list[str]:
    """Texts of the candidates in the order of their hash until `wanted` bytes are reached; the last one is cut."""
    own = sample.filter(pc.and_(pc.equal(sample["source"], source), pc.equal(sample["split"], split)))
    texts, left = [], wanted
    for text in own.sort_by("rank")["text"].to_pylist():
        if left <= 0:
            break
        data = text.encode()[: min(left, DOCUMENT_BYTES)]
        texts.append(data.decode(errors="ignore"))  # a character cut in two is left out
        left -= len(data)
    return texts


def special_ids(tokenizer: Tokenizer, special: SpecialTokens) -> dict[str, int]:
    """{role or text: id} of the special tokens."""
    texts = {"bos": special.bos, "eos": special.eos, "pad": special.pad} | {text: text for text in special.more}
    ids = tokenizer.get_vocab(with_added_tokens=True)
    return {role: ids[text] for role, text in texts.items()}


def _draw_sample(
    dataset: Dataset, documents: Manifest, mix: Manifest, wanted: Mapping[str, Mapping[Split, int]]
) -> Manifest:
    step = dataset.step("sample", SAMPLE_SCHEMA, inputs=dataset.inputs, external={"wanted": wanted}, config=None)
    units = []
    for source, sizes in mix.extra["sizes"].items():
        rates = {str(split): sample_rate(wanted[source][split], sizes[split]["bytes"]) for split in SPLITS}
        for part, split_rows, _ in paired_parts(documents, mix, source):
            units.append(step.unit([part, split_rows], source=source, arguments=rates))
    return step.publish(step.compute(units, sample_part))


def _read_files(dataset: Dataset, receipt: Receipt) -> dict[str, bytes]:
    table = pa.concat_tables(read_part(dataset.storage, receipt.part))
    return dict(zip(table["name"].to_pylist(), table["data"].to_pylist(), strict=True))


def _json(value: object) -> bytes:
    text = io.StringIO()
    json.dump(value, text, ensure_ascii=False, indent=1, sort_keys=True)
    return text.getvalue().encode()
