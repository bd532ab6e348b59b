"""Measures every document (stage "signals"): one row each, same part, same order, doc_id first; nothing is dropped.

Reads documents; writes SIGNAL_SCHEMA (tasks/signal_table.py says what each column means). The line rules are applied
first, and everything is measured on the text as they leave it; `cut_spans` holds what they cut, as byte offsets into
the text as it came, for select to apply. Definitions follow datatrove's FineWeb chain where papers are ambiguous
(Gopher arXiv 2112.11446, C4 arXiv 1910.10683, FineWeb arXiv 2406.17557); where ours differ, and why:
- a word is a run of characters without the punctuation at its ends; `words: datatrove` takes the tokens of spaCy's
  English tokenizer, punctuation marks included, as datatrove does (tasks/kernels/english.py). In Chinese, Japanese,
  Thai, Lao, Khmer and Burmese text words are counted by their letters (tasks/kernels/unspaced.py); what needs to know
  where a word ends is not measured there (n-grams of letters would drop 28 of 29 Thai encyclopedia articles);
- blank lines are no lines, so a text with gaps is not repetitive; newlines in a row count once;
- a citation mark needs a number: `[]` stays (it is code).

    "The cat sat.\\n\\nThe cat sat." -> num_words 6, duplicate_line_ratio 0.5, newline_ratio 1/6
"""

from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel, Field, JsonValue, field_validator, model_validator

from tasks.classifier_models import NO_MODELS, Models, load_models, model_files
from tasks.config import Several, check_by_source, for_source
from tasks.dataset import Workspace
from tasks.kernels.buffers import Bytes, Offsets, text_array, text_buffers
from tasks.kernels.characters import character_table
from tasks.kernels.cuts import CUTS, apply_cuts, find_cuts, line_rules
from tasks.kernels.english import TOKEN_COUNTS, english_tokens
from tasks.kernels.english_tables import english_tables
from tasks.kernels.line_edits import EDITS, NUM_CUT_WORDS, NUM_WORDS, edit_rules, find_edits
from tasks.kernels.repetition import DUPLICATE_NS, TOP_NS, count_duplicates, count_ngrams
from tasks.kernels.scan import COUNTS, Items, scan_tables, scan_texts
from tasks.kernels.source_lines import COUNTS as LINE_COUNTS
from tasks.kernels.source_lines import scan_lines
from tasks.kernels.unspaced import count_words
from tasks.languages import UNDETERMINED, identify_languages
from tasks.later_cuts import Cuts, join_cuts
from tasks.manifest import Manifest
from tasks.parts import PartWriter, Unit, documents_of
from tasks.signal_table import GOPHER, SIGNAL_SCHEMA, SIGNALS, TABLE_A1
from tasks.signals.code_heads import GENERATED_MARKS, scan_heads
from tasks.signals.domain_lists import FILE as DOMAINS
from tasks.signals.domain_lists import by_content, load_list
from tasks.signals.refinedweb import RefinedWebLines
from tasks.signals.urls import UrlConfig, url_signals

RESULT_PACKAGES = ("numba", "pyarrow")
# Above this share of letters, words between spaces say nothing about a text. Technical Chinese can have 0.06 beside its
# links and code; no English document of 12,500 has more than 0.03.
UNSPACED_LIMIT = 0.05
POLICY_PHRASES = (
    "terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies",
)  # fmt: skip
STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
NO_SPANS = np.zeros((0, 2), np.int64)
Buffers = tuple[Bytes, Offsets]
Column = NDArray[np.int64] | NDArray[np.float64]
Measured = tuple[dict[str, Column], dict[str, NDArray[np.bool_]]]  # signals, and where they are not applied


class SignalsConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """Line rules and settings of the measurements; thresholds that drop documents are select's."""

    enabled: bool = Field(default=True, description="false: nothing is measured, so no document rule applies")
    max_word_chars: int = Field(default=1000, ge=0, description="cut lines with a longer word; 0: off")
    require_end_marks: bool = Field(default=False, description="cut lines without an end mark (FineWeb: off)")
    min_line_words: int = Field(default=3, ge=0, description="cut lines of fewer words; 0: off")
    cut_phrases: Several[str] = Field(
        default=("javascript", *POLICY_PHRASES), description="cut lines that contain one of these, in any case"
    )
    cut_citations: bool = Field(default=True, description="cut [12], [edit] and [citation needed]")
    stop_words: Annotated[Several[str], Field(max_length=62)] = Field(
        default=STOP_WORDS, description="words that running text has, case counts"
    )
    words: Literal["basemill", "datatrove"] = Field(
        default="basemill",
        description="basemill: a run without punctuation at its ends; datatrove: a token of spaCy's English tokenizer",
    )
    cut_licence_headers: bool = Field(
        default=False, description="cut the licence header of source files", json_schema_extra={"neutral": False}
    )
    generated_marks: Several[str] = Field(
        default=GENERATED_MARKS, description="what the head of generated code says, in lower case"
    )
    url: UrlConfig | None = Field(default=UrlConfig(), description="what is looked for in URLs; null: nothing")
    refinedweb_lines: RefinedWebLines | None = Field(
        default=None,
        description="RefinedWeb's line rules, after those above; {}: as published; null: off",
        json_schema_extra={"neutral": None},
    )
    gopher_before_cuts: bool = Field(
        default=False, description="measure Gopher's signals on the text before the line rules cut it, as FineWeb did"
    )
    short_line_chars: int = Field(default=30, ge=0, description="longest line that counts as short, in characters")
    by_source: dict[str, dict[str, JsonValue]] = Field(default={}, description="other values for one source")

    @field_validator("cut_phrases", "generated_marks")
    @classmethod
    def _check_phrases(cls, phrases: tuple[str, ...]) -> tuple[str, ...]:
        for phrase in phrases:
            if phrase != phrase.lower() or not any(char.isalnum() for char in phrase) or len(phrase.encode()) > 255:
                raise ValueError(f"{phrase!r}: a phrase is lower-case, has a letter or digit and at most 255 bytes")
        return phrases

    @model_validator(mode="after")
    def _check_by_source(self) -> "SignalsConfig":
        return check_by_source(self)


def measure_signals(
    documents: Manifest, classifiers: Manifest | None = None, *, into: Workspace, config: SignalsConfig
) -> Manifest:
    """Signals of all documents; part i measures part i of the documents. Without classifiers their signals are null.

    Raises ConfigError when a domain list is missing or another than named, DataError when it is no list of domains.
    """
    config, lists = by_content(into.storage, config)
    inputs = {"documents": documents} | ({"classifiers": classifiers} if classifiers else {})
    dataset = into.dataset("signals", config, inputs=inputs, module=__name__, schema=SIGNAL_SCHEMA, conservation="rows")
    if found := dataset.find():
        return found
    with dataset.lease():
        files = model_files(classifiers) if classifiers else []
        domains = {sha256: named.publish(into, sha256) for sha256, named in lists.items()}
        units = []
        for part in documents.parts:
            own = for_source(config, part.source or "")
            read = [*files, *(domains[str(named.sha256)] for named in (own.url.domain_lists if own.url else ()))]
            units.append(dataset.unit([part, *(read if own.enabled else [])], source=part.source, config=own))
        return dataset.publish(dataset.compute(units, signals_part))


def signals_part(unit: Unit, writer: PartWriter) -> None:
    """One part, row group by row group."""
    config = unit.config
    assert isinstance(config, SignalsConfig)
    models = load_models(unit.storage, tuple(part for part in unit.inputs[1:] if part.key != DOMAINS))
    lists = [load_list(unit.storage, part) for part in unit.inputs[1:] if part.key == DOMAINS]
    for table in documents_of(unit, writer, columns=["doc_id", "text", "url"]):
        columns = unmeasured(table.num_rows)
        if config.enabled:
            columns |= measure(table["text"], config, models)
            columns |= url_signals(table["url"].to_pylist(), config.url, lists)
        rows = [table["doc_id"], *(columns[signal.name] for signal in SIGNALS)]
        writer.write_row_group(pa.Table.from_arrays(rows, schema=SIGNAL_SCHEMA))


def unmeasured(rows: int) -> dict[str, pa.Array]:
    """Null signals, and nothing to cut: what a source has that leaves this stage out."""
    columns = {field.name: pa.nulls(rows, field.type) for field in SIGNAL_SCHEMA}
    return columns | {"cut_spans": pa.array([[]] * rows, pa.list_(pa.int64()))}


