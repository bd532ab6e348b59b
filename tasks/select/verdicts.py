"""The rules of select judged over tables of signals: what `select` does, and what `basemill whatif` computes again.

One verdict per rule: which rows fail it, what was measured, what was allowed. A signal that is null (not applied) fails
no rule. The first rule that fails, in judging order, is the reason for which a document goes: quality comes before
repetition, so that a short document is dropped for being short.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.select.expressions import parse_expression
from tasks.select.rules import ALL_CUT, EMPTY, LANGUAGE, OWN, RULES, SelectConfig, judging_order, threshold_of

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Verdict:
    """One rule over the rows of a table.

    values: what was measured; thresholds: what was allowed (both NaN where the rule is no simple comparison)
    quoted: signals that explain a drop where value and threshold don't, or not all of it
    """

    reason: str
    failing: Mask
    not_applied: Mask
    values: Floats
    thresholds: Floats
    quoted: tuple[str, ...] = ()


def verdicts(signals: pa.Table, config: SelectConfig) -> list[Verdict]:
    """The rules that are on, in the order in which they are judged; `config`: as it applies to the rows' source."""
    whole: dict[str, Verdict] = {}
    for rows, own in _by_language(signals, config):
        for verdict in _judge(signals.take(rows), own):
            if verdict.reason not in whole:
                whole[verdict.reason] = _blank(verdict, signals.num_rows)
            for name in ("failing", "not_applied", "values", "thresholds"):
                getattr(whole[verdict.reason], name)[rows] = getattr(verdict, name)
    return [whole[reason] for reason in sorted(whole, key=judging_order)]


def first_failing(found: list[Verdict], num_rows: int) -> NDArray[np.int64]:
    """For each row the index of the verdict that drops it; -1: it passes."""
    first = np.full(num_rows, -1)
    for index, verdict in enumerate(found):
        first[verdict.failing & (first < 0)] = index
    return first


def _by_language(signals: pa.Table, config: SelectConfig) -> Iterator[tuple[NDArray[np.int64], SelectConfig]]:
    """Rows and the config that applies to them."""
    others = np.ones(signals.num_rows, np.bool_)
    for code in config.by_language:
        own = np.asarray(pc.fill_null(pc.equal(signals["language"], code), False))
        others &= ~own
        if own.any():
            yield np.flatnonzero(own), config.for_language(code)
    if others.any():
        yield np.flatnonzero(others), config


def _blank(like: Verdict, num_rows: int) -> Verdict:
    no, unknown = np.zeros(num_rows, np.bool_), np.full(num_rows, np.nan)
    return Verdict(like.reason, no, no.copy(), unknown, unknown.copy(), like.quoted)


def _judge(signals: pa.Table, config: SelectConfig) -> Iterator[Verdict]:
    no, unknown = np.zeros(signals.num_rows, np.bool_), np.full(signals.num_rows, np.nan)
    is_blank = column_of(signals, "num_visible_chars") == 0
    is_cut = np.asarray(pc.list_value_length(signals["cut_spans"])) > 0
    yield Verdict(EMPTY, is_blank & ~is_cut, no, unknown, unknown)
    yield Verdict(ALL_CUT, is_blank & is_cut, no, unknown, unknown)
    if config.language and config.language.keep:
        wanted = pc.is_in(signals["language"], pa.array([*config.language.keep, None], pa.string()))
        yield Verdict(LANGUAGE, ~np.asarray(wanted), no, unknown, unknown, (LANGUAGE.split(".")[0],))
    for rule in RULES:
        if (threshold := threshold_of(config, rule)) is not None:
            values = column_of(signals, rule.signal)
            limits = np.full(signals.num_rows, threshold, np.float64)
            yield Verdict(rule.reason, rule.fails(values, threshold), np.isnan(values), values, limits, rule.quoted)
    for name, text in config.rules.items():
        if text is not None:
            yield _judge_expression(OWN + name, text, signals)


def _judge_expression(reason: str, text: str, signals: pa.Table) -> Verdict:
    expression = parse_expression(text)
    failing, not_applied = expression.judge(signals)
    if expression.threshold is None:
        unknown = np.full(signals.num_rows, np.nan)
        return Verdict(reason, failing, not_applied, unknown, unknown, expression.signals)
    values = column_of(signals, expression.signals[0])
    return Verdict(reason, failing, not_applied, values, np.full(signals.num_rows, expression.threshold))


def column_of(signals: pa.Table, name: str) -> Floats:
    """A signal as floats, NaN where it is null."""
    return np.asarray(signals[name].cast(pa.float64(), safe=False).to_numpy())
