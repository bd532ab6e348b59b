"""Distributions of signals before and after select, by source, with the thresholds drawn in.

Of each source up to MAX_DOCUMENTS documents are read, from parts in an order that nobody chose (all of them where there
are fewer), and judged with the run's settings by the very code of select. Shown are the signals whose rules fail most.
Counts of wide range have a logarithmic axis.
"""

from collections.abc import Iterator
from html import escape

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel

from tasks.charts import COLOURS, picture, short_number, ticks
from tasks.config import for_source
from tasks.manifest import load_manifest
from tasks.parts import read_part
from tasks.runs import RunRecord
from tasks.samples import rank_of
from tasks.select.expressions import parse_expression
from tasks.select.rules import OWN, RULES, SelectConfig
from tasks.select.verdicts import column_of
from tasks.signal_table import with_all_signals
from tasks.storage import Storage
from tasks.whatif import Tally, count, judge, never_firing

MAX_DOCUMENTS = 20_000  # of a source: a share of 1 % is known to 0.07 points
SHOWN_SIGNALS = 6
BINS = 40
WIDE = 20  # a 99th percentile so many times the median gets a logarithmic axis
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 470, 170, 12, 40, 24
BEFORE, LIMIT = "#c9ced6", "#c0392b"


class SourceRules(BaseModel, frozen=True):
    """What the rules of one source do to the documents that were read, and a picture per signal."""

    source: str
    documents: int
    is_sample: bool
    rules: list[tuple[str, int, int, int]]  # name; drops (first to fail), fails, alone
    never: list[str]
    pictures: list[str]


def select_pictures(storage: Storage, record: RunRecord) -> list[SourceRules]:
    """One entry per source that select judges; nothing before signals are measured."""
    lines = record.datasets_of("signals")
    if not lines:
        return []
    manifest, config = load_manifest(storage, lines[0].reference), SelectConfig.model_validate(record.recipe["select"])
    found = []
    for source in manifest.sources:
        own = for_source(config, source)
        parts = sorted(manifest.parts_of(source), key=lambda part: rank_of(part.key))
        read = (with_all_signals(table) for part in parts for table in read_part(storage, part))
        tables = list(_until(MAX_DOCUMENTS, read))
        if own.enabled and tables:
            documents = sum(part.rows or 0 for part in parts)
            found.append(source_rules(source, pa.concat_tables(tables), documents, own))
    return found


def source_rules(source: str, signals: pa.Table, documents: int, config: SelectConfig) -> SourceRules:
    """The rules of a source over some of its documents; `documents`: how many it has."""
    judged, tally = judge(signals, config), Tally()
    count(tally, signals, judged, judged)
    reasons = sorted(config.reasons, key=lambda reason: (-tally.drops[reason], -tally.fails[reason]))
    limits: dict[str, list[tuple[str, float]]] = {}
    for reason in sorted(reasons, key=lambda reason: -tally.fails[reason]):
        signal = signal_of(reason, config)
        verdict = next((verdict for verdict in judged.found if verdict.reason == reason), None)
        if signal and verdict and tally.fails[reason]:
            values = np.unique(verdict.thresholds[~np.isnan(verdict.thresholds)])
            limits.setdefault(signal, []).extend((reason, float(value)) for value in values)
    return SourceRules(
        source=source,
        documents=signals.num_rows,
        is_sample=signals.num_rows < documents,
        rules=[
            (name, tally.drops[name], tally.fails[name], tally.alone[name]) for name in reasons if tally.fails[name]
        ],
        never=never_firing(config, tally),
        pictures=[
            distribution(f"{source}: {signal}", column_of(signals, signal), judged.passing, thresholds)
            for signal, thresholds in list(limits.items())[:SHOWN_SIGNALS]
        ],
    )


def signal_of(reason: str, config: SelectConfig) -> str | None:
    """The signal that a rule compares with its threshold; None where it is no simple comparison."""
    if reason.startswith(OWN):
        text = config.rules.get(reason.removeprefix(OWN))
        expression = parse_expression(text) if text else None
        return expression.signals[0] if expression and expression.threshold is not None else None
    return next((rule.signal for rule in RULES if rule.reason == reason), None)