def measure(
    texts: pa.ChunkedArray | pa.Array, config: SignalsConfig, models: Models = NO_MODELS
) -> dict[str, pa.Array]:
    """All signals of a column of texts; those of URLs are apart (urls.py)."""
    whole = text_buffers(texts)
    cuts, cut_counts = find_all_cuts(whole, config)
    span_offsets, spans = cuts
    data, offsets = without(whole, cuts)
    columns, hidden = document_signals(data, offsets, config)
    if config.gopher_before_cuts:
        rows = np.flatnonzero(np.diff(span_offsets))
        _replace_gopher(columns, hidden, rows, document_signals(*_rows_of(whole, rows), config))
    columns |= cut_counts | code_signals(data, offsets)
    language, score = identify_languages(data, offsets)
    is_visible = columns["num_visible_chars"] > 0  # the model has an opinion about zero-width characters too
    columns["language_score"] = np.where(is_visible, score, 0.0)
    language = pc.if_else(is_visible, language, UNDETERMINED)
    arrays = {
        signal.name: pa.array(columns[signal.name], SIGNAL_SCHEMA.field(signal.name).type, mask=hidden.get(signal.name))
        for signal in SIGNALS
        if signal.name in columns
    }
    cut_spans = pa.ListArray.from_arrays(pa.array(2 * span_offsets, pa.int32()), pa.array(spans.ravel()))
    return arrays | {"language": language, "cut_spans": cut_spans} | models.score(data, offsets)


def find_all_cuts(whole: Buffers, config: SignalsConfig) -> tuple[Cuts, dict[str, Column]]:
    """What is cut: licence headers, then lines, RefinedWeb's of what the others leave; how often, and heads of code."""
    heads = scan_heads(*whole, config.generated_marks)
    columns: dict[str, Column] = {f"num_{name}": values for name, values in heads.counts.items()}
    cuts = heads.licences if config.cut_licence_headers else (np.zeros(len(whole[1]), np.int64), NO_SPANS)
    columns["num_cut_licence_headers"] = np.diff(cuts[0])
    span_offsets, spans, counts = find_cuts(*without(whole, cuts), rules_of(config))
    cuts, edits = join_cuts(cuts, (span_offsets, spans)), np.zeros((len(counts), NUM_CUT_WORDS + 1), np.int64)
    if config.refinedweb_lines is not None:
        rules = edit_rules(config.refinedweb_lines.limits, config.refinedweb_lines.groups)
        span_offsets, spans, edits = find_edits(*without(whole, cuts), rules)
        cuts = join_cuts(cuts, (span_offsets, spans))
    columns |= {f"num_cut_{name}": counts[:, index] for index, name in enumerate(CUTS)}
    columns |= {f"num_cut_{name}": edits[:, index] for index, name in enumerate(EDITS)}
    return cuts, columns | {"edited_word_ratio": ratio(edits[:, NUM_CUT_WORDS], edits[:, NUM_WORDS])}


def without(whole: Buffers, cuts: Cuts) -> Buffers:
    """The texts without the cuts."""
    return apply_cuts(*whole, *cuts) if len(cuts[1]) else whole


def code_signals(data: Bytes, offsets: Offsets) -> dict[str, Column]:
    """Signals of source code, of texts as they are; those of heads come with the cuts."""
    count = dict(zip(LINE_COUNTS, scan_lines(data, offsets, character_table()).T, strict=True))
    return {
        "num_lines": count["lines"],
        "mean_line_chars": ratio(count["line_chars"], count["lines"]),
        "longest_line_chars": count["longest_line_chars"].astype(np.float64),
        "alphanumeric_ratio": ratio(count["letters_and_digits"], count["chars"]),
        "alphabetic_ratio": ratio(count["letters"], count["chars"]),
    }


def document_signals(data: Bytes, offsets: Offsets, config: SignalsConfig) -> Measured:
    """Signals of texts as they are, and per signal the texts to which it does not apply."""
    tables = scan_tables(config.stop_words, config.short_line_chars)
    counts, words, lines, paragraphs = scan_texts(data, offsets, tables)
    count = dict(zip(COUNTS, counts.T, strict=True))
    if config.words == "datatrove":
        counts, words = english_tokens(data, offsets, english_tables())
        count |= dict(zip(TOKEN_COUNTS, counts.T, strict=True))
    has_no_spaces = ratio(count["unspaced_letters"], count["letters"]) > UNSPACED_LIMIT
    count["words"][has_no_spaces] = count_words(data, offsets, np.flatnonzero(has_no_spaces), tables[0])
    columns = _quality_signals(count, config) | _repetition_signals(count, words, lines, paragraphs)
    has_no_ends = ratio(count["unended_letters"], count["letters"]) > UNSPACED_LIMIT
    hidden = {signal.name: has_no_spaces for signal in SIGNALS if signal.of_words}
    return columns, hidden | {signal.name: has_no_ends for signal in SIGNALS if signal.of_ends}


