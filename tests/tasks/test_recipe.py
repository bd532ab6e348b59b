"""Recipes: what is read, what is refused and in which words, places, overrides, the order of keys."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.errors import ConfigError
from tasks.recipe import RECIPES_FOLDER, Recipe, parse_override, read_yaml, recipe_path

PHASE = {
    "name": "main", "tokens": 8192, "weights": {"web": 2, "code": 1}, "sequence_length": 64, "batch": 4,
    "schedule": {"lr": 3e-3},
}  # fmt: skip


def values(**sections: Any) -> dict[str, Any]:
    """A small recipe with these sections laid over it."""
    return {
        "name": "small",
        "ingest": {"sources": {"web": {"base": "/data/web"}, "code": {"base": "/data/code"}}},
        "vocabulary": {"size": 300},
        "model": {"size": "tiny"},
        "train": {"phases": [PHASE]},
    } | sections


def phases(*changes: dict[str, Any]) -> dict[str, Any]:
    """A train section with a phase for each mapping laid over PHASE."""
    return {"phases": [PHASE | change for change in changes]}


WRONG: list[tuple[dict[str, Any], list[str]]] = [  # sections, what the message must hold: path, value, what is allowed
    (
        {"vocabulary": {"size": 2048}},
        ["model.vocab_size 512 is smaller than vocabulary.size 2048; write model.vocab_size: 2048, or a "],
    ),
    # keys
    ({"tokenizer": {}}, ["tokenizer: unknown key", "allowed here: classifiers, decontaminate, ", "vocabulary"]),
    ({"vocabulary": {"size": 300, "siez": 1}}, ["vocabulary.siez: unknown key", "did you mean 'size'?"]),
    ({"select": {"gopher_qualty": {}}}, ["select.gopher_qualty: unknown key", "did you mean 'gopher_quality'?"]),
    ({"select": {"fineweb": {"max_lines": 3}}}, ["select.fineweb.max_lines: unknown key", "max_newline_ratio"]),
    (
        {"select": {"by_source": {"code": {"gopher_quality": {"min_wrods": 1}}}}},
        ["select.by_source.code.gopher_quality.min_wrods: unknown key", "did you mean 'min_words'?"],
    ),
    ({"signals": {"by_source": {"web": 3}}}, ["signals.by_source.web: Input should be a mapping (got 3)"]),
    ({"ingest": {"sources": {"web": {"bsae": "/"}}}}, ["ingest.sources.web.base: this key is required", "did you"]),
    ({"train": phases({"sequence_lenght": 8})}, ["train.phases[0].sequence_lenght", "did you mean 'sequence_length'?"]),
    ({"train": phases({"batch": [{"from_token": 0}]})}, ["train.phases[0].batch[0].from_token: ", "from_tokens"]),
    ({"select": {1: 2}}, ["select[1]", "strings"]),
    ({"select": None}, ["select: Input should be a mapping (got null)"]),
    ({"train": {}}, ["train.phases: this key is required"]),
    ({"train": {"phases": []}}, ["train.phases", "at least 1"]),
    # values
    ({"name": "My Recipe"}, ["name: Input should be a name of lower-case letters, digits", "(got 'My Recipe')"]),
    ({"vocabulary": {"size": 255}}, ["vocabulary: size 255", "at least 259"]),
    ({"vocabulary": {"size": "many"}}, ["vocabulary.size", "integer", "'many'"]),
    ({"model": {"size": "tiny", "num_heads": 5}}, ["model: width 64 must be divisible by num_heads 5"]),
    (
        {"model": {"size": "tiny", "positions": "learned", "max_positions": 32}, "export": {"enabled": False}},
        ["model.max_positions 32 is smaller than a row of 64 tokens (train.phases[0].sequence_length)"],
    ),
    (
        {"model": {"size": "tiny", "positions": "sinusoidal"}},
        ["model can't be exported", "the nearest, llama, needs positions = rope, not sinusoidal", "export.enabled"],
    ),
    (
        {"model": {"size": "tiny", "experts": {"count": 4, "active": 2, "bias_rate": 1e-3}}},
        ["model can't be exported", "the nearest, mixtral, needs experts.bias_rate = 0.0, not 0.001"],
    ),
    (
        {"model": {"size": "tiny", "positions": "learned", "norm": "layer", "activation": "gelu", "biases": True}},
        ["the nearest, gpt2, needs num_kv_heads = num_heads, not 2"],
    ),
    ({"model": {"size": "tiny", "dropout": -0.1}}, ["model.dropout", "greater than or equal to 0", "-0.1"]),
    ({"vocabulary": {"size": 5000}}, ["model.vocab_size 512", "vocabulary.size 5000"]),
    ({"train": phases({"sequence_length": 0})}, ["train.phases[0].sequence_length", "equal to 2", "(got 0)"]),
    ({"train": phases({"batch": 0})}, ["train.phases[0].batch[0].rows", "greater than or equal to 1", "(got 0)"]),
    ({"train": phases({"batch": {5: 4}})}, ["train.phases[0].batch", "from_tokens 0"]),
    ({"train": phases({"tokens": 10**40})}, ["train.phases[0].tokens", "too large"]),
    ({"train": phases({"schedule": {"lr": float("inf")}})}, ["train.phases[0].schedule.lr", "inf", "1000"]),
    (
        {"train": phases({"schedule": {"lr": 1e-3, "warmup_tokens": 9000}})},
        ["train.phases[0]", "warmup_tokens 9000", "exceeds tokens 8192"],
    ),
    ({"train": phases({}, {})}, ["train.phases[1].name 'main' is used twice"]),
    ({"train": phases({"after": "warm"})}, ["train.phases[0].after 'warm'", "earlier phase"]),
    ({"train": phases({"after": {"run": "20260101", "stp": 5}})}, ["phases[0].after.stp: unknown key", "'step'"]),
    (
        {"train": phases({"rope_base": 5e5}), "model": {"size": "tiny", "positions": "sinusoidal"}},
        ["train.phases[0].rope_base 500000: model.positions is 'sinusoidal'"],
    ),
    ({"train": phases({"after": {"step": 5}})}, ["phases[0].after.run: this key is required"]),
    ({"train": phases({"after": 5})}, ["phases[0].after:", "got 5"]),
    ({"model": {"size": "9b"}}, ["model: size '9b'", "tiny, demo, 100m"]),
    ({"model": {"size": "tiny", "num_heads": 7}}, ["model: width 64", "divisible by num_heads 7"]),
    ({"model": {"size": "tiny", "num_heads": 0}}, ["model.num_heads", "greater than or equal to 1", "(got 0)"]),
    ({"model": {"size": "tiny", "num_kv_heads": 3}}, ["num_heads 4", "divisible by num_kv_heads 3"]),
    ({"select": {"language": {"keep": ["xx"]}}}, ["select.language.keep", "'xx' does not exist", "such as en, de"]),
    (
        {"select": {"by_source": {"web": {"language": {"keep": ["xx"]}}}}},
        ["select.by_source.web.language.keep", "'xx' does not exist"],
    ),
    ({"redact": {"kinds": ["zip"]}}, ["redact.kinds[0]", "'email', 'ipv4'", "'zip'"]),
    ({"ingest": {"sources": {}}}, ["ingest.sources", "at least 1"]),
    ({"ingest": {"sources": {"..": {"base": "/"}}}}, ['ingest.sources[".."]: Input should be a name of letters']),
    ({"ingest": {"sources": {"a/b": {"base": "/"}}}}, ['ingest.sources["a/b"]: ', "(got 'a/b')"]),
    ({"ingest": {"sources": {"": {"base": "/"}}}}, ['ingest.sources[""]: ', "(got '')"]),
    ({"ingest": {"sources": {"ü": {"base": "/"}}}}, ['ingest.sources["ü"]: ', "(got 'ü')"]),
    ({"ingest": {"sources": {"a\n\x9b": {"base": "/"}}}}, ['ingest.sources["a\\n\\u009b"]: ', "(got 'a\\n\\x9b')"]),
    ({"ingest": {"sources": {"v1.5": {"bsae": "/"}}}}, ["ingest.sources.v1.5.bsae: unknown key"]),
    # weights and sources
    ({"train": phases({"weights": {"web": 0, "code": 0}})}, ["train.phases[0].weights", "0.0", "above 0"]),
    ({"train": phases({"weights": {}})}, ["train.phases[0].weights", "{} sum to nothing"]),
    ({"train": phases({"weights": {"web": -1, "code": 2}})}, ["train.phases[0].weights.web", "equal to 0 (got -1)"]),
    ({"train": phases({"weights": {"web": float("nan")}})}, ["train.phases[0].weights.web", "finite", "nan"]),
    ({"select": {"quality": {"min_quality_score": 0.3}}}, ["select: nothing measures signal quality_score"]),
    ({"select": {"by_source": {"web": {"by_language": {"de": {"rules": {"a": "perplexity > 9"}}}}}}},
     ["nothing measures signal perplexity"]),
    ({"select": {"rules": {"a": "num_listed_words > 2"}}}, ["configure classifiers.toxicity.word_lists"]),
    ({"mix": {"by_source": {"web": {"buckets": {"signal": "quality_score", "edges": [0.5]}}}},
      "train": phases({"weights": {"web/1": 1}})}, ["mix.buckets: nothing measures signal quality_score"]),
    ({"mix": {"by_source": {"web": {"buckets": {"signal": "cluster_size", "edges": [0, 4]}}}}},
     ["mix.by_source.web.buckets: edges [0.0, 4.0]", "1 is the smallest"]),
    ({"mix": {"by_source": {"web": {"buckets": {"signal": "cluster_size", "edges": [2]}}}},
      "dedup_near": {"by_source": {"web": {"enabled": False}}}, "train": phases({"weights": {"web/1": 1}})},
     ["mix.buckets: cluster_size of source web needs dedup_near"]),
    ({"mix": {"by_source": {"web": {"buckets": {"signal": "cluster_size", "edges": [2]}}}}},
     ["'web' does not exist; mix gives source web: web/0, web/1"]),
    ({"train": phases({"weights": {"web/0": 1}})}, ["train.phases[0].weights", "'web/0' does not exist", "web: web"]),
    ({"mix": {"buckets": {"signal": "num_words", "edges": [9]}}},
     ["train.phases[0].weights", "'code' does not exist", "source code: code/0, code/1, code/unmeasured"]),
    ({"train": phases({"weights": {"wbe": 1}})}, ["train.phases[0].weights", "'wbe'", "ingest.sources (code, web)"]),
    ({"train": phases({"weights": {"web": 1e308, "code": 1e308}})}, ["train.phases[0].weights", "more than a float"]),
    ({"train": phases({"schedule": {"lr": 1e308}})}, ["train.phases[0].schedule.lr", "less than or equal to 1000"]),
    ({"train": phases({"tokens": "many", "sequence_length": {0: 8}})}, ["phases[0]: 'many' is no whole number"]),
    ({"evaluate": {"tasks": {"foo": {"path": "/x"}}}}, ["evaluate.tasks.foo: Input should be 'arc_easy'"]),
    (
        {"evaluate": {"tasks": {"piqa": {"path": "/x", "evaluation_set": "pika"}}}},
        ["evaluate.tasks.piqa.evaluation_set: 'pika' is not in decontaminate.evaluation_sets (which is empty)"],
    ),
    ({"ingest": {"sources": {"web": {"base": "/a\0b"}}}}, ["ingest.sources.web.base: '/a\\x00b' holds NUL"]),
    ({"signals": {"cut_phrases": ["a", "\ud800"]}}, ["signals.cut_phrases[1]: '\\ud800' holds NUL or half"]),
    ({"vocabulary": {"size": 300, "sample_weights": {"web": 0}}}, ["vocabulary: sample_weights sum to nothing"]),
    ({"vocabulary": {"size": 300, "sample_weights": {"wbe": 1}}}, ["vocabulary.sample_weights", "'wbe'", "code, web"]),
    ({"redact": {"by_source": {"wbe": {}}}}, ["redact.by_source", "'wbe'", "code, web"]),
    ({"dedup_near": {"priorities": {"wbe": 3}}}, ["dedup_near.priorities", "'wbe'", "code, web"]),
]  # fmt: skip


@pytest.mark.parametrize(("sections", "said"), WRONG, ids=lambda case: json.dumps(case)[:60])
def test_a_wrong_recipe_is_refused_with_path_value_and_what_is_allowed(sections: Any, said: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        Recipe.parse(values(**sections))
    for words in said:
        assert words in str(raised.value)


def test_every_fault_has_a_line() -> None:
    with pytest.raises(ConfigError) as raised:
        Recipe.parse(values(nonsense=1, vocabulary={"size": "x"}, train=phases({"sequence_length": 0})))
    assert [line.partition(":")[0] for line in str(raised.value).splitlines()] == [
        "vocabulary.size", "train.phases[0].sequence_length", "nonsense",
    ]  # fmt: skip


@pytest.mark.parametrize("given", [None, [], "text", 3, {}])
def test_what_is_no_recipe_at_all(given: object) -> None:
    with pytest.raises(ConfigError):
        Recipe.parse(given)


ALIASES = b"a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + b"".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n".encode() for n in range(1, 9)
)  # 9 to the 9th values
WIDE = f"a: &a {{{', '.join(f'k{n}: 1' for n in range(1000))}}}\n"
MERGES = f"{WIDE}b: {{<<: [{', '.join(['*a'] * 101)}]}}\n".encode()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"name: [a\n", "line 1, column 7"),
        (b"name: x\n\tmodel: 3\n", "line 2, column 1"),
        (b"name: a\nname: b\n", r"bad\.yaml: key 'name' is given twice\n  in line 2, column 1"),
        (ALIASES, r"bad\.yaml: with its aliases written out it has [\d,]{10,} values; at most 100,000$"),
        (MERGES, r"bad\.yaml: merge keys \(<<\) copy more than 100,000 values\n  in line 2, column 5"),
        (b"a: &a {<<: *a}\n", "contains itself"),
        (b"a: {<<: [3]}\n", r"takes a mapping or a list of mappings\n  in line 1, column 10"),
        (b"model:\n  size: tiny\n  size: demo\n", "key 'size' is given twice"),
        (b"model: [{a: {size: tiny, size: demo}}]\n", "key 'size' is given twice"),
        (b"- a\n", "mapping of sections, not list"),
        (b"", "mapping of sections, not NoneType"),
        (b"\xff\xfe\x00name", "is in UTF-16-LE; write it in UTF-8"),
        (b"name: a\x00b\n", "special characters are not allowed"),
        (b"name: !!python/object/apply:os.system ['true']\n", "could not determine a constructor"),
        (b"? [a, b]\n: 1\n", "unhashable key"),
        (b"a: &a [*a]\n", "contains itself"),
        (b"a: &a {b: *a}\n", "contains itself"),
    ],
)
def test_bad_yaml_is_named_with_its_place(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=message) as raised:
        read_yaml(path)
    assert str(path) in str(raised.value)


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "marked.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: a\n")
    assert read_yaml(path) == {"name": "a"}


def test_a_merge_key_may_be_overridden(tmp_path: Path) -> None:
    """`<<` gives defaults: the same key beside it is no second one."""
    path = tmp_path / "merged.yaml"
    path.write_text("a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\n")
    assert read_yaml(path)["b"] == {"x": 1, "y": 3}
    path.write_text("a: &a {x: 1, y: 1}\nb: {c: &c {<<: *a, x: 2}}\nd: {<<: [*c, {y: 3, z: 3}]}\n")  # d before c
    assert read_yaml(path)["d"] == {"x": 2, "y": 1, "z": 3}


def test_merge_keys_of_merge_keys_copy_each_key_once(tmp_path: Path) -> None:
    """PyYAML up to 6.0.3 makes 9 to the 14th entries of them."""
    path = tmp_path / "nested.yaml"
    nested = [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}], k{n}: {n}}}\n" for n in range(1, 15)]
    path.write_text("a0: &a0 {k0: 0}\n" + "".join(nested))
    assert read_yaml(path)["a14"] == {f"k{n}": n for n in range(15)}


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        ("a.b.c=3", {"a": {"b": {"c": 3}}}),
        ("a[0].b[12]=3", {"a": {"0": {"b": {"12": 3}}}}),  # as errors write it
        ("a=[1, x]", {"a": [1, "x"]}),
        ("a.b={c: 1.5}", {"a": {"b": {"c": 1.5}}}),
        (" a.b = text", {"a": {"b": "text"}}),
        ("a=x=y", {"a": "x=y"}),
        ("a=null", {"a": None}),
        ("a=[3e-4, 1E9, -.5e1, 2.5e+0, '1e9']", {"a": [3e-4, 1_000_000_000, -5, 2.5, "1e9"]}),  # as in JSON
        ("a=", {"a": None}),
    ],
)
def test_an_override_is_a_path_and_a_yaml_value(override: str, wanted: dict[str, Any]) -> None:
    assert parse_override(override) == wanted


@pytest.mark.parametrize("override", ["a.b", "=3", "a..b=3", ".a=3", "", "a=[1", "a={x: 1, x: 2}", "a=&a [*a]"])
def test_a_wrong_override_is_shown(override: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_override(override)
    assert f"--set {override!r}: " in str(raised.value)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A recipe in a file of its own folder."""
    path = tmp_path / "recipes" / "small.yaml"
    path.parent.mkdir()
    select = {"drop_lists": [], "language": {"keep": ["en", "de"]}}
    path.write_text(yaml.safe_dump(values(select=select)))
    return path