def distribution(
    title: str, values: NDArray[np.float64], passing: NDArray[np.bool_], limits: list[tuple[str, float]]
) -> str:
    """A histogram of all documents in grey, of those that pass in colour, and a line per threshold."""
    is_known = ~np.isnan(values)
    values, passing = values[is_known], passing[is_known]
    body = [f'<text x="{LEFT}" y="15" font-weight="bold">{escape(title)}</text>']
    if not len(values):
        return picture(WIDTH, HEIGHT, *body, f'<text x="{LEFT}" y="60">measured of no document</text>')
    low, high = (float(q) for q in np.quantile(values, [0.0, 0.99]))
    low, high = min(low, *(limit for _, limit in limits)), max(high, *(limit * 1.05 for _, limit in limits))
    is_wide = low >= 0 and high > WIDE * max(float(np.median(values)), 1e-9) and high > WIDE
    ends = np.log1p([low, high]) if is_wide else np.array([low, high])
    edges = np.linspace(ends[0], ends[1] if ends[1] > ends[0] else ends[0] + 1, BINS + 1)
    places = np.clip(np.log1p(values) if is_wide else values, edges[0], edges[-1])
    counts = np.histogram(places, edges)[0], np.histogram(places[passing], edges)[0]
    body += _bars(counts)
    body += _axis(edges, is_wide)
    for index, (reason, limit) in enumerate(limits):
        x = _x(float(np.log1p(limit)) if is_wide else limit, edges)
        text = f"{reason} {limit:g}"
        side = "end" if x > WIDTH / 2 else "start"
        body.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 12}" y2="{HEIGHT - BOTTOM}" stroke="{LIMIT}" '
            f'stroke-dasharray="4 3"/><text x="{x + (4 if side == "start" else -4):.1f}" y="{TOP - 4 + 12 * index}" '
            f'text-anchor="{side}" fill="{LIMIT}">{escape(text)}</text>'
        )
    return picture(WIDTH, HEIGHT, *body)


def _bars(counts: tuple[NDArray[np.int64], NDArray[np.int64]]) -> Iterator[str]:
    """Square roots of the counts are drawn, so that what is rare can be seen beside what is common."""
    tallest, width = np.sqrt(max(counts[0].max(), 1)), (WIDTH - 2 * LEFT) / BINS
    for column, colour in zip(counts, (BEFORE, COLOURS[0]), strict=True):
        for number, value in enumerate(column.tolist()):
            if value:
                height = max(1.0, (HEIGHT - TOP - BOTTOM) * np.sqrt(value) / tallest)
                x, y = LEFT + number * width, HEIGHT - BOTTOM - height
                yield f'<rect x="{x:.1f}" y="{y:.1f}" width="{width - 1:.1f}" height="{height:.1f}" fill="{colour}"/>'


def _axis(edges: NDArray[np.float64], is_wide: bool) -> Iterator[str]:
    y = HEIGHT - BOTTOM
    yield f'<line x1="{LEFT}" x2="{WIDTH - LEFT}" y1="{y}" y2="{y}" stroke="#888"/>'
    places = [tick for tick in ticks(edges[0], edges[-1]) if edges[0] <= tick <= edges[-1]]
    if is_wide:
        powers = [float(np.log1p(10.0**power)) for power in range(9)]
        places = [edges[0], *(place for place in powers if edges[0] + 0.5 < place <= edges[-1])]
    for place in places:
        x, value = _x(place, edges), round(float(np.expm1(place)), 3) if is_wide else place
        side = "start" if x < LEFT + 9 else "end" if x > WIDTH - LEFT - 9 else "middle"
        yield f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="{side}" fill="#444">{short_number(value)}</text>'


def _x(place: float, edges: NDArray[np.float64]) -> float:
    return LEFT + float((WIDTH - 2 * LEFT) * (place - edges[0]) / (edges[-1] - edges[0]))


def _until(limit: int, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    seen = 0
    for table in tables:
        if seen >= limit:
            return
        yield table.slice(0, limit - seen)
        seen += table.num_rows
