"""Pictures as SVG text, drawn without a plotting library: for the report and, as data: URLs, for the dashboard.

Labels may come from data and are escaped. Colours are the eight of Okabe and Ito (2008), told apart by colour-blind
readers. A chart of 500 points has about 8 kB.
"""

import base64
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
PAPER = '<rect width="100%" height="100%" fill="#fff"/>'  # pages may be dark
WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 28, 40
MAX_POINTS = 500  # more can't be seen on 640 pixels
NUM_TICKS = 5


@dataclass(frozen=True)
class Series:
    """A named line; points whose y is not finite are left out."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]


@dataclass(frozen=True)
class Mark:
    """Something that happened at an x: a dashed upright line, whose label shows under the pointer."""

    x: float
    label: str
    colour: str


def line_chart(title: str, series: Sequence[Series], x_label: str, y_label: str, marks: Sequence[Mark] = ()) -> str:
    """Lines over common axes."""
    points = [_finite(line) for line in series]
    flat = [point for line in points for point in line]
    if not flat:
        return picture(WIDTH, HEIGHT, f'<text x="{LEFT}" y="{HEIGHT // 2}">{escape(title)}: nothing to draw</text>')
    xs, ys = [x for x, _ in flat], [y for _, y in flat]
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(ys), max(ys))
    x_of = _scale(x_ticks, LEFT, WIDTH - RIGHT)
    y_of = _scale(y_ticks, HEIGHT - BOTTOM, TOP)
    body = [f'<text x="{LEFT}" y="16" font-weight="bold">{escape(title)}</text>']
    for tick in y_ticks:
        y = y_of(tick)
        body.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        body.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{short_number(tick)}</text>')
    for tick in x_ticks:
        x = x_of(tick)
        body.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{short_number(tick)}</text>')
    for mark in marks:
        place = f'x1="{x_of(mark.x):.1f}" x2="{x_of(mark.x):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"'
        shape = f'<line {place} stroke="{mark.colour}" stroke-dasharray="4 3"/>'
        body.append(f"<g><title>{escape(mark.label)}</title>{shape}</g>")
    for index, (line, own) in enumerate(zip(series, points, strict=True)):
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in thin(own))
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        place = f'x="{WIDTH - RIGHT - 4}" y="{TOP + 12 + 15 * index}" text-anchor="end"'
        body.append(f'<text {place} fill="{colour}">{escape(line.name)}</text>')
    body.append(f'<text x="{(LEFT + WIDTH) // 2}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>')
    turn = f'transform="rotate(-90 14 {HEIGHT // 2})"'
    body.append(f'<text x="14" y="{HEIGHT // 2}" text-anchor="middle" {turn}>{escape(y_label)}</text>')
    return picture(WIDTH, HEIGHT, *body)


def data_url(svg: str) -> str:
    """The picture as a data: URL for Markdown and HTML images."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def ticks(low: float, high: float) -> list[float]:
    """About NUM_TICKS round values (1, 2 or 5 times a power of ten) that cover low..high."""
    span = (high - low) or abs(high) or 1.0
    step = 10 ** math.floor(math.log10(span / NUM_TICKS))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= NUM_TICKS)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(step * number, 12) for number in range(first, max(last, first + 1) + 1)]


def thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most about MAX_POINTS points: of each stretch its lowest and highest, so that a spike stays visible."""
    if len(points) <= MAX_POINTS:
        return list(points)
    size = -(-len(points) // (MAX_POINTS // 2))
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        extremes = {min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])}
        kept += sorted(extremes)
    return kept


def short_number(value: float) -> str:
    """1234567 -> 1.2M; small values keep three significant digits."""
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def _finite(line: Series) -> list[tuple[float, float]]:
    pairs = zip(line.xs, line.ys, strict=True)
    return [(x, y) for x, y in pairs if math.isfinite(x) and math.isfinite(y)]


def _scale(values: Sequence[float], start: float, end: float) -> Callable[[float], float]:
    low, high = values[0], values[-1]
    return lambda value: start + (end - start) * (value - low) / ((high - low) or 1)


def picture(width: int, height: int, *body: str) -> str:
    """SVG of shapes on white paper; texts in `body` must be escaped."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'{head} font-family="sans-serif" font-size="11">{PAPER}' + "".join(body) + "</svg>"
