"""Verdicts over plain tables of signals: order of rules, rows of several languages, what is quoted."""

from typing import Any

import numpy as np
import pyarrow as pa

from tasks.select.rules import SelectConfig
from tasks.select.verdicts import Verdict, first_failing, verdicts
from tasks.signal_table import SIGNAL_SCHEMA

OFF = {"gopher_quality": None, "gopher_repetition": None, "c4": None, "fineweb": None, "refinedweb": None, "url": None}


def table_of(*rows: dict[str, Any]) -> pa.Table:
    usual = {"num_visible_chars": 9, "cut_spans": []}
    return pa.Table.from_pylist([usual | row for row in rows], schema=SIGNAL_SCHEMA)


def judged(table: pa.Table, **settings: Any) -> list[Verdict]:
    return verdicts(table, SelectConfig.model_validate(OFF | settings))


def reasons(table: pa.Table, **settings: Any) -> list[str | None]:
    found = judged(table, **settings)
    return [found[i].reason if i >= 0 else None for i in first_failing(found, table.num_rows)]


def test_the_first_rule_that_fails_is_the_reason() -> None:
    table = table_of(
        {"num_visible_chars": 0, "num_words": 0},
        {"num_visible_chars": 0, "num_words": 0, "cut_spans": [0, 4]},
        {"num_words": 5, "hash_ratio": 0.9},
        {"num_words": 50, "hash_ratio": 0.9},
        {"num_words": 50, "hash_ratio": 0.0},
    )
    rules = {"b": "num_words < 9", "a": "hash_ratio > 0.5"}
    assert reasons(table, rules=rules) == ["empty", "all_lines_cut", "rules.a", "rules.a", None]
    family = {"gopher_quality": {"max_hash_ratio": 1}}
    assert reasons(table, rules=rules, **family)[2] == "gopher_quality.min_words"


def test_rows_of_a_language_are_judged_by_its_values_wherever_they_stand() -> None:
    table = table_of(*({"language": code, "num_words": 10} for code in ("de", "en", None, "de", "fr")))
    settings = {"rules": {"a": "num_words > 20"}, "by_language": {"de": {"rules": {"a": "num_words > 5"}}}}
    [verdict] = judged(table, **settings)[2:]
    assert verdict.failing.tolist() == [True, False, False, True, False]
    assert verdict.thresholds.tolist() == [5, 20, 20, 5, 20]
    assert verdict.values.tolist() == [10] * 5


def test_a_rule_of_one_language_is_no_rule_for_the_others() -> None:
    table = table_of({"language": "en", "num_words": 1}, {"language": "de", "num_words": None})
    by_language = {"de": {"rules": {"a": "num_words < 5"}}}
    [verdict] = judged(table, by_language=by_language)[2:]
    assert verdict.failing.tolist() == [False, False]
    assert verdict.not_applied.tolist() == [False, True]
    assert np.isnan(verdict.thresholds[0])
    assert [v.reason for v in judged(table.slice(0, 1), by_language=by_language)] == ["empty", "all_lines_cut"]


def test_longer_rules_quote_what_they_read() -> None:
    table = table_of({"language": "fr", "num_words": 3, "num_chars": 9})
    language, rule = judged(table, language={"keep": ["de"]}, rules={"a": "num_words < num_chars"})[2:]
    assert (language.reason, language.quoted, language.failing.tolist()) == ("language.keep", ("language",), [True])
    assert (rule.reason, rule.quoted) == ("rules.a", ("num_words", "num_chars"))
    assert np.isnan(rule.thresholds).all()


def test_no_rows_have_no_verdict_to_fail() -> None:
    assert first_failing(judged(table_of()), 0).tolist() == []
