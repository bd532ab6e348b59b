"""What the command prints: progress bars on a terminal and plain lines elsewhere, tables, JSON."""

import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import orjson
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from tasks.epochs import MixtureLine
from tasks.errors import in_words
from tasks.evaluate.scores import BITS, shown_figures
from tasks.evaluate.task_scores import score_text
from tasks.funnel import FunnelRow
from tasks.journal import LISTENERS, Event

PLAIN_SECONDS = 15.0  # between two plain progress lines of one stage
MEGABYTE = 1e6

# What could steer a terminal or turn the order of what is shown: control characters but tab and line feed, marks and
# overrides of direction (UAX 9), line and paragraph separators
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
CELL_CHARS = 300  # of one value among others; JSON has all of it
CONTROL_MARK = "\N{MIDDLE DOT}"
PIPE_WIDTH = 1000  # columns where no terminal limits them: a line is a line

out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else PIPE_WIDTH)
err = Console(highlight=False, soft_wrap=True, width=None if sys.stderr.isatty() else PIPE_WIDTH, stderr=True)


def clean(text: str) -> str:
    """Text that is safe to show: control characters of documents do not reach the terminal."""
    return CONTROL.sub(CONTROL_MARK, text)


def say(text: str = "") -> None:
    """A line for people."""
    out.print(clean(text), markup=False)


def say_progress(text: str, style: str | None = None) -> None:
    """A line beside the results, on stderr."""
    err.print(clean(text), markup=False, style=style)


def say_error(text: str) -> None:
    """What went wrong, on stderr."""
    say_progress(text, style="red")


def say_json(value: object) -> None:
    """Figures for programs; a terminal that shows them sees escapes where control characters are."""
    data = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()
    sys.stdout.write(CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", data) + "\n")


def say_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None) -> None:
    """A table; numbers stand right, with thousands separators."""
    table = Table(title=None if title is None else escape(clean(title)), title_justify="left", box=None, pad_edge=False)
    for index, name in enumerate(columns):
        is_number = any(isinstance(row[index], (int, float)) for row in rows)
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(escape(_cell(value)) for value in row))
    out.print(table)


def listed(facts: dict[str, Any]) -> str:
    """Named values on one line, long ones cut."""
    texts = {name: str(value) for name, value in facts.items()}
    return ", ".join(f"{name}={text[:CELL_CHARS]}{'...' * (len(text) > CELL_CHARS)}" for name, text in texts.items())


def say_funnel(rows: Sequence[FunnelRow]) -> None:
    """One table per source."""
    for source in dict.fromkeys(row.source for row in rows):
        say_table(
            ("stage", "in", "out", "MB out", "tokens", "left out or edited, why"),
            [
                (
                    row.stage,
                    row.rows_in,
                    row.rows_out,
                    round(row.bytes_out / MEGABYTE, 2),
                    f"{'~' if row.stage == 'mix' else ''}{row.tokens:,}" if row.tokens else "",  # an estimate
                    row.top_reasons,
                )
                for row in rows
                if row.source == source
            ],
            title=f"Source {source}",
        )
        say()


def say_mixture(lines: Sequence[MixtureLine]) -> None:
    """What every phase draws from each sub-source, with a warning where it is read too often."""
    rows = [
        (
            line.phase, line.source, f"{line.share:.1%}", line.tokens,
            f"{'about ' if line.is_estimate else ''}{line.available:,}" if line.available is not None else "?",
            f"{line.epochs:.2f}" if line.epochs is not None else "?", line.warning,
        )
        for line in lines
    ]  # fmt: skip
    say_table(("phase", "source", "share", "tokens drawn", "of", "epochs so far", ""), rows)


def say_summary(figures: dict[str, Any], dashboard: str, is_lasting: bool) -> None:
    """What `run` prints at its end; a dashboard that is not lasting goes with the last run."""
    say()
    say_funnel([FunnelRow.model_validate(row) for row in figures["funnel"]])
    for label, facts in figures["training"].items():
        size, active = figures["parameters"], figures["active_parameters"]
        parameters = f"{size:,} parameters" + (f" ({active:,} of them active)" if active < size else "")
        mfu = f", MFU {facts['mfu']:.1%}" if facts["mfu"] is not None else ""
        say(
            f"{label}: {parameters}, {facts['tokens']:,} tokens in {facts['step']:,} steps, {facts['seconds']:,.0f} s "
            f"({facts['tokens_per_second']:,.0f} tokens/s{mfu}), "
            f"loss {facts['loss_first']:.3f} -> {facts['loss_last']:.3f}{_trouble(facts, figures['run_id'])}"
        )
    if figures["losses"]:
        say()
        rows = [
            (row["source"], row["tokens"], *shown_figures(row, BITS, lambda value: round(value, 3)))
            for row in figures["losses"]
        ]
        say_table(("held-out text of", "tokens", "bits per byte before", "after"), rows)
        for name, status in figures["evaluation_sets"].items():
            say(f"evaluation set {name}: {status}")
    if figures["tasks"]:
        say()
        rows = [(line["task"], line.get("items", 0), score_text(line)) for line in figures["tasks"]]
        say_table(("task", "items", "score"), rows)
    for sample in figures["samples"][:1]:
        say(f"\nThe model writes after {sample['prompt']!r}:\n{sample['text']}")
    say()
    for name in ("model", "report"):
        if figures[name]:
            say(f"{name:<10} {figures[name]}")
    say(f"{'dashboard':<10} {dashboard}{'' if is_lasting else '  (`basemill up` serves it when no run is on)'}")


