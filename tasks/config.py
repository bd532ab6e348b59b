"""How a stage's settings are read: overrides per source, and the canonical form that goes into keys.

A stage config is a frozen pydantic model beside the function that reads it. `by_source: {code: {...}}` lays other
values over it for one source, `by_source: {code: {enabled: false}}` leaves the stage out there. A field whose
`json_schema_extra` holds `{"neutral": value}` stays out of keys while it has that value, so that a new option that does
nothing does not move every fingerprint. Types are strict, as those of YAML are: true is no number, 5 no text; an int
may stand for a float, and a list for a tuple (Several).
"""

import difflib
import hashlib
import json
import math
import re
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, Field, JsonValue, Strict, ValidationError
from pydantic_core import ErrorDetails

from tasks.errors import ConfigError

Config = TypeVar("Config", bound=BaseModel)
Value = TypeVar("Value")
Several = Annotated[tuple[Value, ...], Strict(False)]
Share = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0)]
Size = Annotated[int, Field(ge=1, le=1 << 48)]  # no offset overflows

SHOWN_VALUE_CHARS = 120
WANTED = {  # pydantic's name of a fault -> what the key takes, in words of YAML
    "bool_type": "true or false",
    "string_type": "text (in quotes, where YAML reads something else)",
    **dict.fromkeys(("tuple_type", "list_type"), "a list"),
    **dict.fromkeys(("dict_type", "model_type"), "a mapping"),
}
PATTERNS = {  # what a text must match -> the same in words
    r"^[A-Za-z0-9][A-Za-z0-9_.-]*$": "a name of letters, digits, '_', '.' and '-' that begins with a letter or digit",
    r"^[a-z0-9][a-z0-9-]*$": "a name of lower-case letters, digits and '-' that begins with a letter or digit",
    r"^[a-z][a-z0-9_]*$": "a name of lower-case letters, digits and '_' that begins with a letter",
    r"^[0-9a-f]{64}$": "64 hexadecimal digits",
    r"^[1-9]\d*(KB|MB|GB)$": "a size such as 500MB or 5GB",
}
PLAIN_STEP = re.compile(r"[A-Za-z0-9][\w-]*(\.[\w-]+)*")  # of a key's path; others stand in quotes
OVERRIDES = ("by_source", "by_language")  # fields of other values for the same config; a later one may stand in them
NAMES_ITS_PLACE = (*(f"{name}." for name in OVERRIDES), "phases[")  # begins with the rest of the path
MAX_INTEGER = 2**63 - 1  # what JSON readers, Parquet and databases hold


def for_source(config: Config, source: str) -> Config:
    """The config as it applies to one source: `by_source[source]` laid over it, `by_source` itself emptied."""
    by_source: dict[str, dict[str, JsonValue]] = getattr(config, "by_source", {})
    values = config.model_dump(mode="json") | {"by_source": {}}
    merged = merge(values, by_source.get(source, {}))
    return type(config).model_validate(merged)


