"""What other rules would keep and drop, from the stored signals of a run (`basemill whatif`): no Ray, nothing written.

Both the run's select settings and the changed ones are judged by tasks/select/verdicts.py over the same tables of
signals, the very code of the stage, so that a rerun with these settings drops the same documents for the same reasons.
Per rule: drops (the first rule that failed), fails (whether first or not) and alone (the document fails no other rule:
what would come back without this one). Documents that a drop list names are judged like all others. 1 million
documents take about 10 s on one core.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel

from tasks.config import for_source
from tasks.errors import ConfigError
from tasks.manifest import Manifest, load_manifest
from tasks.parts import Part, read_part
from tasks.recipe import Recipe, parse_override, with_override
from tasks.runs import RunRecord
from tasks.samples import Sample, rank_of, read_texts
from tasks.select import loses_too_much
from tasks.select.rules import ALL_CUT, EMPTY, SelectConfig
from tasks.select.verdicts import Verdict, first_failing, verdicts
from tasks.signal_table import with_all_signals
from tasks.storage import Storage

DEFAULT_SAMPLES = 3
HASH_FACTOR = 2654435761  # Knuth's: neighbours end far apart
COUNTS = ("documents", "kept_before", "kept", "newly_kept", "newly_dropped", "chars_before", "chars")
TINY = 1e-9  # in the place of a threshold of 0


class RuleEffect(BaseModel, frozen=True):
    """One rule in one source, in documents. `drops_before`: under the run's own settings; the rest under the others."""

    source: str
    reason: str
    drops_before: int
    drops: int
    fails: int
    alone: int
    not_applied: int


class SourceEffect(BaseModel, frozen=True):
    """One source. `never`: rules that judge documents and fail none; `is_stopped`: by the guard rail."""

    source: str
    documents: int
    kept_before: int
    kept: int
    newly_kept: int
    newly_dropped: int
    chars_before: int
    chars: int
    never: list[str]
    is_stopped: bool


class WhatIf(BaseModel, frozen=True):
    """The answer. Samples are the changed documents nearest to their threshold, with the rule that decided them."""

    run_id: str
    overrides: list[str]
    sources: list[SourceEffect]
    rules: list[RuleEffect]
    newly_kept: list[Sample]
    newly_dropped: list[Sample]


@dataclass
class Tally:
    """Counts of one source."""

    documents: Counter[str] = field(default_factory=Counter)
    drops_before: Counter[str] = field(default_factory=Counter)
    drops: Counter[str] = field(default_factory=Counter)
    fails: Counter[str] = field(default_factory=Counter)
    alone: Counter[str] = field(default_factory=Counter)
    not_applied: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Judged:
    """The rows of a table under one config."""

    found: list[Verdict]
    first: NDArray[np.int64]

    @property
    def passing(self) -> NDArray[np.bool_]:
        """Which rows stay."""
        return self.first < 0


@dataclass(frozen=True)
class Changed:
    """A document whose fate changes; `distance` of its value from the threshold, as a share of the threshold."""

    distance: float
    rank: int
    part: Part
    sample: Sample


def what_if(
    storage: Storage, record: RunRecord, overrides: Sequence[str] = (), num_samples: int = DEFAULT_SAMPLES
) -> WhatIf:
    """The effect of `select.key.path=value` settings. Raises ConfigError on other keys, or a run without signals."""
    recipe, after = Recipe.parse(record.recipe), changed_config(record, overrides)
    before = recipe.select
    documents, signals = _datasets(storage, record)
    tallies = {source: Tally() for source in recipe.ingest.sources}  # also those that gave no document
    changes: dict[bool, list[Changed]] = {True: [], False: []}
    for part, measured in zip(documents.parts, signals.parts, strict=True):
        source = part.source or ""
        tally = tallies[source]
        settings = for_source(before, source), for_source(after, source)
        for table in map(with_all_signals, read_part(storage, measured)):
            old, new = (judge(table, config) for config in settings)
            count(tally, table, old, new)
            for is_kept, judged in ((True, old), (False, new)):
                rows = np.flatnonzero((old.passing != new.passing) & (new.passing == is_kept))
                found = [_changed(table, row, judged, part, is_kept) for row in _nearest(judged, rows, num_samples)]
                changes[is_kept] = sorted([*changes[is_kept], *found], key=lambda c: (c.distance, c.rank))[:num_samples]
    return WhatIf(
        run_id=record.run_id,
        overrides=list(overrides),
        sources=[_source_effect(name, tally, for_source(after, name)) for name, tally in sorted(tallies.items())],
        rules=[
            effect
            for name, tally in sorted(tallies.items())
            for effect in _rule_effects(name, tally, for_source(before, name), for_source(after, name))
        ],
        newly_kept=_with_texts(storage, changes[True]),
        newly_dropped=_with_texts(storage, changes[False]),
    )


def changed_config(record: RunRecord, overrides: Sequence[str]) -> SelectConfig:
    """The run's select settings with others laid over them. Raises ConfigError."""
    values = record.recipe
    for override in overrides:
        parsed = parse_override(override)
        if [*parsed] != ["select"]:
            raise ConfigError(
                f"--set {override}: only keys of select can be judged by stored signals; see basemill plan"
            )
        if isinstance(parsed["select"], dict) and "drop_lists" in parsed["select"]:
            raise ConfigError(f"--set {override}: a drop list names documents, which no signal says; see basemill plan")
        values = with_override(values, override)
    return Recipe.parse(values).select


