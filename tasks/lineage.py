"""The graph of a run: its datasets and which one was made from which; as a picture."""

from html import escape

from pydantic import BaseModel

from tasks.charts import COLOURS, PAPER
from tasks.manifest import load_manifest
from tasks.runs import RunRecord
from tasks.storage import Storage

BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y = 168, 40, 36, 18
LABEL_CHARS = 24


class Node(BaseModel, frozen=True):
    """One dataset. `inputs`: references of the datasets it was made from, of this run only."""

    label: str
    reference: str
    made_by: str
    is_cached: bool
    rows: int | None  # None of files that hold no rows
    inputs: list[str]


def read_graph(storage: Storage, record: RunRecord) -> list[Node]:
    """The datasets of a run in the order in which they were needed, what one was made from before it."""
    known = {line.reference for line in record.datasets}
    nodes = []
    for line in record.datasets:
        manifest = load_manifest(storage, line.reference)
        inputs = [f"{entry['stage']}/{entry['fingerprint']}" for entry in manifest.inputs]
        nodes.append(
            Node(
                label=line.label,
                reference=line.reference,
                made_by=line.made_by,
                is_cached=line.cached,
                rows=manifest.totals.get("rows_out") or (0 if manifest.schema else None),
                inputs=[reference for reference in inputs if reference in known],
            )
        )
    return _inputs_first(nodes)


def _inputs_first(nodes: list[Node]) -> list[Node]:
    """The same nodes: a pinned dataset stands before what it was made from, where a run needed both."""
    by_reference, ordered = {node.reference: node for node in nodes}, dict[str, Node]()

    def place(node: Node) -> None:
        for before in node.inputs:
            if before not in ordered:
                place(by_reference[before])
        ordered.setdefault(node.reference, node)

    for node in nodes:
        place(node)
    return list(ordered.values())


def graph_svg(nodes: list[Node]) -> str:
    """Boxes in layers: each dataset one layer below the lowest of its inputs."""
    layers: dict[str, int] = {}
    places: dict[str, tuple[int, int]] = {}
    filled: dict[int, int] = {}
    for node in nodes:
        layer = 1 + max((layers[before] for before in node.inputs), default=-1)
        layers[node.reference] = layer
        places[node.reference] = (
            8 + filled.get(layer, 0) * (BOX_WIDTH + GAP_X),
            8 + layer * (BOX_HEIGHT + GAP_Y),
        )
        filled[layer] = filled.get(layer, 0) + 1
    width = 16 + max(filled.values(), default=1) * (BOX_WIDTH + GAP_X)
    height = 16 + (1 + max(layers.values(), default=0)) * (BOX_HEIGHT + GAP_Y)
    edges = [_edge(places[before], places[node.reference]) for node in nodes for before in node.inputs]
    boxes = [_box(node, *places[node.reference]) for node in nodes]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'{head} font-family="sans-serif" font-size="11">{PAPER}' + "".join(edges + boxes) + "</svg>"


def _edge(start: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1 = start[0] + BOX_WIDTH // 2, start[1] + BOX_HEIGHT
    x2, y2 = end[0] + BOX_WIDTH // 2, end[1]
    return f'<path d="M{x1},{y1} C{x1},{y1 + GAP_Y} {x2},{y2 - GAP_Y} {x2},{y2}" fill="none" stroke="#999"/>'


def _box(node: Node, x: int, y: int) -> str:
    colour = COLOURS[7] if node.is_cached else COLOURS[0]
    box = f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="4" fill="#fff" stroke="{colour}"/>'
    name = escape(node.label if len(node.label) <= LABEL_CHARS else node.label[: LABEL_CHARS - 1] + "…")
    facts = f"{node.reference.partition('/')[2][:8]}{f', {node.rows:,} rows' if node.rows is not None else ''}"
    title = f"<title>{escape(node.label)}: {escape(node.reference)}, made by run {escape(node.made_by)}</title>"
    texts = (
        f'<text x="{x + 8}" y="{y + 16}" font-weight="bold">{name}</text><text x="{x + 8}" y="{y + 31}">{facts}</text>'
    )
    return f"<g>{title}{box}{texts}</g>"
