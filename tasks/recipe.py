"""The recipe: every decision that changes the result, made of the stages' own configs, checked before anything runs.

Where a run computes (root, Ray, workers) is never in it. A wrong recipe raises ConfigError, which names the key's path,
what was got and what is allowed. Paths: `{root}/...` lies in the storage root, `recipe:name` beside the recipes that
ship, s3:// and absolute paths stay, others are relative to the recipe's own folder.
"""

import re
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import yaml
from pydantic import BaseModel, Field, JsonValue, ValidationError, model_validator

from model.architecture import ModelConfig
from model.config import TrainConfig
from model.phases import fill_in_phases
from model.shapes import shape_of
from tasks.classifiers.settings import ClassifiersConfig
from tasks.cluster_sizes import CLUSTER_SIZE
from tasks.config import canonical_json, check_places, explain, for_source, merge
from tasks.decontaminate import DecontaminateConfig
from tasks.dedup_exact import ExactDedupConfig
from tasks.dedup_near import NearDedupConfig
from tasks.errors import ConfigError
from tasks.evaluate import EvaluateConfig
from tasks.export import ExportConfig
from tasks.import_weights import read_model
from tasks.ingest import IngestConfig
from tasks.mixture import MixConfig, divided_by, sub_sources
from tasks.pack import PackConfig
from tasks.recipe_files import unmarked
from tasks.redact import RedactConfig
from tasks.select.rules import SelectConfig
from tasks.signals import SignalsConfig
from tasks.splits import whole_source
from tasks.vocabulary import VocabularyConfig

Entry = tuple[yaml.Node, yaml.Node]  # of a mapping: key and value
Dedup = TypeVar("Dedup", ExactDedupConfig, NearDedupConfig)

RECIPES_FOLDER = Path(__file__).resolve().parent.parent / "flows" / "recipes"
PATH_KEYS = frozenset(
    {"base", "path", "labels_path"}
)  # keys whose values are places; relative ones are resolved when loading
UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")
EXPONENT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$")
MERGE_TAG = "tag:yaml.org,2002:merge"
UNNAMED = '"<unicode string>", '  # what PyYAML calls the file, before line and column
MAX_ALIASED_VALUES = 100_000  # nine aliases of nine aliases, eight levels deep, are 43 million


class PinConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """Datasets taken as they are; nothing before them is computed. A reference is a fingerprint or a run id."""

    vocabulary: str | None = Field(default=None, description="tokenizer to use")
    pack: str | None = Field(default=None, description="run whose packs to use")
    train: str | None = Field(default=None, description="training dataset to evaluate and export")