def _datasets(storage: Storage, record: RunRecord) -> tuple[Manifest, Manifest]:
    """The documents that were measured, and their signals."""
    lines = record.datasets_of("signals")
    if not lines:
        raise ConfigError(f"run {record.run_id} has no signals; see `basemill show {record.run_id}`")
    signals = load_manifest(storage, lines[0].reference)
    [made_of] = [entry for entry in signals.inputs if entry["role"] == "documents"]
    return load_manifest(storage, f"{made_of['stage']}/{made_of['fingerprint']}"), signals


def judge(signals: pa.Table, config: SelectConfig) -> Judged:
    """The rows under one config, as it applies to their source."""
    found = verdicts(signals, config) if config.enabled else []
    return Judged(found, first_failing(found, signals.num_rows))


def count(tally: Tally, signals: pa.Table, old: Judged, new: Judged) -> None:
    """Add the rows, judged under the run's settings and under others, to the counts."""
    chars = np.asarray(pc.fill_null(signals["num_chars"], 0))
    tally.documents.update(
        documents=signals.num_rows,
        kept_before=int(old.passing.sum()),
        kept=int(new.passing.sum()),
        newly_kept=int((new.passing & ~old.passing).sum()),
        newly_dropped=int((old.passing & ~new.passing).sum()),
        chars_before=int(chars[old.passing].sum()),
        chars=int(chars[new.passing].sum()),
    )
    num_failing = sum((verdict.failing.astype(np.int64) for verdict in new.found), np.zeros(signals.num_rows, np.int64))
    for index, verdict in enumerate(old.found):
        tally.drops_before[verdict.reason] += int((old.first == index).sum())
    for index, verdict in enumerate(new.found):
        tally.drops[verdict.reason] += int((new.first == index).sum())
        tally.fails[verdict.reason] += int(verdict.failing.sum())
        tally.alone[verdict.reason] += int((verdict.failing & (num_failing == 1)).sum())
        tally.not_applied[verdict.reason] += int(verdict.not_applied.sum())


def never_firing(config: SelectConfig, tally: Tally) -> list[str]:
    """Rules that judge documents of the source and fail none; those whose signals are off judge none."""
    return [
        reason
        for reason in config.reasons
        if not tally.fails[reason]
        and tally.not_applied[reason] < tally.documents["documents"]
        and reason not in (EMPTY, ALL_CUT)
    ]


def _nearest(judged: Judged, rows: NDArray[np.int64], count: int) -> list[int]:
    """The rows nearest to the threshold that drops them; equally near ones from all over the table."""
    distances = np.array([_distance(judged, row) for row in rows.tolist()])
    chosen: list[int] = rows[np.lexsort((rows * HASH_FACTOR % (1 << 32), distances))[:count]].tolist()
    return chosen


def _distance(judged: Judged, row: int) -> float:
    verdict = judged.found[judged.first[row]]
    value, threshold = float(verdict.values[row]), float(verdict.thresholds[row])
    return np.inf if np.isnan(threshold) else abs(value - threshold) / max(abs(threshold), TINY)


def _changed(signals: pa.Table, row: int, judged: Judged, part: Part, is_kept: bool) -> Changed:
    """`judged`: the settings under which it is dropped."""
    verdict, distance = judged.found[judged.first[row]], _distance(judged, row)
    facts = {} if np.isinf(distance) else {"value": verdict.values[row], "threshold": verdict.thresholds[row]}
    doc_id, action = signals["doc_id"][row].as_py(), "keep" if is_kept else "drop"
    sample = Sample(doc_id=doc_id, source=part.source or "", action=action, reason=verdict.reason, **facts)
    return Changed(distance, rank_of(doc_id), part, sample)


def _source_effect(source: str, tally: Tally, config: SelectConfig) -> SourceEffect:
    counts = {name: tally.documents[name] for name in COUNTS}
    return SourceEffect(
        source=source,
        never=never_firing(config, tally),
        is_stopped=loses_too_much(counts["documents"], counts["documents"] - counts["kept"], config),
        **counts,
    )


def _rule_effects(source: str, tally: Tally, before: SelectConfig, after: SelectConfig) -> list[RuleEffect]:
    """Every rule that is on before or after, those that drop most first."""
    names = ("drops_before", "drops", "fails", "alone", "not_applied")
    effects = [
        RuleEffect(source=source, reason=reason, **{name: getattr(tally, name)[reason] for name in names})
        for reason in dict.fromkeys([*before.reasons, *after.reasons])
    ]
    return sorted(effects, key=lambda effect: (-max(effect.drops, effect.drops_before), -effect.fails))


def _with_texts(storage: Storage, changes: list[Changed]) -> list[Sample]:
    texts = read_texts(storage, [(change.part, change.sample.doc_id) for change in changes])
    return [change.sample.model_copy(update={"text": texts[change.sample.doc_id]}) for change in changes]
