"""A forecast of training as curves over tokens: SVG for an HTML page, block characters for a terminal."""

from collections.abc import Callable, Sequence
from pathlib import Path

import jinja2
from markupsafe import Markup

from tasks.charts import Series, line_chart, short_number
from tasks.schedule import Forecast, PhaseForecast, Point

BLOCKS = "▁▂▃▄▅▆▇█"
STRIP_CHARS = 72

Reading = Callable[[PhaseForecast, Point], float]
CURVES: dict[str, Reading] = {
    "learning rate": lambda phase, point: point.lr,
    "batch, tokens": lambda phase, point: point.batch_rows * phase.sequence_length,
    "sequence length": lambda phase, point: phase.sequence_length,
}


def schedule_page(forecast: Forecast) -> str:
    """A self-contained HTML page. Names come from the recipe and are escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parents[:2]), autoescape=True, undefined=jinja2.StrictUndefined
    )
    pictures = [
        Markup(line_chart(name, series_of(forecast, reading), "tokens", name)) for name, reading in CURVES.items()
    ]
    return environment.get_template("schedule.html").render(
        forecast=forecast, pictures=pictures, number=short_number, duration=duration
    )


def series_of(forecast: Forecast, reading: Reading) -> list[Series]:
    """One line per phase, each beginning where the phase before it in the recipe ends."""
    series, start = [], 0
    for phase in forecast.phases:
        xs = [float(start + point.tokens) for point in phase.curve]
        series.append(Series(phase.name, xs, [reading(phase, point) for point in phase.curve]))
        start += phase.tokens
    return series


def strip(series: Sequence[Series]) -> str:
    """The lines as one strip of block characters over equal stretches of tokens; the highest value is a full block."""
    points = [(x, y) for line in series for x, y in zip(line.xs, line.ys, strict=True)]
    if not points:
        return ""
    end, top = points[-1][0], max(y for _, y in points) or 1.0
    drawn, index = "", 0
    for column in range(STRIP_CHARS):
        while points[index][0] < end * (column + 0.5) / STRIP_CHARS:
            index += 1
        drawn += BLOCKS[min(len(BLOCKS) - 1, int(points[index][1] / top * len(BLOCKS)))]
    return drawn


def duration(seconds: float | None) -> str:
    """Days and hours, hours and minutes, or less."""
    if seconds is None:
        return "unknown"
    for unit, next_unit, size, smaller in (("d", "h", 86400, 3600), ("h", "min", 3600, 60), ("min", "s", 60, 1)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} {int(seconds % size // smaller)} {next_unit}"
    return f"{seconds:.0f} s"