def _rows_of(buffers: Buffers, rows: NDArray[np.int64]) -> Buffers:
    return text_buffers(text_array(*buffers).take(pa.array(rows)))


def _replace_gopher(
    columns: dict[str, Column], hidden: dict[str, NDArray[np.bool_]], rows: NDArray[np.int64], whole: Measured
) -> None:
    """Gopher's signals of these rows from `whole`, what the same texts measure before they are cut."""
    for signal in SIGNALS:
        if signal.source in (GOPHER, TABLE_A1):
            columns[signal.name][rows] = whole[0][signal.name]
            if signal.name in hidden:
                hidden[signal.name] = hidden[signal.name].copy()  # signals share a mask
                hidden[signal.name][rows] = whole[1][signal.name]


def ratio(part: NDArray[np.int64], whole: NDArray[np.int64]) -> NDArray[np.float64]:
    """part / whole; 0 where the whole is 0."""
    return np.where(whole > 0, part / np.maximum(whole, 1), 0.0)


def rules_of(config: SignalsConfig) -> tuple[Bytes, Bytes, Offsets, Bytes, NDArray[np.int64]]:
    """The line rules as the kernel takes them."""
    limits = {
        "long_word_lines": config.max_word_chars,
        "unended_lines": int(config.require_end_marks),
        "short_lines": config.min_line_words,
        "phrase_lines": 1,
        "citations": int(config.cut_citations),
    }
    return line_rules(limits, config.cut_phrases)


def _quality_signals(count: dict[str, NDArray[np.int64]], config: SignalsConfig) -> dict[str, Column]:
    words, lines, runs = count["words"], count["lines"], count["words"] + count["symbols"]
    per_newline = words if config.words == "basemill" else runs  # datatrove counts its punctuation tokens here too
    return {
        "num_chars": count["chars"],
        "num_visible_chars": count["letters"] + count["symbol_chars"],
        "unspaced_ratio": ratio(count["unspaced_letters"], count["letters"]),
        "num_words": words,
        "mean_word_chars": ratio(count["word_chars"], words),
        "hash_ratio": ratio(count["hashes"], runs),
        "ellipsis_ratio": ratio(count["ellipses"], runs),
        "bullet_line_ratio": ratio(count["bullet_lines"], lines),
        "ellipsis_line_ratio": ratio(count["ellipsis_lines"], lines),
        "alphabetic_word_ratio": ratio(count["alphabetic_runs"], runs),
        "num_stop_words": count["stop_words"],
        "num_sentences": count["sentences"],
        "num_curly_brackets": count["curly_brackets"],
        "num_lorem_ipsums": count["lorem_ipsums"],
        "ended_line_ratio": ratio(count["ended_lines"], lines),
        "short_line_ratio": ratio(count["short_lines"], lines),
        "newline_ratio": ratio(np.maximum(lines - 1, 0), per_newline),
    }


def _repetition_signals(
    count: dict[str, NDArray[np.int64]], words: Items, lines: Items, paragraphs: Items
) -> dict[str, Column]:
    chars = count["chars"]
    duplicate_lines, line_chars = count_duplicates(*lines)
    duplicate_paragraphs, paragraph_chars = count_duplicates(*paragraphs)
    top, repeated = count_ngrams(*words)
    return {
        "duplicate_line_ratio": ratio(duplicate_lines, count["lines"]),
        "duplicate_paragraph_ratio": ratio(duplicate_paragraphs, count["paragraphs"]),
        "duplicate_line_char_ratio": ratio(line_chars, chars),
        "duplicate_paragraph_char_ratio": ratio(paragraph_chars, chars),
        "repeated_line_char_ratio": ratio(line_chars, chars - count["newlines"]),
        **{f"top_{n}gram_char_ratio": ratio(top[:, i], chars) for i, n in enumerate(TOP_NS)},
        **{f"duplicate_{n}gram_char_ratio": ratio(repeated[:, i], chars) for i, n in enumerate(DUPLICATE_NS)},
    }
