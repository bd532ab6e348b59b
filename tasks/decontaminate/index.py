"""What is looked for in documents: n-grams and short questions of evaluation sets, and canaries that prove the search.

A **target** is one text of an item that can be found: a question, passage or answer of at least NGRAM_WORDS words (by
its n-grams), or a shorter question together with its answer within WINDOW_WORDS (one of at least ALONE_WORDS is looked
for alone when it has no answer). A **probe** is what a document is searched for: an n-gram, or a whole short target.
Items with no target are counted as untested. A target is found in a document when enough of its probes are, those aside
that stand in too many documents to be evidence ("common": licences, famous speeches).

Files of the step `decontaminate.index`: targets.parquet (set, item, field, probes, text: its beginning), probes.parquet
(probe, target; sorted), shorts.parquet (anchor, words, hash, probe, answers: [words, hash, ...]; sorted by anchor).
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from tasks.decontaminate.evaluation_sets import CANARY_SET, Item
from tasks.errors import DataError
from tasks.kernels.ngrams import (
    ANCHOR_WORDS,
    NGRAM_WORDS,
    WINDOW_WORDS,
    Lookup,
    find_runs,
    make_lookup,
    run_hashes,
    word_prefix,
)
from tasks.manifest import load_manifest
from tasks.spans import merged
from tasks.storage import Storage

RESULT_PACKAGES = ("xxhash",)
ALONE_WORDS = 8  # a question without an answer that is still telling; marin leaves such items out altogether
ANSWER_WORDS = 12  # of a longer answer, these first words are looked for
MIN_EVIDENCE_RATIO = 0.2  # of a target's probes: what is left of a famous speech are misquotations
PREVIEW_CHARS = 100
CANARY_LONG = (
    "Seventeen velvet lanterns argued quietly while the copper heron counted marmalade staircases beneath an"
    " upholstered thunderstorm near Quillwick harbour"
)
CANARY_QUESTION, CANARY_ANSWER = "Which teapot governs the northern marmalade staircases?", "Brandelwyn the Unpolished"
CANARIES = [Item("long", (CANARY_LONG,), (), ()), Item("short", (CANARY_QUESTION,), (CANARY_ANSWER,), ())]

TARGETS_SCHEMA = pa.schema(
    [("set", pa.string()), ("item", pa.string()), ("field", pa.string()), ("probes", pa.int32()), ("text", pa.string())]
)
PROBES_SCHEMA = pa.schema([("probe", pa.uint64()), ("target", pa.int32())])
SHORTS_SCHEMA = pa.schema(
    [
        *[(name, pa.uint64()) for name in ("anchor", "words", "hash", "probe")],
        ("answers", pa.list_(pa.uint64())),  # words and hash of each, one after the other
    ]
)


@dataclass(frozen=True)
class Finding:
    """A target found in a document: its row in the targets, share and number of its probes, the bytes they cover."""

    target: int
    overlap: float
    probes: int
    spans: list[tuple[int, int]]


@dataclass(frozen=True)
class EvaluationIndex:
    """A loaded index."""

    targets: dict[str, list[Any]]
    probes: NDArray[np.uint64]  # sorted
    probe_targets: NDArray[np.int32]
    short_probes: NDArray[np.uint64]
    lookup: Lookup

    def find(self, texts: pa.Array | pa.ChunkedArray) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """(rows, first bytes, end bytes) and probe of everything known in a column of texts."""
        found = find_runs(texts, self.lookup)
        is_short = found[:, 1] < 0
        probes = np.empty(len(found), np.uint64)
        probes[is_short] = self.short_probes[found[is_short, 2]]
        probes[~is_short] = self.lookup.keys[found[~is_short, 1]]
        return found[:, [0, 3, 4]], probes

    def evidence(self, common: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Per target the number of its probes that are not common; 0 where too few are left to tell anything."""
        sizes = np.asarray(self.targets["probes"], np.int64)
        lost = np.bincount(self.probe_targets[np.isin(self.probes, common)], minlength=len(sizes))
        return np.where(sizes - lost >= MIN_EVIDENCE_RATIO * sizes, sizes - lost, 0)

    def judge(
        self, probes: NDArray[np.uint64], places: NDArray[np.int64], evidence: NDArray[np.int64]
    ) -> list[Finding]:
        """All targets of which one document holds a probe; `places`: first and end byte of each probe found in it."""
        spans: dict[int, list[tuple[int, int]]] = {}
        distinct: dict[int, set[int]] = {}
        low = np.searchsorted(self.probes, probes)
        high = np.searchsorted(self.probes, probes, side="right")
        for index, (first, last) in enumerate(zip(low, high, strict=True)):
            for target in self.probe_targets[first:last].tolist():
                spans.setdefault(target, []).append((int(places[index, 0]), int(places[index, 1])))
                distinct.setdefault(target, set()).add(int(probes[index]))
        return [
            Finding(target, len(distinct[target]) / int(evidence[target]), len(distinct[target]), merged(spans[target]))
            for target in sorted(spans)
            if evidence[target]
        ]

    def check(self) -> None:
        """Prove the search on canaries: all that is hidden must be found, and nothing else. Raises DataError."""
        texts = pa.array(_canary_texts(), pa.large_string())
        places, probes = self.find(texts)
        found = set()
        for row in range(len(texts)):
            own = places[:, 0] == row
            for finding in self.judge(probes[own], places[own][:, 1:], self.evidence(np.empty(0, np.uint64))):
                if self.targets["set"][finding.target] == CANARY_SET and finding.overlap == 1:
                    found.add((row, self.targets["item"][finding.target]))
        if found != {(0, "long"), (1, "short")}:
            raise DataError(
                f"decontaminate: the index does not work: canaries are hidden in texts 0 (long) and 1 (short), it found"
                f" {sorted(found)}"
            )


