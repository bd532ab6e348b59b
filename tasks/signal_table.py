"""All signals: name, type, range, unit, source and meaning (`basemill signals` prints this table).

A value is null where the signal is not applied: signals of single words (`of_words`) in text of a script without spaces
between words (Thai, Lao, Khmer, Burmese, Chinese, Japanese), signals of sentence ends (`of_ends`) in Thai and Lao,
signals of classifiers that are not configured. Words are counted in every script (tasks/kernels/unspaced.py). A ratio
whose denominator is zero is 0. Words, runs, lines, paragraphs and sentences: see tasks/kernels/scan.py.
"""

import difflib
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

Kind = Literal["string", "int64", "double", "list<int64>"]
TYPES: dict[Kind, pa.DataType] = {
    "string": pa.string(), "int64": pa.int64(), "double": pa.float64(), "list<int64>": pa.list_(pa.int64()),
}  # fmt: skip


@dataclass(frozen=True)
class Signal:
    """One measurement of a document; `low` and `high` bound its values (None: no bound)."""

    name: str
    type: Kind
    low: float | None
    high: float | None
    unit: str
    source: str
    meaning: str
    of_words: bool = False
    of_ends: bool = False


def _ratio(name: str, source: str, meaning: str, *, of_words: bool = False, of_ends: bool = False) -> Signal:
    return Signal(name, "double", 0, 1, "share", source, meaning, of_words, of_ends)


def _count(name: str, source: str, meaning: str, *, of_words: bool = False, of_ends: bool = False) -> Signal:
    return Signal(name, "int64", 0, None, name.removeprefix("num_"), source, meaning, of_words, of_ends)


def _named(name: str, unit: str, meaning: str) -> tuple[Signal, Signal]:
    """What was found, in a text, and how much."""
    return (
        Signal(name, "string", None, None, unit, URL, meaning),
        Signal(f"num_{name}", "int64", 0, None, unit, URL, f"number of {name}"),
    )


GOPHER, TABLE_A1, C4, FINEWEB, CLASSIFIER = "Gopher A.1.1", "Gopher table A1", "C4", "FineWeb", "classifiers"
REFINEDWEB, URL, CODE = "RefinedWeb", "URL", "StarCoder"

