"""Overrides by source, canonical forms, neutral fields."""

import math
from typing import ClassVar, Self

import pytest
from prefect.utilities.schema_tools.validation import validate
from pydantic import BaseModel, Field, JsonValue, ValidationError, model_validator

from tasks.config import canonical_json, check_by_source, fingerprint_of, for_source, key_schema, merge, resolved
from tasks.errors import ConfigError


class Rule(BaseModel, frozen=True, extra="forbid"):
    limit: int = 1
    new: bool = Field(default=False, json_schema_extra={"neutral": False})


class StageConfig(BaseModel, frozen=True, extra="forbid"):
    enabled: bool = True
    rule: Rule = Rule()
    words: tuple[str, ...] = ("a", "b")
    rules: dict[str, Rule] = Field(default={})
    by_source: dict[str, dict[str, JsonValue]] = Field(default={})

    @model_validator(mode="after")
    def _check(self) -> Self:
        return check_by_source(self)


def test_overrides_of_a_source_are_merged_key_by_key() -> None:
    config = StageConfig(rule=Rule(limit=5), by_source={"code": {"rule": {"new": True}, "words": ["c"]}})
    code = for_source(config, "code")
    assert code.rule == Rule(limit=5, new=True)
    assert code.words == ("c",)
    assert code.by_source == {}
    assert for_source(config, "web") == StageConfig(rule=Rule(limit=5))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ({"rule": {"limt": 3}}, r"by_source\.code\.rule\.limt"),
        ({"enabled": "perhaps"}, r"by_source\.code\.enabled"),
        ({"by_source": {}}, "cannot be nested"),
    ],
)
def test_a_wrong_override_is_found_when_the_recipe_is_read(override: dict[str, JsonValue], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        StageConfig(by_source={"code": override})


def test_neutral_values_stay_out_and_others_stay_in() -> None:
    assert resolved(StageConfig())["rule"] == {"limit": 1}
    assert resolved(StageConfig(rule=Rule(new=True)))["rule"] == {"limit": 1, "new": True}
    assert resolved(StageConfig(rules={"x": Rule()}))["rules"] == {"x": {"limit": 1}}
    assert resolved(None) == {}


def test_merge_replaces_lists_and_scalars() -> None:
    assert merge({"a": {"b": 1, "c": [1]}}, {"a": {"c": [2]}, "d": 3}) == {"a": {"b": 1, "c": [2]}, "d": 3}


def test_canonical_json_has_one_form() -> None:
    assert canonical_json({"b": (1, 2.5), "a": None}) == '{"a":null,"b":[1,2.5]}'
    assert fingerprint_of({"a": 1, "b": 2}) == fingerprint_of({"b": 2, "a": 1})
    assert len(fingerprint_of("x")) == 64


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": {"b": math.nan}}, r"a\.b: nan"),
        ({"a": [1, math.inf]}, r"a\[1\]: inf"),
        ({"a": {1, 2}}, "a: set"),
        ({"f": print}, "f: builtin_function_or_method"),
        ({"a": object()}, "a: object"),
        ({1: "x"}, "key 1 is not text"),
    ],
)
def test_a_value_without_canonical_form_is_an_error_with_its_path(value: object, path: str) -> None:
    with pytest.raises(ConfigError, match=path):
        canonical_json(value)


class Recipe(BaseModel):
    SHORT_KEYS: ClassVar[tuple[str, ...]] = ("size",)
    stages: dict[str, StageConfig] = {}
    pairs: tuple[Rule, ...] | None = None
    after: str | Rule = ""


@pytest.mark.parametrize(
    ("values", "unknown"),
    [
        ({"size": 1, "stages": {"a": {"rule": {"limit": "short forms pass"}, "words": 5}}}, None),
        ({"pairs": {"0": 5}, "after": "x"}, None),  # what models read otherwise is not judged
        ({"pairs": [{"limit": 1}], "after": {"new": True}}, None),
        ({"stages": {"a": {"by_source": {"web": {"rule": None, "words": []}}}}}, None),
        ({"stages": {"a": {"by_source": {"web": {"rule": {"limmit": 1}}}}}}, "limmit"),
        ({"stages": {"a": {"by_source": {"web": {"by_source": {}}}}}}, "by_source"),
        ({"sizes": 1}, "sizes"),
        ({"stages": {"a": {"rules": {"b": {"limmit": 1}}}}}, "limmit"),
        ({"pairs": [{"limit": 1}, {"nwe": 1}]}, "nwe"),
        ({"after": {"limits": 1}}, "limits"),
    ],
)
def test_a_schema_of_keys_names_those_that_no_model_has(values: dict[str, JsonValue], unknown: str | None) -> None:
    errors = validate(values, key_schema(Recipe))
    assert [error.message.split("'")[1] for error in errors] == ([unknown] if unknown else [])
