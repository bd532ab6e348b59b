"""Every value of a recipe has a type and, where it is a number, a range; what has no sense is refused."""

import json
import re
from collections.abc import Iterator
from typing import Annotated, Any, get_args

import pytest
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from model.job import Settings
from tasks.config import PATTERNS, merge, resolved
from tasks.errors import ConfigError
from tasks.recipe import RECIPES_FOLDER, Recipe, parse_override
from tasks.select.rules import FAMILIES, RULES
from tasks.signal_table import SIGNAL_BY_NAME

ANY_NUMBER = {  # fields that any number suits, and why
    "SourceConfig.priority": "only the order counts",
    "ExactDedupConfig.priorities": "only the order counts",
    "NearDedupConfig.priorities": "only the order counts",
    "LabelledConfig.positive": "labels of somebody else's set",
    "BucketsConfig.edges": "the signal's own range, by a validator",
}
STRICT = ConfigDict(strict=True)
LOWER = {"minimum", "exclusiveMinimum"}
RECIPE: dict[str, Any] = {
    "name": "small",
    "ingest": {"sources": {"web": {"base": "/data/web", "namespaces": [0]}}},
    "select": {"language": {"keep": ["en"]}},
    "vocabulary": {"size": 300},
    "model": {"size": "tiny"},
    "train": {
        "optimizer": {"betas": [0.9, 0.95]},
        "stability": {"margin_steps": [5, 10]},
        "phases": [
            {
                "name": "main", "tokens": 8192, "weights": {"web": 1}, "sequence_length": 64, "batch": 4,
                "schedule": {"lr": 3e-3},
            }
        ]
    },
}  # fmt: skip


