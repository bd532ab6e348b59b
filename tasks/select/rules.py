"""The document rules of select: families of thresholds over signals, and expressions of the recipe's own.

A rule's name is its place in the config. In a family that is its signal and direction: `gopher_quality.min_words` drops
a document whose `num_words` is below the threshold, `fineweb.max_newline_ratio` one whose `newline_ratio` is above it;
equal passes. `rules.weak` is the expression of that name (expressions.py): a document of which it is true goes.

    by_source: {code: {c4: null}}                                   one source
    by_language: {de: {gopher_quality: {min_stop_words: null}}}     documents whose signal `language` is de
    by_source: {web: {by_language: {de: {...}}}}                    those of one source
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, Field, JsonValue, StringConstraints, field_validator, model_validator

from tasks.config import Amount, Several, Share, check_order, check_overrides, for_source, merge
from tasks.languages import check_language_code
from tasks.select.drop_list import DropListConfig
from tasks.select.expressions import parse_expression
from tasks.signal_table import SIGNAL_BY_NAME


class LanguageRules(BaseModel, frozen=True, extra="forbid", strict=True):
    """Documents in the wanted languages."""

    keep: Several[str] = Field(default=(), description="languages to keep, ISO 639 codes; empty: all")
    min_language_score: Share | None = Field(default=None, description="lowest probability (FineWeb: 0.65)")

    @field_validator("keep")
    @classmethod
    def _normalise(cls, codes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(check_language_code(code) for code in codes)


class UrlRules(BaseModel, frozen=True, extra="forbid", strict=True):
    """What stands in the URL (signals.url names words and lists); the ledger names what was found. null: off."""

    max_url_hard_words: Amount | None = Field(default=0, description="different words")
    max_url_soft_words: Amount | None = Field(default=1, description="different words")
    max_url_substrings: Amount | None = Field(default=0, description="different substrings")
    max_url_listed_domains: Amount | None = Field(default=0, description="domains of the lists")


class GopherQualityRules(BaseModel, frozen=True, extra="forbid", strict=True):
    """Gopher, arXiv 2112.11446 section A.1.1. null switches a rule off."""

    min_words: Amount | None = Field(default=50, description="words")
    max_words: Amount | None = Field(default=100_000, description="words")
    min_mean_word_chars: Amount | None = Field(default=3, description="characters")
    max_mean_word_chars: Amount | None = Field(default=10, description="characters")
    max_hash_ratio: Amount | None = Field(default=0.1, description="# per run")
    max_ellipsis_ratio: Amount | None = Field(default=0.1, description="ellipses per run")
    max_bullet_line_ratio: Share | None = Field(default=0.9, description="share of lines")
    max_ellipsis_line_ratio: Share | None = Field(default=0.3, description="share of lines")
    min_alphabetic_word_ratio: Share | None = Field(default=0.8, description="share of runs")
    min_stop_words: Amount | None = Field(default=2, description="different stop words")

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        return check_order(self)


class GopherRepetitionRules(BaseModel, frozen=True, extra="forbid", strict=True):
    """Gopher, table A1. null switches a rule off."""

    max_duplicate_paragraph_ratio: Share | None = Field(default=0.30, description="share of paragraphs")
    max_duplicate_paragraph_char_ratio: Share | None = Field(default=0.20, description="share of characters")
    max_duplicate_line_ratio: Share | None = Field(default=0.30, description="share of lines")
    max_duplicate_line_char_ratio: Share | None = Field(default=0.20, description="share of characters")
    max_top_2gram_char_ratio: Amount | None = Field(default=0.20, description="share of characters")
    max_top_3gram_char_ratio: Amount | None = Field(default=0.18, description="share of characters")
    max_top_4gram_char_ratio: Amount | None = Field(default=0.16, description="share of characters")
    max_duplicate_5gram_char_ratio: Share | None = Field(default=0.15, description="share of characters")
    max_duplicate_6gram_char_ratio: Share | None = Field(default=0.14, description="share of characters")
    max_duplicate_7gram_char_ratio: Share | None = Field(default=0.13, description="share of characters")
    max_duplicate_8gram_char_ratio: Share | None = Field(default=0.12, description="share of characters")
    max_duplicate_9gram_char_ratio: Share | None = Field(default=0.11, description="share of characters")
    max_duplicate_10gram_char_ratio: Share | None = Field(default=0.10, description="share of characters")


class C4Rules(BaseModel, frozen=True, extra="forbid", strict=True):
    """C4, arXiv 1910.10683; its line rules are settings of the signals stage. null switches a rule off."""

    max_lorem_ipsums: Amount | None = Field(default=0, description="occurrences of the phrase")
    max_curly_brackets: Amount | None = Field(default=0, description="occurrences of {; null for code and mathematics")
    min_sentences: Amount | None = Field(default=5, description="sentences")


class FineWebRules(BaseModel, frozen=True, extra="forbid", strict=True):
    """FineWeb, arXiv 2406.17557, thresholds of its published code. null switches a rule off."""

    min_ended_line_ratio: Share | None = Field(default=0.12, description="share of lines")
    max_short_line_ratio: Share | None = Field(default=0.67, description="share of lines")
    max_repeated_line_char_ratio: Share | None = Field(default=0.01, description="share (0.1 in the paper)")
    max_newline_ratio: Amount | None = Field(default=0.3, description="newlines per word")


class RefinedWebRules(BaseModel, frozen=True, extra="forbid", strict=True):
    """RefinedWeb, arXiv 2306.01116; its line rules are signals.refinedweb_lines, and this one needs them."""

    max_edited_word_ratio: Share | None = Field(default=0.05, description="share of words that its line rules cut")


class CodeRules(BaseModel, frozen=True, extra="forbid", strict=True):
    """Source code: StarCoder's rules (arXiv 2305.06161; the first three also Codex's), letters as NeMo Curator.

    Off unless a source asks for them. null switches a rule off.
    """

    max_longest_line_chars: Amount | None = Field(default=1000, description="characters of the longest line")
    max_mean_line_chars: Amount | None = Field(default=100, description="characters of a line, on average")
    min_alphanumeric_ratio: Share | None = Field(default=0.25, description="share of characters")
    min_alphabetic_ratio: Share | None = Field(default=0.25, description="share of characters")
    max_generated_marks: Amount | None = Field(default=0, description="different marks of generated code")
    max_xml_declarations: Amount | None = Field(default=0, description="1: XML stays")
    min_lines: Amount | None = Field(default=None, description="lines (NeMo Curator: 10)")
    max_lines: Amount | None = Field(default=None, description="lines (NeMo Curator: 20,000)")

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        return check_order(self)


class QualityRules(BaseModel, frozen=True, extra="forbid", strict=True):
    """The trained quality classifier (section classifiers.quality). Off by default."""

    min_quality_score: Share | None = Field(default=None, description="lowest probability")


class ToxicityRules(BaseModel, frozen=True, extra="forbid", strict=True):
    """The toxicity classifier and the word lists (section classifiers.toxicity). Off by default."""

    max_toxicity_score: Share | None = Field(default=None, description="highest probability")
    max_listed_words: Amount | None = Field(default=None, description="occurrences of listed words")


class PerplexityRules(BaseModel, frozen=True, extra="forbid", strict=True):
    """The n-gram model (section classifiers.perplexity). Off by default."""

    max_perplexity: float | None = Field(default=None, gt=0, description="highest perplexity per word")


FAMILIES: dict[str, type[BaseModel]] = {
    "url": UrlRules,
    "language": LanguageRules,
    "gopher_quality": GopherQualityRules,
    "gopher_repetition": GopherRepetitionRules,
    "c4": C4Rules,
    "fineweb": FineWebRules,
    "refinedweb": RefinedWebRules,
    "code": CodeRules,
    "quality": QualityRules,
    "toxicity": ToxicityRules,
    "perplexity": PerplexityRules,
}


@dataclass(frozen=True)
class Rule:
    """One rule of a config: `reason` is its place in the config."""

    reason: str
    signal: str
    is_minimum: bool

    @property
    def quoted(self) -> tuple[str, ...]:
        """The text signal that names what this one counts, if there is one."""
        named = self.signal.removeprefix("num_")
        return (named,) if named != self.signal and named in SIGNAL_BY_NAME else ()

    def fails(self, values: NDArray[np.float64], threshold: float) -> NDArray[np.bool_]:
        """Which values break it; NaN (not applied) breaks none."""
        return values < threshold if self.is_minimum else values > threshold


def _rules() -> Iterator[Rule]:
    for family, model in FAMILIES.items():
        for field in model.model_fields:
            direction, _, measured = field.partition("_")
            if direction in ("min", "max"):
                signal = f"num_{measured}" if f"num_{measured}" in SIGNAL_BY_NAME else measured
                yield Rule(f"{family}.{field}", SIGNAL_BY_NAME[signal].name, direction == "min")


RULES = tuple(_rules())  # in the order in which they are judged


def _checked(text: str) -> str:
    parse_expression(text)
    return text


RuleName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
RuleText = Annotated[str, AfterValidator(_checked)]
EMPTY, ALL_CUT, LANGUAGE, OWN = "empty", "all_lines_cut", "language.keep", "rules."


class SelectConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """Document rules: families, of which null leaves one out, and expressions."""

    enabled: bool = Field(default=True, description="false: documents pass as they are, and nothing is cut")
    url: UrlRules | None = Field(default=UrlRules(), description="words and domains of the URL")
    language: LanguageRules | None = Field(default=LanguageRules(), description="language")
    gopher_quality: GopherQualityRules | None = Field(default=GopherQualityRules(), description="quality of prose")
    gopher_repetition: GopherRepetitionRules | None = Field(default=GopherRepetitionRules(), description="repetition")
    c4: C4Rules | None = Field(default=C4Rules(), description="C4's rules for documents")
    fineweb: FineWebRules | None = Field(default=FineWebRules(), description="shape of lines")
    refinedweb: RefinedWebRules | None = Field(default=RefinedWebRules(), description="too much cut from a document")
    code: CodeRules | None = Field(
        default=None, description="rules for source code; {}: as published", json_schema_extra={"neutral": None}
    )
    quality: QualityRules | None = Field(
        default=QualityRules(),
        description="the trained quality classifier",
        json_schema_extra={"neutral": {"min_quality_score": None}},
    )
    toxicity: ToxicityRules | None = Field(
        default=ToxicityRules(),
        description="toxicity classifier and word lists",
        json_schema_extra={"neutral": {"max_toxicity_score": None, "max_listed_words": None}},
    )
    perplexity: PerplexityRules | None = Field(
        default=PerplexityRules(),
        description="the trained n-gram model",
        json_schema_extra={"neutral": {"max_perplexity": None}},
    )
    rules: dict[RuleName, RuleText | None] = Field(
        default={},
        description='name -> expression that drops a document, e.g. weak: "num_words < 200 and hash_ratio > 0.05"; '
        "judged after the families, in the order of their names; null switches one off",
        json_schema_extra={"neutral": {}},
    )
    max_drop_ratio: float = Field(
        default=0.9, ge=0, le=1, description="stop when a source of 1,000 documents loses more; 1: never"
    )
    drop_lists: Several[DropListConfig] = Field(
        default=(),
        description="files that name documents to leave out, whatever the rules say; `basemill exclude` writes them",
        json_schema_extra={"neutral": []},
    )
    by_language: dict[str, dict[str, JsonValue]] = Field(
        default={},
        description="other values for documents in one language, laid over those of their source",
        json_schema_extra={"neutral": {}},
    )
    by_source: dict[str, dict[str, JsonValue]] = Field(default={}, description="other values for one source")

    @field_validator("rules")
    @classmethod
    def _in_order(cls, rules: dict[str, str | None]) -> dict[str, str | None]:
        return dict(sorted(rules.items()))

    @field_validator("by_language")
    @classmethod
    def _normalise(cls, by_language: dict[str, dict[str, JsonValue]]) -> dict[str, dict[str, JsonValue]]:
        normal: dict[str, str] = {}
        for code in by_language:
            if (same := normal.setdefault(check_language_code(code), code)) != code:
                raise ValueError(f"{same} and {code} are one language; write it once")
        return {code: by_language[given] for code, given in sorted(normal.items())}

    @model_validator(mode="after")
    def _check_overrides(self) -> "SelectConfig":
        # what holds for a source or for all of them, not for a document
        whole = ("enabled", "max_drop_ratio", "drop_lists", "by_source", "by_language")
        return check_overrides(check_overrides(self, "by_language", whole), "by_source", ("by_source", "drop_lists"))

    def for_language(self, code: str) -> "SelectConfig":
        """The config as it applies to documents in one language."""
        values = self.model_dump(mode="json") | {"by_language": {}}
        return SelectConfig.model_validate(merge(values, self.by_language.get(code, {})))

    @property
    def variants(self) -> Iterator["SelectConfig"]:
        """Itself, and as it applies to each source and language that has values of its own."""
        yield self
        for code in self.by_language:
            yield self.for_language(code)
        for source in self.by_source:
            yield from for_source(self, source).variants

    @property
    def reasons(self) -> list[str]:
        """Names of the rules that are on in any source or language, in the order in which they are judged."""
        found: set[str] = set()
        for own in (config for config in self.variants if config.enabled):
            found |= {EMPTY, ALL_CUT} | {rule.reason for rule in RULES if threshold_of(own, rule) is not None}
            found |= {LANGUAGE} if own.language and own.language.keep else set()
            found |= {OWN + name for name, text in own.rules.items() if text}
        return sorted(found, key=judging_order)

    @property
    def signals(self) -> set[str]:
        """The signals that its rules read, in any source or language."""
        enabled = [config for config in self.variants if config.enabled]
        of_families = {rule.signal for own in enabled for rule in RULES if threshold_of(own, rule) is not None}
        texts = {text for own in enabled for text in own.rules.values() if text}
        return of_families.union(*(parse_expression(text).signals for text in texts))


def threshold_of(config: SelectConfig, rule: Rule) -> float | None:
    """The threshold of a family's rule; None where it is off."""
    family, field = rule.reason.split(".")
    settings = getattr(config, family)
    return None if settings is None else getattr(settings, field)


def judging_order(reason: str) -> tuple[int, str]:
    """Sorts names of rules as they are judged."""
    return _PLACES.get(reason, len(_PLACES)), reason


_PLACES = {name: place for place, name in enumerate([EMPTY, ALL_CUT, LANGUAGE, *(rule.reason for rule in RULES)])}