def test_overrides_are_laid_over_the_file_in_order(written: Path) -> None:
    recipe = Recipe.load(
        written, ["vocabulary.size=400", "train.phases.0.tokens=1000", "model.size=demo", "vocabulary.size=410"]
    )
    assert recipe.vocabulary.size == 410
    assert recipe.train.phases[0].tokens == 1000
    assert recipe.train.phases[0].sequence_length == 64
    assert recipe.model.num_layers == 4


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("vocabulary.siez=3", "vocabulary.siez: unknown key; did you mean 'size'"),
        ("vocabulary.size.x=3", "vocabulary.size: Input should be a valid integer"),
        ("vocabulary.size=", "vocabulary.size: Input should be a valid integer"),
        ("train.phases.7.tokens=3", r"train.phases: a list without a place '7'; it holds 0 \(main\)$"),
        ("train.phases.main.tokens=3", r"^train.phases: a list without a place 'main'; it holds 0 \(main\)$"),
        ("select.drop_lists.0.path=x", "select.drop_lists: a list without a place '0'; it holds nothing; give it as a"),
        ("select.language.keep.de=1", "select.language.keep: a list without a place 'de'; it holds 0, 1$"),
    ],
)
def test_a_wrong_value_of_an_override_is_found_as_in_the_file(written: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Recipe.load(written, [override])


def test_a_place_that_no_file_can_have_is_named(written: Path) -> None:
    with pytest.raises(ConfigError, match=r"^evaluate\.tasks\.piqa\.path: 'a\\x00b' holds NUL"):
        Recipe.load(written, ['evaluate.tasks.piqa.path="a\\0b"'])


@pytest.mark.parametrize("length", [64, {0: 32, 4096: 64}])
@pytest.mark.parametrize("tokens", [8192.0, "8192", True])
def test_lengths_by_tokens_take_tokens_as_they_are_taken_elsewhere(tokens: object, length: object) -> None:
    with pytest.raises(ConfigError, match=r"phases\[0\].*(valid integer|no whole number)"):
        Recipe.parse(values(train=phases({"tokens": tokens, "sequence_length": length})))
    [short, long] = Recipe.parse(values(train=phases({"sequence_length": {0: 32, "4096": 64}}))).train.phases
    assert (short.tokens, short.sequence_length, long.tokens, long.sequence_length) == (4096, 32, 4096, 64)


def test_relative_places_lie_beside_the_recipe(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = {"a": "raw", "b": "../raw", "c": "/data", "d": "s3://bucket/raw", "e": "{root}/raw"}
    sets = {
        name: {"path": path, "question": "q"}
        for name, path in {"near": "sets/a.jsonl", "ships": "recipe:demo_evaluation.jsonl"}.items()
    }
    changed = {"ingest": {"sources": {name: {"base": base} for name, base in places.items()}}}
    changed |= {"decontaminate": {"evaluation_sets": sets}, "train": phases({"weights": {"a": 1}})}
    written.write_text(yaml.safe_dump(values(**changed)))
    monkeypatch.chdir("/")
    recipe = Recipe.load(written)
    folder = written.parent
    assert {name: source.base for name, source in recipe.ingest.sources.items()} == {
        "a": f"{folder}/raw", "b": f"{folder.parent}/raw", "c": "/data", "d": "s3://bucket/raw", "e": "{root}/raw",
    }  # fmt: skip
    assert recipe.decontaminate.evaluation_sets["near"].path == f"{folder}/sets/a.jsonl"
    assert recipe.decontaminate.evaluation_sets["ships"].path == "recipe:demo_evaluation.jsonl"


def test_a_bare_name_is_a_recipe_that_ships(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert recipe_path("demo") == recipe_path("demo.yaml") == RECIPES_FOLDER / "demo.yaml"
    assert recipe_path(written) == written
    monkeypatch.chdir(written.parent)
    assert recipe_path("small.yaml") == written
    for missing in ("small", "elsewhere/demo"):
        with pytest.raises(ConfigError, match="no such file; recipes that ship: demo"):
            recipe_path(missing)
    with pytest.raises(ConfigError, match="a folder, not a file; recipes that ship: demo"):
        recipe_path(written.parent)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(written: Path) -> None:
    written.chmod(0)
    with pytest.raises(ConfigError, match="Permission denied"):
        Recipe.load(written)


def test_the_recipes_that_ship_are_valid() -> None:
    for path in RECIPES_FOLDER.glob("*.yaml"):
        recipe = Recipe.load(path)
        assert recipe.name == path.stem
        assert Recipe.parse(recipe.model_dump(mode="json")) == recipe


def test_no_order_of_keys_reaches_a_result() -> None:
    """Neither YAML nor Prefect's database keeps the order of a mapping."""
    backwards = dict(reversed(values().items()))
    backwards["ingest"] = {"sources": dict(reversed(values()["ingest"]["sources"].items()))}
    one, other = Recipe.parse(values()), Recipe.parse(backwards)
    assert list(one.ingest.sources) == list(other.ingest.sources) == ["code", "web"]
    assert one.model_dump_json() == other.model_dump_json()


def test_what_phases_and_the_tokenizer_read() -> None:
    long = {"name": "long", "sequence_length": 128, "min_document_tokens": 32, "weights": {"web": 1, "code": 0}}
    again = {"name": "again", "weights": {"web": 5}}
    recipe = Recipe.parse(values(train=phases({}, long, again)))
    assert [phase.after for phase in recipe.train.phases] == [None, "main", "long"]
    assert recipe.sample_weights == {"code": 1, "web": 2}
    given = Recipe.parse(values(vocabulary={"size": 300, "sample_weights": {"web": 1}}))
    assert given.sample_weights == {"web": 1}


def test_a_sources_priority_decides_which_copy_stays() -> None:
    given = values()
    given["ingest"]["sources"]["web"]["priority"] = 2
    given["dedup_near"] = {"priorities": {"web": 5, "code": 1}}
    recipe = Recipe.parse(given)
    assert recipe.with_priorities(recipe.dedup_exact).priorities == {"web": 2}
    assert recipe.with_priorities(recipe.dedup_near).priorities == {"web": 5, "code": 1}


def test_a_size_brings_learning_rate_batch_and_horizon_and_gives_way() -> None:
    weights = {"web": 1.0}
    phases: list[dict[str, Any]] = [
        {"name": "main", "weights": weights, "sequence_length": 64},
        {"name": "anneal", "weights": weights, "sequence_length": 128, "tokens": 10, "schedule": {"warmup_tokens": 5}},
        {"name": "own", "weights": weights, "sequence_length": 64, "tokens": 10, "batch": 3, "schedule": {"lr": 0.5}},
    ]
    first, second, third = Recipe.parse(values(train={"phases": phases})).train.phases
    assert (first.tokens, first.batch[0].rows, first.schedule.lr) == (500_000, 64, 1e-2)
    assert (second.batch[0].rows, second.schedule.lr, second.schedule.warmup_tokens) == (32, 1e-2, 5)
    assert (third.batch[0].rows, third.schedule.lr) == (3, 0.5)
    del phases[1]["tokens"]
    with pytest.raises(ConfigError, match=r"train\.phases\[1\]\.tokens: this key is required"):
        Recipe.parse(values(train={"phases": phases}))


def test_a_model_without_a_shape_is_trained_where_no_export_is_asked_for() -> None:
    recipe = Recipe.parse(values(model={"size": "tiny", "positions": "sinusoidal"}, export={"enabled": False}))
    assert recipe.model.positions == "sinusoidal"