def build_index(sets: Mapping[str, Sequence[Item]]) -> tuple[dict[str, bytes], dict[str, dict[str, int]]]:
    """(the index's files; per set: items, tested). Raises DataError for a set of which nothing can be looked for."""
    builder = _Builder([], [], [])
    counts = {}
    for name, items in sets.items():
        tested = sum(builder.add_item(name, item) for item in items)
        counts[name] = {"items": len(items), "tested": tested, "untested": len(items) - tested}
        if not tested:
            raise DataError(
                f"decontaminate.evaluation_sets.{name}: none of its {len(items)} items can be looked for: texts of"
                f" {NGRAM_WORDS} words, or questions of {ANCHOR_WORDS} words with an answer, are needed"
            )
    for canary in CANARIES:
        builder.add_item(CANARY_SET, canary)
    return builder.files(), counts


@lru_cache(maxsize=2)
def load_index(storage: Storage, reference: str) -> EvaluationIndex:
    """The index of a finished step `decontaminate.index`, once per process. Raises DataError when it is missing."""
    manifest = load_manifest(storage, reference)
    tables = {
        name: pq.read_table(io.BytesIO(manifest.read_file(storage, f"{name}.parquet")))
        for name in ("targets", "probes", "shorts")
    }
    shorts, probes = tables["shorts"], tables["probes"]
    lists = shorts["answers"].combine_chunks()
    ends = lists.offsets.to_numpy().astype(np.uint64) // 2
    columns = [shorts["words"].to_numpy(), shorts["hash"].to_numpy(), ends[:-1], ends[1:]]
    probe_column = probes["probe"].to_numpy()
    short_probes = shorts["probe"].to_numpy()
    return EvaluationIndex(
        targets=tables["targets"].to_pydict(),
        probes=probe_column,
        probe_targets=probes["target"].to_numpy(),
        short_probes=short_probes,
        lookup=make_lookup(
            keys=np.setdiff1d(probe_column, short_probes),
            anchors=shorts["anchor"].to_numpy(),
            shorts=np.ascontiguousarray(np.stack(columns, axis=1)),
            answers=lists.values.to_numpy().reshape(-1, 2),
        ),
    )


def _canary_texts() -> list[str]:
    words = CANARY_LONG.upper().split()
    rewrapped = "\n".join(" ".join(words[at : at + 5]) for at in range(0, len(words), 5))
    return [
        f"Some text before it. {rewrapped}; and some text after it.",
        f"{CANARY_QUESTION} {'It is well known in the trade, '} and the answer is - {CANARY_ANSWER.lower()}!",
        f"{CANARY_QUESTION} {'Nobody knows. ' * WINDOW_WORDS} {CANARY_ANSWER}",  # too far away
        " ".join(words[: NGRAM_WORDS - 1]),  # one word short
    ]


@dataclass(frozen=True)
class _Builder:
    """Collects the rows of the index's tables."""

    targets: list[tuple[str, str, str, int, str]]
    probes: list[NDArray[np.uint64]]
    shorts: list[tuple[int, int, int, int, list[int]]]

    def add_item(self, name: str, item: Item) -> bool:
        """Add an item's targets; whether it has any."""
        before = len(self.targets)
        for field, texts in (("question", item.questions), ("passage", item.passages), ("answer", item.answers)):
            for text in texts:
                words = len(word_prefix(text)) - 1
                if words >= NGRAM_WORDS:
                    self._add_target(name, item, field, text, np.unique(run_hashes(text, NGRAM_WORDS)))
                elif field == "question":
                    self._add_short(name, item, text, words)
        return len(self.targets) > before

    def _add_target(self, name: str, item: Item, field: str, text: str, probes: NDArray[np.uint64]) -> None:
        self.targets.append(
            (name, item.id, field, len(probes), " ".join(text[: 2 * PREVIEW_CHARS].split())[:PREVIEW_CHARS])
        )
        self.probes.append(probes)

    def _add_short(self, name: str, item: Item, text: str, words: int) -> None:
        answers = [pair for answer in item.answers if (pair := _answer(answer))]
        if words < ANCHOR_WORDS or (not answers and words < ALONE_WORDS):
            return
        probe = xxhash.xxh64_intdigest(f"{name}\0{item.id}\0{text}".encode())
        self._add_target(name, item, "question", text, np.array([probe], np.uint64))
        flat = [number for pair in sorted(set(answers)) for number in pair]
        anchor, whole = run_hashes(text, ANCHOR_WORDS)[0], run_hashes(text, words)[0]
        self.shorts.append((int(anchor), words, int(whole), probe, flat))

    def files(self) -> dict[str, bytes]:
        """The three files."""
        owners = np.repeat(np.arange(len(self.probes), dtype=np.int32), [len(probes) for probes in self.probes])
        probes = np.concatenate(self.probes)
        order = np.lexsort((owners, probes))
        return {
            "targets.parquet": _parquet(_table(self.targets, TARGETS_SCHEMA)),
            "probes.parquet": _parquet(pa.table([probes[order], owners[order]], schema=PROBES_SCHEMA)),
            "shorts.parquet": _parquet(_table(sorted(self.shorts), SHORTS_SCHEMA)),
        }


def _answer(text: str) -> tuple[int, int] | None:
    words = min(len(word_prefix(text)) - 1, ANSWER_WORDS)
    return (words, int(run_hashes(text, words)[0])) if words > 0 else None


def _table(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def _parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return sink.getvalue()