def merge(values: dict[str, JsonValue], over: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """`over` laid on `values`, key by key: mappings are merged, lists and scalars replaced.

    A mapping from places to values goes into a list: `{"phases": {"0": {"tokens": 5}}}`.
    """
    merged = dict(values)
    for key, value in over.items():
        old = merged.get(key)
        places = {str(place): item for place, item in enumerate(old)} if isinstance(old, list) else {}
        if isinstance(value, dict) and value and value.keys() <= places.keys():
            merged[key] = list(merge(places, value).values())
        else:
            merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def check_places(values: Any, keys: Sequence[str]) -> None:
    """Raises ConfigError where the path to a value goes through a place that a list does not have."""
    for length, key in enumerate(keys):
        if isinstance(values, list):
            values = {str(place): item for place, item in enumerate(values)}
            if key not in values:
                known = ", ".join(map(_shown_place, values.items())) or "nothing; give it as a whole"
                raise ConfigError(f"{'.'.join(keys[:length])}: a list without a place {key!r}; it holds {known}")
        values = values.get(key) if isinstance(values, dict) else None


def _shown_place(place_item: tuple[str, Any]) -> str:
    place, item = place_item
    return f"{place} ({item['name']})" if isinstance(item, dict) and "name" in item else place


def check_by_source(config: Config) -> Config:
    """For a model validator: every entry of `by_source` must itself give a valid config.

    Raises ValueError with the path of the wrong key.
    """
    return check_overrides(config, "by_source", ("by_source",))


def check_overrides(config: Config, field: str, forbidden: tuple[str, ...]) -> Config:
    """The same for any field of overrides; `forbidden` keys can't be given in them."""
    overrides: dict[str, dict[str, JsonValue]] = getattr(config, field, {})
    for name, over in overrides.items():
        if wrong := [key for key in forbidden if key in over]:
            reason = "overrides cannot be nested" if wrong[0] == field else f"cannot be set in {field}"
            raise ValueError(f"{field}.{name}.{wrong[0]}: {reason}")
        try:
            type(config).model_validate(merge(config.model_dump(mode="json") | {field: {}}, over))
        except ValidationError as error:
            raise ValueError(f"{field}.{name}.{explain(type(config), error)[0]}") from error
    return config


def check_order(config: Config) -> Config:
    """For a model validator: no `min_...` lies above its `max_...`. Raises ValueError."""
    for name in type(config).model_fields:
        other = name.replace("min_", "max_", 1)
        low, high = getattr(config, name), getattr(config, other, None)
        if name != other and low is not None and high is not None and low > high:
            raise ValueError(f"{name} {low:g} is above {other} {high:g}, so that nothing passes")
    return config


def explain(model: type[BaseModel], error: ValidationError) -> list[str]:
    """One line per fault: path of the key, what was got, what is allowed."""
    faults = error.errors()
    followed = {fault["loc"][:length] for fault in faults for length in range(len(fault["loc"]))}
    # a tuple with a wrong element is also called too short, which says nothing
    return [_explain(model, fault) for fault in faults if fault["type"] != "too_short" or fault["loc"] not in followed]


def _explain(model: type[BaseModel], details: ErrorDetails) -> str:
    path, location = "", tuple(step for step in details["loc"] if not str(step).startswith(("(", "[")))
    # without tags of unions, and without the mark of a mapping's key, which stands there already
    for step in location:
        if isinstance(step, int) or not PLAIN_STEP.fullmatch(step):
            path += f"[{json.dumps(step, ensure_ascii=not str(step).isprintable())}]"
        else:
            path += f".{step}" if path else step
    wanted = WANTED.get(details["type"]) or PATTERNS.get(details.get("ctx", {}).get("pattern", ""))
    message = (
        f"Input should be {wanted}" if wanted else details["msg"].removeprefix("Value error, ").replace("Tuple", "List")
    )
    if details["type"] == "extra_forbidden":
        allowed = _allowed_keys(model, location)
        close = difflib.get_close_matches(str(location[-1]), allowed, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return f"{path}: unknown key; {hint}allowed here: {', '.join(allowed)}"
    if details["type"] == "missing":
        return f"{path}: this key is required"
    if message.startswith(NAMES_ITS_PLACE):
        return f"{path}.{message}" if path else message
    got = details["input"]
    got = json.dumps(got) if got is None or isinstance(got, bool) else repr(got)
    shown = got if len(got) <= SHOWN_VALUE_CHARS else got[:SHOWN_VALUE_CHARS] + "..."
    is_whole = isinstance(details["input"], dict) and details["type"] == "value_error"  # the message names the value
    return f"{path or 'recipe'}: {message}" + ("" if is_whole else f" (got {shown})")


def _allowed_keys(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The fields of the model in which an unknown key stood."""
    found: Any = model
    for step in location[:-1]:
        if isinstance(found, type) and issubclass(found, BaseModel) and step in found.model_fields:
            found = found.model_fields[str(step)].annotation
        found = _inner_model(found)
    return keys_of(found) if isinstance(found, type) and issubclass(found, BaseModel) else []


def keys_of(model: type[BaseModel]) -> list[str]:
    """The keys that a recipe may give."""
    return sorted({*model.model_fields, *getattr(model, "SHORT_KEYS", ())})


def _inner_model(annotation: Any) -> Any:
    """The model inside dict[str, Model], tuple[Model, ...], Model | None; else the annotation itself."""
    for argument in getattr(annotation, "__args__", ()):
        found = _inner_model(argument)
        if isinstance(found, type) and issubclass(found, BaseModel):
            return found
    return annotation


def key_schema(annotation: Any, but: tuple[str, ...] = ()) -> dict[str, Any]:
    """JSON Schema that holds values to the keys of the models in an annotation, and to nothing else.

    Types and ranges are for the models, whose validators also read short forms. Names stand in `propertyNames`, not in
    `properties`, of which Prefect's form would make a field for each setting in the place of its editor for JSON.
    Overrides hold keys of the same model, without those of `but`.
    """
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = {name: key_schema(field.annotation) for name, field in annotation.model_fields.items()}
        for place, name in enumerate(OVERRIDES):
            if name in fields and name not in but:
                fields[name] = {"additionalProperties": key_schema(annotation, OVERRIDES[: place + 1])}
        inner = {f"^{name}$": schema for name, schema in fields.items() if schema}
        names = [name for name in keys_of(annotation) if name not in but]
        return {"propertyNames": {"enum": names}} | ({"patternProperties": inner} if inner else {})
    arguments, origin = get_args(annotation), get_origin(annotation)
    if origin in (dict, tuple, list):
        schema = key_schema(arguments[-1 if origin is dict else 0])
        return {"additionalProperties" if origin is dict else "items": schema} if schema else {}
    schemas = [schema for argument in arguments if (schema := key_schema(argument))]
    return {"anyOf": schemas} if len(schemas) > 1 else schemas[0] if schemas else {}


def resolved(config: BaseModel | None) -> dict[str, JsonValue]:
    """The values that decide a result: the dumped config without fields at their declared neutral value."""
    return {} if config is None else _without_neutral(config)


def _without_neutral(config: BaseModel) -> dict[str, JsonValue]:
    dumped = config.model_dump(mode="json")
    for name, field in type(config).model_fields.items():
        extra = field.json_schema_extra
        if isinstance(extra, dict) and "neutral" in extra and dumped[name] == extra["neutral"]:
            del dumped[name]
            continue
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            dumped[name] = _without_neutral(value)
        elif isinstance(value, dict) and value and all(isinstance(item, BaseModel) for item in value.values()):
            dumped[name] = {key: _without_neutral(item) for key, item in value.items()}
        elif isinstance(value, (list, tuple)) and value and all(isinstance(item, BaseModel) for item in value):
            dumped[name] = [_without_neutral(item) for item in value]
    return dumped


def canonical_json(value: object, path: str = "") -> str:
    """One text per value: sorted keys, no spaces. Raises ConfigError with the path of a value that has no such form."""
    _check_canonical(value, path)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _check_canonical(value: object, path: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ConfigError(f"{path or 'value'}: key {key!r} is not text")
            _check_canonical(item, f"{path}.{key}" if path else key)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _check_canonical(item, f"{path}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{path or 'value'}: {value} has no canonical form; use a finite number")
    elif isinstance(value, int) and not -MAX_INTEGER <= value <= MAX_INTEGER:
        raise ConfigError(f"{path or 'value'}: {value} is too large; at most {MAX_INTEGER}")
    elif value is not None and not isinstance(value, (str, int, float, bool)):
        raise ConfigError(f"{path or 'value'}: {type(value).__name__} has no canonical form; use plain JSON values")


def fingerprint_of(value: object) -> str:
    """sha256 of the canonical JSON, 64 hex digits."""
    return hashlib.sha256(canonical_json(value).encode("utf-8", "surrogatepass")).hexdigest()
