"""Rules name signals, reasons are a closed list, and a wrong rule or language is refused when the recipe is read."""

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tasks.config import for_source, resolved
from tasks.select.rules import FAMILIES, RULES, CodeRules, LanguageRules, Rule, SelectConfig
from tasks.signal_table import SIGNAL_SCHEMA


def test_every_rule_has_a_number_to_judge_and_a_reason_of_its_own() -> None:
    assert {str(SIGNAL_SCHEMA.field(rule.signal).type) for rule in RULES} == {"int64", "double"}
    assert len({rule.reason for rule in RULES}) == len(RULES)
    off_by_default = {
        "language": {"keep": ["en"], "min_language_score": 0.5},
        "code": {"min_lines": 3, "max_lines": 9},
        "quality": {"min_quality_score": 0.5},
        "toxicity": {"max_toxicity_score": 0.5, "max_listed_words": 9},
        "perplexity": {"max_perplexity": 1e4},
    }
    everything = SelectConfig.model_validate(off_by_default)
    assert everything.reasons == ["empty", "all_lines_cut", "language.keep", *(rule.reason for rule in RULES)]


def test_rules_are_judged_family_by_family() -> None:
    order = [list(FAMILIES).index(rule.reason.split(".")[0]) for rule in RULES]
    assert order == sorted(order)
    assert list(FAMILIES).index("gopher_quality") < list(FAMILIES).index("gopher_repetition")


def test_every_threshold_of_every_family_is_a_rule() -> None:
    fields = {f"{family}.{field}" for family, model in FAMILIES.items() for field in model.model_fields}
    assert fields - {rule.reason for rule in RULES} == {"language.keep"}
    assert all(
        hasattr(getattr(SelectConfig(code=CodeRules()), rule.reason.split(".")[0]), rule.reason.split(".")[1])
        for rule in RULES
    )


@pytest.mark.parametrize(
    ("name", "signal", "failing"),
    [
        ("gopher_quality.min_words", "num_words", [True, False, False, False]),
        ("fineweb.max_newline_ratio", "newline_ratio", [False, False, True, False]),
    ],
)
def test_equal_passes_and_not_applied_passes(name: str, signal: str, failing: list[bool]) -> None:
    rule = next(rule for rule in RULES if rule.reason == name)
    assert rule == Rule(name, signal, ".min_" in name)
    assert rule.fails(np.array([1, 2, 3, np.nan]), 2).tolist() == failing


def test_language_codes_are_normalised() -> None:
    assert LanguageRules(keep=("eng", "zh-Hant", "deu_Latn")).keep == ("en", "zh", "de")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gopher_quality": {"min_wrods": 1}}, r"gopher_quality\.min_wrods"),
        ({"gopher": {}}, "gopher"),
        ({"language": {"keep": ["xx"]}}, r"language\.keep[\s\S]*'xx' does not exist"),
        ({"language": {"keep": ["aa"]}}, "the language model does not know 'aa'"),
        ({"max_drop_ratio": 2}, "max_drop_ratio"),
        ({"by_source": {"web": {"c4": {"min_words": 1}}}}, r"by_source\.web\.c4\.min_words"),
        ({"by_source": {"web": {"language": {"keep": ["nope"]}}}}, r"by_source\.web\.language\.keep"),
        ({"rules": {"weak": "num_wrods < 3"}}, r"rules\.weak[\s\S]*no signal num_wrods; did you mean num_words"),
        ({"rules": {"Weak": "num_words < 3"}}, r"rules\.Weak"),
        ({"rules": {"weak": 3}}, r"rules\.weak"),
        (
            {"by_source": {"web": {"rules": {"weak": "language < 3"}}}},
            r"by_source\.web\.rules\.weak: language is a text",
        ),
        ({"by_language": {"xx": {}}}, r"by_language[\s\S]*'xx' does not exist"),
        ({"by_language": {"aa": {}}}, "the language model does not know 'aa'"),
        ({"by_language": {"de": {}, "deu": {}}}, "deu and de are one language|de and deu are one language"),
        ({"by_language": {"de": {"c4": {"min_words": 1}}}}, r"by_language\.de\.c4\.min_words: unknown key"),
        ({"by_language": {"de": {"enabled": False}}}, r"by_language\.de\.enabled: cannot be set in by_language"),
        ({"by_language": {"de": {"by_language": {}}}}, r"by_language\.de\.by_language: overrides cannot be nested"),
        (
            {"by_source": {"web": {"by_language": {"de": {"rules": {"a": "1 < 2"}}}}}},
            r"by_source\.web\.by_language\.de\.rules\.a: names no signal",
        ),
        ({"by_source": {"web": {"by_language": {"deu": {}}}}, "by_language": {"de": {}}}, "are one language"),
    ],
)
def test_wrong_rules_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SelectConfig.model_validate(settings)


def test_a_language_has_rules_of_its_own_within_its_source() -> None:
    config = SelectConfig.model_validate(
        {
            "rules": {"short": "num_words < 9", "odd": "hash_ratio > 0.5"},
            "by_language": {"deu": {"gopher_quality": {"min_words": 20}, "rules": {"odd": None}}},
            "by_source": {"web": {"by_language": {"de": {"gopher_quality": {"min_stop_words": None}}}}},
        }
    )
    german = for_source(config, "web").for_language("de")
    assert german.gopher_quality is not None
    assert (german.gopher_quality.min_words, german.gopher_quality.min_stop_words) == (20, None)
    assert german.rules == {"odd": None, "short": "num_words < 9"}
    assert for_source(config, "web").for_language("en").gopher_quality == SelectConfig().gopher_quality
    assert [name for name in german.reasons if name.startswith("rules.")] == ["rules.short"] == german.reasons[-1:]
    assert "rules.odd" in config.reasons


def test_new_options_at_rest_leave_keys_as_they_were() -> None:
    """Beside the code's digest, a recipe that uses neither option has the identity that it had before they existed."""
    assert not {"rules", "by_language"} & resolved(SelectConfig()).keys()
    by_name: dict[str, str | None] = {"a": "num_words < 3", "b": "num_words < 4"}
    backwards = dict(reversed(by_name.items()))
    assert list(SelectConfig(rules=by_name).rules) == list(SelectConfig(rules=backwards).rules)
