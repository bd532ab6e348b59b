"""The funnel as a flow picture: a lane per source, as thick as it has documents, and what leaves it at each stage.

Thickness is to one scale for all sources (at least a hairline, so that small ones can be seen). What a stage drops or
can't read bends down, in red, with its number; reasons are in the tooltip. Buckets of a source part at mix.
"""

from collections.abc import Sequence
from html import escape

from tasks.charts import COLOURS, picture, short_number
from tasks.funnel import FunnelRow
from tasks.splits import whole_source

WIDTH = 980
LABELS, RIGHT, TOP = 90, 170, 46
FLOW_HEIGHT = 220  # pixels that all documents take together
HAIRLINE = 1.5
LANE_GAP = 34  # room for what leaves, and its number
NODE_WIDTH, TAIL = 7, 40
DROPPED = "#c0392b"
SHOWN_REASONS = 8


def flow_picture(rows: Sequence[FunnelRow]) -> str:
    """SVG of document stages from ingest to mix; rows of packs are no documents and are left out."""
    rows = [row for row in rows if row.stage != "pack"]
    stages = list(dict.fromkeys(row.stage for row in rows))
    sources = list(dict.fromkeys(whole_source(row.source) for row in rows))
    came = sum(row.rows_in for row in rows if row.stage == "ingest") or max((row.rows_in for row in rows), default=1)
    scale = FLOW_HEIGHT / max(came, 1)
    step = (WIDTH - LABELS - RIGHT - NODE_WIDTH) / max(1, len(stages) - 1)
    x_of = {stage: LABELS + step * index for index, stage in enumerate(stages)}
    body = ['<text x="8" y="16" font-weight="bold">documents from stage to stage</text>']
    body += [f'<text x="{x:.0f}" y="36" text-anchor="middle">{escape(stage)}</text>' for stage, x in x_of.items()]
    y = float(TOP)
    for index, source in enumerate(sources):
        own = [row for row in rows if whole_source(row.source) == source]
        drawn, height = _lane(own, x_of, y, scale, COLOURS[index % len(COLOURS)])
        body += [*drawn, f'<text x="8" y="{y + 10:.1f}" font-weight="bold">{escape(source)}</text>']
        body.append(f'<text x="8" y="{y + 23:.1f}" fill="#666">{short_number(own[0].rows_in)} in</text>')
        y += height + LANE_GAP
    return picture(WIDTH, round(y), *body)


def _lane(
    rows: list[FunnelRow], x_of: dict[str, float], top: float, scale: float, colour: str
) -> tuple[list[str], float]:
    """The shapes of one source, and the height that they take."""
    body: list[str] = []
    first, height = rows[0], 0.0
    before: tuple[float, float] | None = None  # right edge of the last node, and how thick its flow leaves it
    for stage in dict.fromkeys(row.stage for row in rows):
        own, x = [row for row in rows if row.stage == stage], x_of[stage]
        came, kept = (_thick(sum(getattr(row, name) for row in own), scale) for name in ("rows_in", "rows_out"))
        if before is not None:
            body.append(_ribbon(before[0], x, (top, before[1]), (top, came), colour, 0.35))
        left = sum(row.rows_in - row.rows_out for row in own)
        if left:
            body += _tail(own, left, x + NODE_WIDTH, (top + min(kept, came), top + came), _thick(left, scale))
        body.append(_node(x, top, came, colour, own))
        before, height = (x + NODE_WIDTH, kept), max(height, came)
    last = [row for row in rows if row.stage == rows[-1].stage and (row.rows_out or row.source == first.source)]
    for index, row in enumerate(last):  # buckets, one under the other
        share = f" ({row.rows_out / first.rows_in:.0%})" if first.rows_in else ""
        text = f"{row.source}: {short_number(row.rows_out)}{share}"
        body.append(
            f'<text x="{WIDTH - RIGHT + 14}" y="{top + 10 + 13 * index:.1f}" fill="{colour}">{escape(text)}</text>'
        )
    return body, max(height, 13.0 * len(last))


def _thick(documents: int, scale: float) -> float:
    return max(HAIRLINE, documents * scale) if documents else 0.0


def _ribbon(
    x1: float, x2: float, start: tuple[float, float], end: tuple[float, float], colour: str, opacity: float
) -> str:
    """A band from x1 to x2; `start` and `end`: top and thickness."""
    middle = (x1 + x2) / 2
    (y1, thick1), (y2, thick2) = start, end
    upper = f"M{x1:.1f},{y1:.1f}C{middle:.1f},{y1:.1f} {middle:.1f},{y2:.1f} {x2:.1f},{y2:.1f}"
    lower = f"L{x2:.1f},{y2 + thick2:.1f}C{middle:.1f},{y2 + thick2:.1f} {middle:.1f},{y1 + thick1:.1f} "
    return f'<path d="{upper}{lower}{x1:.1f},{y1 + thick1:.1f}Z" fill="{colour}" fill-opacity="{opacity}"/>'


def _node(x: float, top: float, thick: float, colour: str, rows: list[FunnelRow]) -> str:
    text = "; ".join(f"{row.source}, {row.stage}: {row.rows_in:,} in, {row.rows_out:,} out" for row in rows)
    rect = f'<rect x="{x:.1f}" y="{top:.1f}" width="{NODE_WIDTH}" height="{max(thick, HAIRLINE):.1f}" fill="{colour}">'
    return f"{rect}<title>{escape(text)}</title></rect>"


def _tail(rows: list[FunnelRow], left: int, x: float, span: tuple[float, float], thick: float) -> list[str]:
    """What leaves: a band that bends down, its number, and the reasons as a tooltip."""
    reasons: dict[str, int] = {}
    for row in rows:
        for name, count in row.reasons.items():
            reasons[name] = reasons.get(name, 0) + count
    ordered = sorted(reasons.items(), key=lambda entry: (-entry[1], entry[0]))[:SHOWN_REASONS]
    title = f"<title>{escape('; '.join(f'{name} {count:,}' for name, count in ordered))}</title>"
    y, bottom = span[0], span[1] + 6
    band = _ribbon(x, x + TAIL, (y, max(span[1] - y, HAIRLINE)), (bottom, min(thick, 12.0)), DROPPED, 0.45)
    place = f'x="{x + TAIL + 2:.1f}" y="{bottom + min(thick, 12.0) / 2 + 4:.1f}"'
    number = f'<text {place} fill="{DROPPED}" font-size="10">-{short_number(left)}</text>'
    return [f"<g>{title}{band}{number}</g>"]