SIGNALS: tuple[Signal, ...] = (
    Signal("language", "string", None, None, "ISO 639 code", "py3langid", "the most probable language"),
    Signal("language_score", "double", 0, 1, "probability", "py3langid", "how probable that language is"),
    _count("num_chars", "-", "characters"),
    _count("num_visible_chars", "-", "characters without white space, controls and zero-width characters"),
    _ratio("unspaced_ratio", "-", "letters, marks and digits of scripts without spaces / all of them"),
    _count("num_words", GOPHER, "words; in scripts without spaces 2 letters (Han, kana) or 5 (others) are one"),
    Signal("mean_word_chars", "double", 0, None, "characters", GOPHER, "mean length of words", of_words=True),
    Signal("hash_ratio", "double", 0, None, "per run", GOPHER, "number of # / runs"),
    Signal("ellipsis_ratio", "double", 0, None, "per run", GOPHER, "number of ... and … / runs"),
    _ratio("bullet_line_ratio", GOPHER, "lines that begin with • or - / lines"),
    _ratio("ellipsis_line_ratio", GOPHER, "lines that end with ... or … / lines"),
    _ratio("alphabetic_word_ratio", GOPHER, "runs with a letter / runs", of_words=True),
    _count("num_stop_words", GOPHER, "different stop words in the text", of_words=True),
    _ratio("duplicate_line_ratio", TABLE_A1, "lines that repeat an earlier one / lines"),
    _ratio("duplicate_paragraph_ratio", TABLE_A1, "paragraphs that repeat an earlier one / paragraphs"),
    _ratio("duplicate_line_char_ratio", TABLE_A1, "characters of such lines / characters"),
    _ratio("duplicate_paragraph_char_ratio", TABLE_A1, "characters of such paragraphs / characters"),
    *(
        Signal(
            f"top_{n}gram_char_ratio", "double", 0, None, "share", TABLE_A1,
            f"length with spaces x occurrences of the commonest {n}-gram / characters", of_words=True,
        )
        for n in (2, 3, 4)
    ),
    *(
        _ratio(f"duplicate_{n}gram_char_ratio", TABLE_A1, f"characters of repeated {n}-grams / all", of_words=True)
        for n in range(5, 11)
    ),
    _count("num_sentences", C4, "sentences", of_ends=True),
    _count("num_curly_brackets", C4, "number of {"),
    _count("num_lorem_ipsums", C4, 'number of "lorem ipsum"'),
    _ratio("ended_line_ratio", FINEWEB, "lines that end with a sentence's end mark / lines", of_ends=True),
    _ratio("short_line_ratio", FINEWEB, "lines of at most 30 characters / lines", of_words=True),
    _ratio("repeated_line_char_ratio", FINEWEB, "characters of repeated lines / characters that are no newlines"),
    Signal(
        "newline_ratio", "double", 0, None, "per word", FINEWEB, "newlines (several in a row count once) / words",
    ),
    _count("num_cut_long_word_lines", C4, "lines cut for a word that is too long"),
    _count("num_cut_unended_lines", C4, "lines cut for want of an end mark"),
    _count("num_cut_short_lines", C4, "lines cut for too few words"),
    _count("num_cut_phrase_lines", C4, "lines cut for a phrase"),
    _count("num_cut_citations", C4, "citation marks cut"),
    _count("num_cut_upper_case_lines", REFINEDWEB, "lines cut for their capitals"),
    _count("num_cut_digit_lines", REFINEDWEB, "lines cut for having nothing but digits"),
    _count("num_cut_counter_lines", REFINEDWEB, 'lines cut for being a counter, such as "3 likes"'),
    _count("num_cut_few_word_lines", REFINEDWEB, "lines cut for having one word"),
    _count("num_cut_navigation_phrases", REFINEDWEB, 'phrases such as "Read more..." cut from short lines'),
    _ratio("edited_word_ratio", REFINEDWEB, "runs that RefinedWeb's line rules cut / runs that they read"),
    Signal("url_host", "string", None, None, "host", URL, "host of the URL in lower case and ASCII"),
    *_named("url_hard_words", "words", "words of the URL of which one is enough"),
    *_named("url_soft_words", "words", "words of the URL of which two are enough"),
    *_named("url_substrings", "substrings", "substrings of the URL, its - and dots left out"),
    *_named("url_listed_domains", "domains", "domain of a list that the host is, or is below"),
    _count("num_lines", CODE, "lines, blank ones too"),
    Signal("mean_line_chars", "double", 0, None, "characters", CODE, "mean length of lines, blank ones too"),
    Signal("longest_line_chars", "double", 0, None, "characters", CODE, "length of the longest line"),
    _ratio("alphanumeric_ratio", CODE, "letters, their marks and digits / characters"),
    _ratio("alphabetic_ratio", CODE, "letters / characters"),
    _count("num_generated_marks", CODE, "different marks of generated code at the head of the text"),
    _count("num_xml_declarations", CODE, "<?xml version= in the first 100 bytes"),
    Signal("num_licence_chars", "int64", 0, None, "characters", CODE, "length of the licence header, cut or not"),
    _count("num_cut_licence_headers", CODE, "licence headers cut"),
    Signal("quality_score", "double", 0, 1, "probability", CLASSIFIER, "like positive sources, not negative ones"),
    Signal("toxicity_score", "double", 0, 1, "probability", CLASSIFIER, "like the toxic texts of the labelled set"),
    _count("num_listed_words", CLASSIFIER, "words and phrases of the word lists"),
    Signal("perplexity", "double", 0, None, "per word", CLASSIFIER, "how unexpected its words are after each other"),
    Signal("cut_spans", "list<int64>", 0, None, "bytes", "-", "start and end of each cut, one after the other"),
)  # fmt: skip
SIGNAL_BY_NAME = {signal.name: signal for signal in SIGNALS}
CUT_SIGNALS = tuple(signal.name for signal in SIGNALS if signal.name.startswith("num_cut_"))
SIGNAL_SCHEMA = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        *(pa.field(signal.name, TYPES[signal.type]) for signal in SIGNALS),
    ]
)


def with_all_signals(measured: pa.Table) -> pa.Table:
    """Stored signals of an earlier version, with those that it did not know as null (not applied)."""
    for field in SIGNAL_SCHEMA:
        if field.name not in measured.schema.names:
            measured = measured.append_column(field, pa.nulls(len(measured), field.type))
    return measured


def check_number_signal(name: str) -> str:
    """The name, if it is one of a signal that is a number. Raises ValueError that says what is allowed."""
    numbers = [signal.name for signal in SIGNALS if signal.type in ("int64", "double")]
    if name not in numbers:
        close = difflib.get_close_matches(name, numbers, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ValueError(f"there is no signal {name} that is a number; {hint}allowed: {', '.join(numbers)}")
    return name
