"""Two runs side by side (`basemill compare RUN RUN`): settings that differ, funnels, reasons, mixtures.

A pair holds the first run's figure and the second's; None where a run has no such thing. Nothing is computed but what
the manifests say, so runs of any size are compared at once.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, JsonValue

from tasks.epochs import mixture_of_run
from tasks.funnel import FunnelRow, funnel
from tasks.runs import RunRecord
from tasks.storage import Storage

Value = TypeVar("Value")
Pair = tuple[Value | None, Value | None]


class Setting(BaseModel, frozen=True):
    """A key of the recipe whose values differ; None: the key is not there, or null."""

    key: str
    values: tuple[JsonValue, JsonValue]


class StagePair(BaseModel, frozen=True):
    """What left a stage, by source."""

    stage: str
    source: str
    documents: tuple[int | None, int | None]
    bytes: tuple[int | None, int | None]
    tokens: tuple[int | None, int | None]


class ReasonPair(BaseModel, frozen=True):
    """Documents that a stage left out or edited for a reason."""

    stage: str
    source: str
    reason: str
    documents: tuple[int | None, int | None]


class MixturePair(BaseModel, frozen=True):
    """What a phase draws from a sub-source."""

    phase: str
    source: str
    share: tuple[float | None, float | None]
    tokens: tuple[int | None, int | None]
    epochs: tuple[float | None, float | None]


class Comparison(BaseModel, frozen=True):
    """The differences, and the figures that may be equal."""

    runs: tuple[str, str]
    settings: list[Setting]
    funnel: list[StagePair]
    reasons: list[ReasonPair]
    mixture: list[MixturePair]


def compare_runs(storage: Storage, one: RunRecord, other: RunRecord) -> Comparison:
    """Both runs as far as they came."""
    rows = [{(row.stage, row.source): row for row in funnel(storage, record)} for record in (one, other)]
    lines = [{(line.phase, line.source): line for line in mixture_of_run(storage, record)} for record in (one, other)]
    return Comparison(
        runs=(one.run_id, other.run_id),
        settings=list(differences(one.recipe, other.recipe)),
        funnel=[
            StagePair(
                stage=key[0], source=key[1], documents=_pair(pair, "rows_out"), bytes=_pair(pair, "bytes_out"),
                tokens=_pair(pair, "tokens"),
            )
            for key, pair in _joined(*rows)
        ],
        reasons=[
            ReasonPair(stage=key[0], source=key[1], reason=reason, documents=counts)
            for key, pair in _joined(*rows)
            for reason, counts in _joined(*(_reasons(row) for row in pair))
        ],
        mixture=[
            MixturePair(
                phase=key[0], source=key[1], share=_pair(pair, "share"), tokens=_pair(pair, "tokens"),
                epochs=_pair(pair, "epochs"),
            )
            for key, pair in _joined(*lines)
        ],
    )  # fmt: skip


def differences(one: JsonValue, other: JsonValue, path: str = "") -> Iterator[Setting]:
    """The keys of two recipes whose values differ, as deep as both have mappings or lists of one length."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys([*one, *other]):
            yield from differences(one.get(key), other.get(key), f"{path}.{key}" if path else key)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{path}[{index}]")
    elif one != other:
        yield Setting(key=path, values=(one, other))


def _joined(one: Mapping[Any, Value], other: Mapping[Any, Value]) -> Iterator[tuple[Any, Pair[Value]]]:
    """Every key of either, those of the first in its order first."""
    return ((key, (one.get(key), other.get(key))) for key in dict.fromkeys([*one, *other]))


def _pair(pair: Pair[Any], name: str) -> Any:
    return tuple(None if value is None else getattr(value, name) for value in pair)


def _reasons(row: FunnelRow | None) -> dict[str, int]:
    return {} if row is None else row.reasons
