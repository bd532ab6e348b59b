"""The held-out losses of an evaluation, a row for every source: also for one that had no held-out text."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tasks.evaluate import ALL_SOURCES, HELD_OUT, losses_of
from tasks.manifest import Manifest

NO_TEXT = "no held-out text"
BITS = ("bits_per_byte_before", "bits_per_byte_after")

Shown = TypeVar("Shown")


def shown_figures(row: dict[str, Any], names: Sequence[str], shape: Callable[[float], Shown]) -> list[Shown | str]:
    """These figures of a row, shaped; where there are none the first place says why, and the others stay empty."""
    values = [row[name] for name in names]
    missing = values.index(None) if None in values else -1
    return [shape(v) if v is not None else NO_TEXT * (place == missing) for place, v in enumerate(values)]


def score_rows(evaluated: Manifest) -> list[dict[str, Any]]:
    """`losses` of the manifest; a source whose held-out packs are empty has 0 tokens, and null for each figure."""
    rows = {row["source"]: row for row in evaluated.extra["losses"]}
    roles = [line["role"] for line in evaluated.inputs]
    packed = [role.removeprefix(HELD_OUT) for role in roles if role.startswith(HELD_OUT)]
    empty = {name: {"source": name, **losses_of(0, 0, 0.0, 0.0)} for name in packed if name not in rows}
    return sorted((empty | rows).values(), key=lambda row: (row["source"] == ALL_SOURCES, row["source"]))