def models(root: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """The model and every one inside it."""

    def inside(annotation: Any) -> Iterator[type[BaseModel]]:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from models(annotation)
        for argument in get_args(annotation):
            yield from inside(argument)

    yield root
    for field in root.model_fields.values():
        yield from inside(field.annotation)


def numbers(schema: Any) -> Iterator[dict[str, Any]]:
    """The parts of a field's JSON schema that are numbers."""
    if isinstance(schema, dict):
        if schema.get("type") in ("integer", "number"):
            yield schema
        for key, inner in schema.items():
            if key not in ("default", "$defs"):
                yield from numbers(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from numbers(inner)


MODELS = sorted({*models(Recipe), *models(Settings)}, key=lambda model: model.__name__)
NUMBERS = [
    (f"{model.__name__}.{name}", number)
    for model in MODELS
    for name, field in model.model_json_schema().get("properties", {}).items()
    for number in numbers(field)
]


def test_the_walk_finds_what_it_should() -> None:
    found = {name for name, _ in NUMBERS}
    assert {"CodeRules.max_lines", "PhaseConfig.weights", "StabilityConfig.margin_steps", "Settings.ranks"} <= found
    assert found >= ANY_NUMBER.keys()
    assert len(found) > 130


@pytest.mark.parametrize(("name", "number"), NUMBERS, ids=[name for name, _ in NUMBERS])
def test_every_number_has_bounds(name: str, number: dict[str, Any]) -> None:
    """A new field that may be anything goes into ANY_NUMBER with a reason."""
    assert bool(LOWER & number.keys()) is (name not in ANY_NUMBER)
    if name.endswith("_ratio") and name not in UNBOUNDED_RATIOS:
        assert number.get("maximum", number.get("exclusiveMaximum")) == 1


UNBOUNDED_RATIOS = {
    f"{FAMILIES[family].__name__}.{field}"
    for family, field, signal in ((*rule.reason.split("."), rule.signal) for rule in RULES)
    if SIGNAL_BY_NAME[signal].high is None
}  # such as newlines per word


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.reason)
def test_a_threshold_lies_where_its_signal_lies(rule: Any) -> None:
    family, field = rule.reason.split(".")
    [number] = numbers(FAMILIES[family].model_json_schema()["properties"][field])
    signal = SIGNAL_BY_NAME[rule.signal]
    assert number.get("minimum", number.get("exclusiveMinimum")) == signal.low
    assert number.get("maximum") == signal.high


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_types_are_strict_and_lists_stand_for_tuples(model: type[BaseModel]) -> None:
    assert model.model_config.get("strict") is True
    assert model.model_config.get("extra") == "forbid"
    for name, field in model.model_fields.items():
        if "tuple[" in str(field.annotation):
            given = [] if "dict[" not in str(field.annotation) else {"email": ["x"]}
            adapter: TypeAdapter[Any] = TypeAdapter(Annotated[field.annotation, field], config=STRICT)  # type: ignore[arg-type]
            assert "tuple_type" not in faults(adapter, given), name


def faults(adapter: TypeAdapter[Any], given: object) -> set[str]:
    try:
        adapter.validate_python(given)
    except ValidationError as error:
        return {fault["type"] for fault in error.errors()}
    return set()


SENSELESS = {  # override -> what is said of its key
    "select.code.max_lines=-5": "greater than or equal to 0 (got -5)",
    "select.fineweb.max_short_line_ratio=1.32": "less than or equal to 1 (got 1.32)",
    "select.by_source.web.c4.min_sentences=-1": "greater than or equal to 0 (got -1)",
    "select.by_language.de.c4.min_sentences=-1": "greater than or equal to 0 (got -1)",
    "select.c4.min_sentences=.nan": "greater than or equal to 0 (got nan)",
    "vocabulary.sample_weights.web=-1": "greater than or equal to 0 (got -1)",
    "train.optimizer.betas.1=1": "less than 1 (got 1)",
    "train.stability.margin_steps.0=-1": "greater than or equal to 0 (got -1)",
    "ingest.part_bytes=1": "greater than or equal to 1024 (got 1)",
    "ingest.sources.web.namespaces.0=-1": "greater than or equal to 0 (got -1)",
    "ingest.sources.web.max_record_bytes=9223372036854775807": "less than or equal to 281474976710656",
    "ingest.sources.web.limits.max_attributes=4611686018427387904": "less than or equal to 281474976710656",
}
MISTYPED = {
    "train.phases.0.tokens=true": "a valid integer (got true)",
    "train.phases.0.tokens='8192'": "a valid integer (got '8192')",
    "train.phases.0.weights.web=true": "a valid number (got true)",
    "train.phases.0.schedule.lr='3e-3'": "a valid number (got '3e-3')",
    "train.phases.0.name=5": "text (in quotes, where YAML reads something else) (got 5)",
    "train.seed=no": "a valid integer (got false)",
    "dedup_exact.by_url=1": "true or false (got 1)",
    "dedup_exact.by_url='yes'": "true or false (got 'yes')",
    "select.by_source.web.enabled=0": "true or false (got 0)",
    "select.c4.min_sentences=true": "a valid number (got true)",
    "select.language.keep.0=no": "text (in quotes, where YAML reads something else) (got false)",
    "select.language.keep=en": "a list (got 'en')",
    "select.c4=3": "a mapping (got 3)",
    "select.rules.weak=5": "text (in quotes, where YAML reads something else) (got 5)",
    "model.num_layers=2.5": "a valid integer (got 2.5)",
}
TOGETHER = {  # values of which each alone would do
    "select.gopher_quality.max_words=5": "select.gopher_quality: min_words 50 is above max_words 5, so that nothing",
    "select.gopher_quality.max_mean_word_chars=2": "min_mean_word_chars 3 is above max_mean_word_chars 2",
    "select.code={min_lines: 9, max_lines: 8}": "select.code: min_lines 9 is above max_lines 8",
    "select.c4.min_sentences=.inf": "select.c4.min_sentences: inf",
    "train.phases.0.batch={0: 4, 4096: '8'}": "train.phases[0].batch: '8' is no whole number, 0 or more",
    "train.phases.0.batch={0: 4, 9000: 8}": "train.phases[0].batch: batch of 8 rows from 9000 tokens on is never "
    "reached: the phase has 8192; begin it at 8191 at most",
    "train.phases.0={sequence_length: {0: 32, 4096: 64}, batch: {0: 4, 9000: 8}}": "train.phases[0]: batch of 8 rows",
    "train.stability.max_bad_steps=10": "train.stability: max_bad_steps 10 is never exceeded within recent_steps 10",
    "train.stability.recent_steps=3": "recent_steps 3, so that training could not roll back; give at most 2",
    "train.optimizer.betas=[0.9, 0.95, 0.99]": "train.optimizer.betas: List should have at most 2 items",
    "train.phases.0.batch=true": "train.phases[0].batch: True is no whole number, 0 or more (got true)",
    "mix.buckets={signal: language_score, edges: [1.5]}": "edges [1.5]: language_score is 0 to 1, so that a bucket",
    "mix.buckets={signal: num_words, edges: [0, 9]}": "edges [0.0, 9.0]: num_words is 0 or more, so that a bucket",
}


def refusal(override: str) -> str:
    with pytest.raises(ConfigError) as caught:
        Recipe.parse(merge(RECIPE, parse_override(override)))
    return str(caught.value)


@pytest.mark.parametrize(("override", "wanted"), [*SENSELESS.items(), *MISTYPED.items()])
def test_a_value_without_sense_or_of_another_type_is_refused(override: str, wanted: str) -> None:
    path = re.sub(r"\.(\d)", r"[\1]", override.partition("=")[0])
    assert refusal(override).startswith(f"{path}: Input should be {wanted}")


@pytest.mark.parametrize(("override", "said"), TOGETHER.items())
def test_values_that_contradict_each_other_are_refused(override: str, said: str) -> None:
    assert said in refusal(override)


def test_a_whole_number_may_stand_for_any_number() -> None:
    recipe = Recipe.parse(merge(RECIPE, parse_override("train={max_epochs: 3, phases: {'0': {weights: {web: 2}}}}")))
    assert repr(recipe.train.phases[0].weights) == "{'web': 2.0}"
    assert isinstance(recipe.train.max_epochs, float)


def test_a_resolved_recipe_is_read_again_as_it_is() -> None:
    """Runs keep it as JSON, where tuples are lists."""
    recipe = Recipe.load(RECIPES_FOLDER / "demo.yaml")
    stored = json.loads(json.dumps(recipe.model_dump(mode="json")))
    assert Recipe.parse(stored) == recipe
    assert resolved(Recipe.parse(stored)) == resolved(recipe)


def test_what_a_text_must_match_is_said_in_words() -> None:
    schemas = json.dumps([model.model_json_schema() for model in MODELS])
    found = re.findall(r'"pattern": ("[^"]*")|"patternProperties": {("[^"]*")', schemas)
    assert {json.loads(value or name) for value, name in found} == PATTERNS.keys()