class Recipe(BaseModel, frozen=True, extra="forbid", strict=True):
    """From sources to model; one section per stage, in the order of the graph."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$", description="lower-case letters, digits, hyphens")
    prepare: Literal["python-corpus"] | None = Field(
        default=None,
        description="python-corpus: first write the text that comes with the installed Python to {root}/raw",
    )
    ingest: IngestConfig
    dedup_exact: ExactDedupConfig = ExactDedupConfig()
    classifiers: ClassifiersConfig = ClassifiersConfig()
    signals: SignalsConfig = SignalsConfig()
    select: SelectConfig = SelectConfig()
    dedup_near: NearDedupConfig = NearDedupConfig()
    redact: RedactConfig = RedactConfig()
    decontaminate: DecontaminateConfig = DecontaminateConfig()
    mix: MixConfig = MixConfig()
    vocabulary: VocabularyConfig
    pack: PackConfig = PackConfig()
    model: ModelConfig
    train: TrainConfig
    evaluate: EvaluateConfig = EvaluateConfig()
    export: ExportConfig = ExportConfig()
    pin: PinConfig = PinConfig()

    @model_validator(mode="before")
    @classmethod
    def _fill_in_training(cls, given: Any) -> Any:
        """What `model.size` knows of training, where the phases leave it out; the resolved recipe holds the numbers."""
        model, train = (given.get(key) if isinstance(given, dict) else None for key in ("model", "train"))
        if not (isinstance(model, dict) and isinstance(train, dict) and isinstance(train.get("phases"), list)):
            return given
        return given | {"train": train | {"phases": fill_in_phases(train["phases"], model.get("size"))}}

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        """Every source named anywhere must be one of ingest.sources."""
        known = set(self.ingest.sources)
        for section in type(self).model_fields:
            for mapping in ("by_source", "priorities", "protected"):
                for source in getattr(getattr(self, section), mapping, {}):
                    _check_source(source, known, f"{section}.{mapping}")
        for key, sources in self.classifiers.source_lists.items():
            for source in sources:
                _check_source(source, known, f"classifiers.{key}")
        named = {f"train.phases[{index}].weights": phase.weights for index, phase in enumerate(self.train.phases)}
        named["vocabulary.sample_weights"] = self.vocabulary.sample_weights
        buckets = {source: sub_sources(self.mix, source) for source in known}
        for path, weights in named.items():
            for name in weights:
                _check_sub_source(name, buckets, path)
        return self

    @model_validator(mode="after")
    def _check_trained_signals(self) -> Self:
        """A rule or bucket over a signal that nothing measures would drop or divide nothing."""
        quality, toxicity, perplexity = self.classifiers.quality, self.classifiers.toxicity, self.classifiers.perplexity
        measured = {
            "quality_score": ("quality", quality),
            "toxicity_score": ("toxicity.labelled", toxicity and (toxicity.path or toxicity.labelled)),
            "num_listed_words": ("toxicity.word_lists", toxicity and toxicity.word_lists),
            "perplexity": ("perplexity", perplexity),
        }
        buckets = divided_by(self.mix, list(self.ingest.sources))
        for source in self.ingest.sources:
            is_near = for_source(self.dedup_near, source).enabled
            if divided_by(self.mix, [source]) == {CLUSTER_SIZE} and not is_near:
                raise ValueError(f"mix.buckets: cluster_size of source {source} needs dedup_near, which leaves it out")
        for section, signals in (("select", self.select.signals), ("mix.buckets", buckets)):
            for name, (key, given) in measured.items():
                if name in signals and not given:
                    raise ValueError(f"{section}: nothing measures signal {name}; configure classifiers.{key}")
        return self

    @model_validator(mode="after")
    def _check_task_sets(self) -> Self:
        """A set that a task names must exist, or the task never gets a score; a pinned run may have had others."""
        known = self.decontaminate.evaluation_sets
        for name, task in self.evaluate.tasks.items():
            if task.evaluation_set not in (None, *known) and self.pin == PinConfig():
                raise ValueError(
                    f"evaluate.tasks.{name}.evaluation_set: {task.evaluation_set!r} is not in "
                    f"decontaminate.evaluation_sets ({', '.join(sorted(known)) or 'which is empty'})"
                )
        return self

    @model_validator(mode="after")
    def _check_vocabulary(self) -> Self:
        """The model must have a row for every token; an imported tokenizer is measured when it is taken."""
        if self.train.initialize_from is None and self.model.vocab_size < self.vocabulary.size:
            raise ValueError(
                f"model.vocab_size {self.model.vocab_size} is smaller than vocabulary.size {self.vocabulary.size}; "
                f"write model.vocab_size: {self.vocabulary.size}, or a vocabulary.size of at most "
                f"{self.model.vocab_size}"
            )
        return self

    @model_validator(mode="after")
    def _check_model(self) -> Self:
        """Every row must have a position, and what is to be exported a shape that transformers knows."""
        for index, phase in enumerate(self.train.phases):
            try:
                self.model.check_length(phase.sequence_length)
            except ValueError as error:
                raise ValueError(f"model.{error} (train.phases[{index}].sequence_length)") from error
            if phase.rope_base is not None and self.model.positions != "rope":
                raise ValueError(
                    f"train.phases[{index}].rope_base {phase.rope_base:g}: model.positions is "
                    f"{self.model.positions!r}, which has no base; leave it out"
                )
        if self.export.enabled:
            try:
                shape_of(self.model)
            except ValueError as error:
                raise ValueError(f"model can't be exported: {error}; or set export.enabled to false") from error
        return self

    @property
    def sample_weights(self) -> dict[str, float]:
        """Proportions of the tokenizer's sample: as given, else the first phase's weights."""
        return self.vocabulary.sample_weights or self.train.phases[0].weights

    def with_priorities(self, config: Dedup) -> Dedup:
        """A dedup config with the sources' priorities, where it gives a source none of its own."""
        given = {name: source.priority for name, source in self.ingest.sources.items() if source.priority}
        return config.model_copy(update={"priorities": given | config.priorities})

    @classmethod
    def parse(cls, values: object) -> "Recipe":
        """A recipe from plain values. Raises ConfigError with one line per fault."""
        _check_texts(values)
        try:
            recipe = cls.model_validate(_in_key_order(values))
        except ValidationError as error:
            raise ConfigError("\n".join(explain(cls, error))) from error
        canonical_json(recipe.model_dump(mode="json"))  # no infinite numbers, and none too large to store
        return recipe

    @classmethod
    def load(cls, path: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> "Recipe":
        """A recipe file with `key.path=value` overrides laid over it. Raises ConfigError."""
        values = read_yaml(recipe_path(path))
        for override in overrides:
            values = with_override(values, override)
        _check_texts(values)
        return cls.parse(_with_imported_model(_resolve_paths(values, recipe_path(path).parent)))


def recipe_path(path: str | Path) -> Path:
    """The file; a bare name such as `demo` means one that ships. Raises ConfigError when there is none."""
    given = Path(path)
    for candidate in (given, RECIPES_FOLDER / given.name, RECIPES_FOLDER / f"{given.name}.yaml"):
        if candidate.is_file() and (candidate is given or given.parent == Path()):
            return candidate.resolve()
    shipped = ", ".join(sorted(file.stem for file in RECIPES_FOLDER.glob("*.yaml")))
    what = "a folder, not a file" if given.is_dir() else "no such file"
    raise ConfigError(f"recipe {path}: {what}; recipes that ship: {shipped}")


def read_yaml(path: Path) -> dict[str, JsonValue]:
    """A YAML mapping; a key given twice is an error. Raises ConfigError with line and column."""
    try:
        values = _load_yaml(unmarked(path.read_bytes()).decode(), str(path))
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a recipe is a mapping of sections, not {type(values).__name__}")
    return values


def with_override(values: dict[str, JsonValue], override: str) -> dict[str, JsonValue]:
    """Values with `key.path=value` laid over them. Raises ConfigError, also for a place that a list does not have."""
    parsed = parse_override(override)
    check_places(values, _keys_of(override))
    return merge(values, parsed)


def parse_override(override: str) -> dict[str, JsonValue]:
    """`a.b.c=value` as a nested mapping; the value is read as YAML. `a[0].b`, as errors write it, is `a.0.b`.

    Raises ConfigError.
    """
    _, equals, value = override.partition("=")
    keys = _keys_of(override)
    if not equals or not all(keys):
        raise ConfigError(f"--set {override!r}: write key.path=value")
    nested = _load_yaml(value, f"--set {override!r}")
    for key in reversed(keys):
        nested = {key: nested}
    values: dict[str, JsonValue] = nested
    return values


def _keys_of(override: str) -> list[str]:
    return re.sub(r"\[(\d+)\]", r".\1", override.partition("=")[0].strip()).split(".")


def _load_yaml(text: str, place: str) -> Any:
    """Plain values. Raises ConfigError, also for what contains itself."""
    try:
        values = yaml.load(text, Loader=_OneOfEachKey)
        limit = max(MAX_ALIASED_VALUES, len(text))  # without aliases there are fewer values than characters
        if (number := _num_values(values, {})) > limit:
            raise ConfigError(f"{place}: with its aliases written out it has {number:,} values; at most {limit:,}")
        return _in_key_order(values)
    except yaml.YAMLError as error:
        raise ConfigError(f"{place}: {str(error).replace(UNNAMED, '')}") from error
    except RecursionError as error:
        raise ConfigError(f"{place}: nested too deep, or a part of it contains itself") from error


def _num_values(values: Any, known: dict[int, int]) -> int:
    """Values in a tree with every alias written out; each is counted once, by its identity (`known`)."""
    if not isinstance(values, (dict, list)):
        return 1
    if id(values) not in known:
        children = values.values() if isinstance(values, dict) else values
        known[id(values)] = 1 + sum(_num_values(child, known) for child in children)
    return known[id(values)]


class _OneOfEachKey(yaml.SafeLoader):
    """A loader of plain values that refuses a mapping with the same key twice, and knows 3e-4 as a number.

    Merge keys (`<<: *defaults`) copy each key of a mapping once; PyYAML up to 6.0.3 copies without bound.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.num_merged, self.limit = 0, max(MAX_ALIASED_VALUES, len(text))

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge keys written out: what stands in the mapping itself wins, then what is named first."""
        merged, own = dict[Any, Entry](), dict[Any, Entry]()
        for key, value in node.value:
            if key.tag == MERGE_TAG:
                merged = {self._key_of(entry): entry for entry in reversed(self._copies(key, value))} | merged
            elif (given := self._key_of((key, value))) in own:
                raise yaml.constructor.ConstructorError(None, None, f"key {given!r} is given twice", key.start_mark)
            else:
                own[given] = (key, value)
        node.value = [*(merged | own).values()]

    def _copies(self, key: yaml.Node, value: yaml.Node) -> list[Entry]:
        copies: list[Entry] = []
        for part in value.value if isinstance(value, yaml.SequenceNode) else [value]:
            if not isinstance(part, yaml.MappingNode):
                told = "a merge key (<<) takes a mapping or a list of mappings"
                raise yaml.constructor.ConstructorError(None, None, told, part.start_mark)
            self.flatten_mapping(part)
            copies += part.value
            self.num_merged += len(part.value)
            if self.num_merged > self.limit:
                told = f"merge keys (<<) copy more than {self.limit:,} values"
                raise yaml.constructor.ConstructorError(None, None, told, key.start_mark)
        return copies

    def _key_of(self, entry: Entry) -> Any:
        """The key's value; a list or mapping, which can be no key, is refused later."""
        return self.construct_object(entry[0]) if isinstance(entry[0], yaml.ScalarNode) else id(entry[0])

    def construct_exponent(self, node: yaml.ScalarNode) -> int | float:
        """1e9 is whole; PyYAML takes a number without a dot for text (YAML 1.1), unlike JSON and YAML 1.2."""
        value = float(node.value)
        return int(value) if value.is_integer() else value


_OneOfEachKey.add_implicit_resolver("!exponent", EXPONENT, list("-+.0123456789"))
_OneOfEachKey.add_constructor("!exponent", _OneOfEachKey.construct_exponent)


def _in_key_order(values: Any) -> Any:
    """Mappings sorted by key: neither YAML nor Prefect's database keeps an order, so none may reach a result."""
    if isinstance(values, dict):
        return {key: _in_key_order(values[key]) for key in sorted(values, key=lambda key: (type(key).__name__, key))}
    return [_in_key_order(value) for value in values] if isinstance(values, list) else values


def _check_texts(values: Any, path: str = "") -> None:
    """Raises ConfigError with the path of a text that no file can hold: one with NUL or half a surrogate pair."""
    if isinstance(values, (dict, list)):
        for key, value in values.items() if isinstance(values, dict) else enumerate(values):
            _check_texts(value, f"{path}[{key}]" if isinstance(values, list) else f"{path}.{key}".removeprefix("."))
    elif isinstance(values, str) and UNSTORABLE.search(values):
        raise ConfigError(f"{path}: {values[:80]!r} holds NUL or half a surrogate pair; use text of Unicode characters")


def _resolve_paths(values: Any, folder: Path) -> Any:
    """Relative places become absolute ones, so that a run does not depend on where it was started."""
    if isinstance(values, dict):
        return {
            key: _absolute(value, folder)
            if key in PATH_KEYS and isinstance(value, str)
            else _resolve_paths(value, folder)
            for key, value in values.items()
        }
    return [_resolve_paths(item, folder) for item in values] if isinstance(values, list) else values


def _with_imported_model(values: Any) -> Any:
    """The model of the folder that training starts from, with the fields that the recipe gives laid over it."""
    train = values.get("train")
    start = train.get("initialize_from") if isinstance(train, dict) else None
    if not (isinstance(start, dict) and isinstance(start.get("path"), str)):
        return values
    given = values.get("model", {})
    model = read_model(start["path"]).model_dump(mode="json")
    return {"vocabulary": {}} | values | ({"model": model | given} if isinstance(given, dict) else {})


def _absolute(place: str, folder: Path) -> str:
    if not place or place.startswith(("{root}", "recipe:")) or "://" in place or Path(place).is_absolute():
        return place
    return str((folder / place).resolve())


def _check_source(source: str, known: set[str], path: str) -> None:
    if source not in known:
        raise ValueError(f"{path}: source {source!r} is not in ingest.sources ({', '.join(sorted(known))})")


def _check_sub_source(name: str, buckets: dict[str, list[str]], path: str) -> None:
    source = whole_source(name)
    _check_source(source, set(buckets), path)
    if name not in buckets[source]:
        raise ValueError(f"{path}: {name!r} does not exist; mix gives source {source}: {', '.join(buckets[source])}")
