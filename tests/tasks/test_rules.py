"""Rules name signals, reasons are a closed list, and a wrong rule or language is refused when the recipe is read."""

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tasks.rules import FAMILIES, RULES, LanguageRules, Rule
from tasks.select import REASONS, SelectConfig
from tasks.signal_table import SIGNAL_SCHEMA


def test_every_rule_has_a_number_to_judge_and_a_reason_of_its_own() -> None:
    assert {str(SIGNAL_SCHEMA.field(rule.signal).type) for rule in RULES} == {"int64", "double"}
    assert len({rule.reason for rule in RULES}) == len(RULES)
    assert {rule.reason for rule in RULES} | {"empty", "all_lines_cut", "language.keep", "line_rules"} == REASONS


def test_rules_are_judged_family_by_family() -> None:
    order = [list(FAMILIES).index(rule.reason.split(".")[0]) for rule in RULES]
    assert order == sorted(order)
    assert list(FAMILIES).index("gopher_quality") < list(FAMILIES).index("gopher_repetition")


def test_every_threshold_of_every_family_is_a_rule() -> None:
    fields = {f"{family}.{field}" for family, model in FAMILIES.items() for field in model.model_fields}
    assert fields - {rule.reason for rule in RULES} == {"language.keep"}
    assert all(hasattr(getattr(SelectConfig(), rule.reason.split(".")[0]), rule.reason.split(".")[1]) for rule in RULES)


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
    ],
)
def test_wrong_rules_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SelectConfig.model_validate(settings)