def _trouble(facts: dict[str, Any], run_id: str) -> str:
    """What training skipped and decided by itself, if anything."""
    kinds = Counter(decision["kind"] for decision in facts["decisions"])
    counts = {"skipped step": len(facts["skipped_steps"])} | kinds
    told = ", ".join(
        f"{number:,} {name.replace('roll b', 'roll-b')}{'s' * (number > 1)}"
        for name, number in counts.items()
        if number
    )
    return (f"; {told}" + (f" (basemill incidents {run_id})" if kinds else "")) if told else ""


def compared(value: float | None, threshold: float | None) -> str:
    """A value beside its limit."""
    if value is None:
        return ""
    return f"{value:.4g}" + ("" if threshold is None else f" (limit {threshold:.4g})")


def _cell(value: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value:,}"
    return clean(str(value))


@contextmanager
def show_run(is_quiet: bool = False) -> Iterator[None]:
    """While it lasts, the events of the run are shown on stderr: bars on a terminal, lines elsewhere."""
    if is_quiet:
        yield
        return
    shown: _Bars | _Lines = _Bars() if err.is_terminal else _Lines()
    handler: logging.Handler = RichHandler(logging.WARNING, console=err, show_time=False, show_path=False)
    if not err.is_terminal:  # rich fills a line with blanks up to its width
        handler = logging.StreamHandler(sys.stderr)
        handler.setLevel(logging.WARNING)
        handler.setFormatter(logging.Formatter("%(levelname)-8s %(message)s"))
    handler.addFilter(_clean_record)
    loggers = [logging.getLogger(name) for name in ("tasks", "flows", "model")]
    for logger in loggers:
        logger.addHandler(handler)
    LISTENERS.append(shown.listen)
    try:
        yield
    finally:
        LISTENERS.remove(shown.listen)
        shown.close()
        for logger in loggers:
            logger.removeHandler(handler)


def _clean_record(record: logging.LogRecord) -> bool:
    record.msg, record.args = clean(record.getMessage()), ()
    return True


class _Lines:
    """One line per dataset, and one now and then while a stage works."""

    def __init__(self) -> None:
        self.said = time.monotonic()

    def listen(self, event: Event) -> None:
        kind = event["kind"]
        if kind == "progress":
            if time.monotonic() - self.said < PLAIN_SECONDS or not event["total"]:
                return
            unit = "tokens" if event["stage"] == "train" else "parts"
            self._say(f"{event['stage']}: {event['done']:,} of {event['total']:,} {unit}")
        elif (line := line_of(event)) is not None:
            self._say(line)

    def close(self) -> None:
        """Nothing to take down."""

    def _say(self, line: str) -> None:
        self.said = time.monotonic()
        say_progress(line)


class _Bars:
    """One bar per dataset that is worked on; a finished one becomes a line above."""

    def __init__(self) -> None:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self.progress = Progress(*columns, console=err, transient=True)
        self.progress.start()
        self.bar: TaskID | None = None

    def listen(self, event: Event) -> None:
        kind = event["kind"]
        if kind == "stage started":
            self.bar = self.progress.add_task(event["label"], total=None)
        elif kind == "progress" and self.bar is not None:
            self.progress.update(self.bar, completed=event["done"], total=event["total"], description=event["stage"])
        elif (line := line_of(event)) is not None:
            if kind != "message" and self.bar is not None:
                self.progress.remove_task(self.bar)
                self.bar = None
            say_progress(line)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self.progress.stop()


def line_of(event: Event) -> str | None:
    """One line for an event worth one."""
    kind = event["kind"]
    if kind == "run started":
        return f"run {event['run_id']}, attempt {event['attempt']}"
    if kind == "stage finished":
        what = f"cached (run {event['made_by']})" if event["cached"] else f"done in {event['seconds']:,.1f} s"
        return f"{event['label']:<24} {what}{_counts(event)}"
    if kind in ("stage failed", "stage cancelled"):
        return f"{event['label']:<24} {kind.removeprefix('stage ')}: {in_words(event['error'])}"
    return str(event["message"]) if kind == "message" else None


def _counts(event: Event) -> str:
    totals = event["totals"]
    return f", {totals['rows_in']:,} -> {totals['rows_out']:,}" if totals.get("rows_in") else ""
