"""The document rules of select: families of thresholds over signals.

A rule's name is its place in the config, its signal and its direction: `gopher_quality.min_words` drops a document
whose `num_words` is below the threshold, `fineweb.max_newline_ratio` one whose `newline_ratio` is above it. Equal
passes.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, field_validator

from tasks.languages import identifiable_languages, normalise_language_code
from tasks.signal_table import SIGNAL_BY_NAME


class LanguageRules(BaseModel, frozen=True, extra="forbid"):
    """Documents in the wanted languages."""

    keep: tuple[str, ...] = Field(default=(), description="languages to keep, ISO 639 codes; empty: all")
    min_language_score: float | None = Field(default=None, ge=0, le=1, description="lowest probability (FineWeb: 0.65)")

    @field_validator("keep")
    @classmethod
    def _normalise(cls, codes: tuple[str, ...]) -> tuple[str, ...]:
        known = identifiable_languages()
        normal = tuple(normalise_language_code(code) for code in codes)
        for code in normal:
            if code not in known:
                raise ValueError(f"the language model does not know {code!r}, only {', '.join(sorted(known))}")
        return normal


class GopherQualityRules(BaseModel, frozen=True, extra="forbid"):
    """Gopher, arXiv 2112.11446 section A.1.1. null switches a rule off."""

    min_words: float | None = Field(default=50, description="words")
    max_words: float | None = Field(default=100_000, description="words")
    min_mean_word_chars: float | None = Field(default=3, description="characters")
    max_mean_word_chars: float | None = Field(default=10, description="characters")
    max_hash_ratio: float | None = Field(default=0.1, description="# per run")
    max_ellipsis_ratio: float | None = Field(default=0.1, description="ellipses per run")
    max_bullet_line_ratio: float | None = Field(default=0.9, description="share of lines")
    max_ellipsis_line_ratio: float | None = Field(default=0.3, description="share of lines")
    min_alphabetic_word_ratio: float | None = Field(default=0.8, description="share of runs")
    min_stop_words: float | None = Field(default=2, description="different stop words")


class GopherRepetitionRules(BaseModel, frozen=True, extra="forbid"):
    """Gopher, table A1. null switches a rule off."""

    max_duplicate_paragraph_ratio: float | None = Field(default=0.30, description="share of paragraphs")
    max_duplicate_paragraph_char_ratio: float | None = Field(default=0.20, description="share of characters")
    max_duplicate_line_ratio: float | None = Field(default=0.30, description="share of lines")
    max_duplicate_line_char_ratio: float | None = Field(default=0.20, description="share of characters")
    max_top_2gram_char_ratio: float | None = Field(default=0.20, description="share of characters")
    max_top_3gram_char_ratio: float | None = Field(default=0.18, description="share of characters")
    max_top_4gram_char_ratio: float | None = Field(default=0.16, description="share of characters")
    max_duplicate_5gram_char_ratio: float | None = Field(default=0.15, description="share of characters")
    max_duplicate_6gram_char_ratio: float | None = Field(default=0.14, description="share of characters")
    max_duplicate_7gram_char_ratio: float | None = Field(default=0.13, description="share of characters")
    max_duplicate_8gram_char_ratio: float | None = Field(default=0.12, description="share of characters")
    max_duplicate_9gram_char_ratio: float | None = Field(default=0.11, description="share of characters")
    max_duplicate_10gram_char_ratio: float | None = Field(default=0.10, description="share of characters")


class C4Rules(BaseModel, frozen=True, extra="forbid"):
    """C4, arXiv 1910.10683; its line rules are settings of the signals stage. null switches a rule off."""

    max_lorem_ipsums: float | None = Field(default=0, description="occurrences of the phrase")
    max_curly_brackets: float | None = Field(default=0, description="occurrences of {; null for code and mathematics")
    min_sentences: float | None = Field(default=5, description="sentences")


class FineWebRules(BaseModel, frozen=True, extra="forbid"):
    """FineWeb, arXiv 2406.17557, thresholds of its published code. null switches a rule off."""

    min_ended_line_ratio: float | None = Field(default=0.12, description="share of lines")
    max_short_line_ratio: float | None = Field(default=0.67, description="share of lines")
    max_repeated_line_char_ratio: float | None = Field(default=0.01, description="share (0.1 in the paper)")
    max_newline_ratio: float | None = Field(default=0.3, description="newlines per word")


FAMILIES: dict[str, type[BaseModel]] = {
    "language": LanguageRules,
    "gopher_quality": GopherQualityRules,
    "gopher_repetition": GopherRepetitionRules,
    "c4": C4Rules,
    "fineweb": FineWebRules,
}


@dataclass(frozen=True)
class Rule:
    """One rule of a config: `reason` is its place in the config."""

    reason: str
    signal: str
    is_minimum: bool

    def fails(self, values: NDArray[np.float64], threshold: float) -> NDArray[np.bool_]:
        """Which values break it; NaN (not applied) breaks none."""
        return values < threshold if self.is_minimum else values > threshold


def _rules() -> Iterator[Rule]:
    for family, model in FAMILIES.items():
        for field in model.model_fields:
            direction, _, measured = field.partition("_")
            if direction in ("min", "max"):
                signal = measured if measured in SIGNAL_BY_NAME else f"num_{measured}"
                yield Rule(f"{family}.{field}", SIGNAL_BY_NAME[signal].name, direction == "min")


RULES = tuple(_rules())  # in the order in which they are judged
