"""A dataset under construction: its fingerprint, its parts by key, its lease, its manifest.

The shape of every stage function (design section 2):

    dataset = into.dataset("select", config, inputs={"documents": documents}, module=__name__, schema=DOCUMENT_SCHEMA)
    if found := dataset.find():
        return found
    with dataset.lease():
        return dataset.publish(dataset.compute([dataset.unit(...) for part in documents.parts], select_part))
"""

import hashlib
import logging
import platform
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from pydantic import BaseModel

from tasks.cause import Identity, cause_of
from tasks.codedigest import CodeDigest, code_digest
from tasks.config import fingerprint_of, resolved
from tasks.digest import dataset_digest
from tasks.errors import DataError, NotComputed
from tasks.kernels import first_use
from tasks.lease import hold_lease
from tasks.manifest import Manifest, find_manifest, load_manifest
from tasks.parallel import map_parts
from tasks.parts import (
    FORMAT_VERSION,
    Conservation,
    Part,
    PartFunction,
    Receipt,
    Unit,
    check_conservation,
    find_receipt,
    run_unit,
)
from tasks.storage import Storage

logger = logging.getLogger(__name__)

COUNTS = ("rows_in", "rows_out", "dropped", "edited", "errors", "skipped", "bytes_in", "bytes_out")
NO_CODE = CodeDigest("", {}, {})


@dataclass(frozen=True)
class Workspace:
    """Where and how a run computes; nothing in it can change a result except `generations` (forced recomputes)."""

    storage: Storage
    run_id: str = "local"
    workers: int = 0  # 0: in this process; -1: as many as the Ray cluster has CPUs
    dry: bool = False
    generations: Mapping[str, int] = field(default_factory=dict)  # stage -> generation of a forced recompute
    stop: threading.Event = field(default_factory=threading.Event)
    on_progress: Callable[[str, int, int], None] = lambda stage, done, total: None
    on_message: Callable[[str], None] = lambda message: None

    def dataset(
        self,
        stage: str,
        config: BaseModel | None,
        *,
        inputs: Mapping[str, Manifest],
        module: str,
        schema: pa.Schema | None = None,
        **facts: Any,
    ) -> "Dataset":
        """A dataset of this stage. `facts`: conservation, reasons, external, with_code (see Dataset)."""
        return Dataset(self, stage, config, dict(inputs), module, schema, **facts)

    def load(self, reference: str) -> Manifest:
        """A finished dataset by its reference. Raises DataError when it does not exist."""
        return load_manifest(self.storage, reference)


@dataclass(frozen=True)
class Dataset:
    """One dataset of one stage or step.

    external: identity of inputs that are no datasets (raw files, evaluation sets), JSON values
    conservation: the rule that each part and the whole must hold; reasons: the stage's closed list
    with_code: False leaves the code out of the identity (training)
    """

    into: Workspace
    stage: str
    config: BaseModel | None
    inputs: dict[str, Manifest]
    module: str
    schema: pa.Schema | None = None
    conservation: Conservation = "none"
    reasons: frozenset[str] | None = None
    external: Mapping[str, Any] = field(default_factory=dict)
    with_code: bool = True

    @property
    def storage(self) -> Storage:
        """The storage that it lies in."""
        return self.into.storage

    @property
    def generation(self) -> int:
        """0, or the number of a forced recompute of this stage."""
        return self.into.generations.get(self.stage.split(".")[0], 0)

    @property
    def code(self) -> CodeDigest:
        """Digest of the code that makes it."""
        return code_digest(self.module) if self.with_code else NO_CODE

    @property
    def fingerprint(self) -> str:
        """sha256 over all that decides the result."""
        identity: dict[str, Any] = {
            "format": FORMAT_VERSION,
            "stage": self.stage,
            "config": resolved(self.config),
            "inputs": {role: manifest.digest for role, manifest in self.inputs.items()},
            "external": dict(self.external),
            "code": self.code.digest,
        }
        if self.generation:
            identity["generation"] = self.generation
        return fingerprint_of(identity)

    @property
    def reference(self) -> str:
        """`stage/fingerprint`."""
        return f"{self.stage}/{self.fingerprint}"

    def find(self) -> Manifest | None:
        """The finished dataset, whatever run made it. In a dry run raises NotComputed when there is none."""
        found = find_manifest(self.storage, self.reference)
        if found is None and self.into.dry:
            raise NotComputed(self.stage, self.cause())
        return found

    @contextmanager
    def lease(self) -> Iterator[threading.Event]:
        """Hold the dataset's lease while computing it; yields an event that is set when another run takes over."""
        folder = self.reference
        with hold_lease(
            self.storage, folder, self.into.run_id, stop=self.into.stop, on_wait=self.into.on_message
        ) as lost:
            logger.info("%s: started as %s", self.stage, self.fingerprint[:12])
            yield lost

    def step(self, name: str, schema: pa.Schema, *, inputs: Mapping[str, Manifest], **facts: Any) -> "Dataset":
        """A dataset of its own named `<stage>.<name>`; shares config, module and workspace unless `facts` say else."""
        values: dict[str, Any] = {"conservation": "none", "reasons": None} | facts
        return replace(self, stage=f"{self.stage}.{name}", schema=schema, inputs=dict(inputs), **values)

    def unit(
        self,
        inputs: Sequence[Part] = (),
        *,
        source: str | None = None,
        config: BaseModel | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Unit:
        """The work for one part. `config`: as it applies to this part; `arguments`: JSON values, part of the key."""
        if self.schema is None:
            raise TypeError(f"{self.stage} has no schema, so it has no parts")
        return Unit(
            storage=self.storage,
            stage=self.stage,
            source=source,
            inputs=tuple(inputs),
            config=config,
            arguments=dict(arguments or {}),
            module=self.module,
            code=self.code.digest,
            schema=self.schema,
            conservation=self.conservation,
            reasons=self.reasons,
            generation=self.generation,
        )

    def compute(self, units: Sequence[Unit], function: PartFunction) -> list[Receipt]:
        """The receipts of all units, in order. Finished parts are found by key; only the others are computed."""
        receipts = {index: receipt for index, unit in enumerate(units) if (receipt := find_receipt(unit))}
        missing = [index for index in range(len(units)) if index not in receipts]
        done = len(receipts)
        logger.info("%s: %d parts, %d of them finished already", self.stage, len(units), done)
        self.into.on_progress(self.stage, done, len(units))

        def count(_: Receipt) -> None:
            nonlocal done
            done += 1
            self.into.on_progress(self.stage, done, len(units))

        has_kernels = any(name.startswith("tasks.kernels.") for name in self.code.modules)
        with first_use(self.stage, self.into.on_message) if missing and has_kernels else nullcontext():
            computed = map_parts(
                PartTask(function),
                [units[index] for index in missing],
                workers=self.into.workers,
                name_of=_unit_name,
                bytes_of=lambda unit: unit.input_bytes,
                stop=self.into.stop,
                on_done=count,
            )
        receipts.update(zip(missing, computed, strict=True))
        return [receipts[index] for index in range(len(units))]

    def publish(self, receipts: Sequence[Receipt], *, extra: Mapping[str, Any] | None = None) -> Manifest:
        """Check conservation over the whole dataset and write its manifest. Raises DataError."""
        totals = self._checked_totals(receipts)
        parts = [receipt.part for receipt in receipts]
        by_source: dict[str, list[Receipt]] = {}
        for receipt in receipts:
            if receipt.part.source is not None:
                by_source.setdefault(receipt.part.source, []).append(receipt)
        return self._publish(
            parts,
            totals=totals,
            reasons=_sum_counters(receipt.reasons for receipt in receipts),
            by_source={
                source: _totals(own)
                | {
                    "reasons": _sum_counters(r.reasons for r in own),
                    "skipped_by": _sum_counters(r.skipped for r in own),
                }
                for source, own in by_source.items()
            },
            extra=dict(extra or {}),
        )

    def publish_files(
        self,
        files: Mapping[str, bytes | Path],
        *,
        totals: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Manifest:
        """Publish a result that is not row-shaped: files in the dataset's folder, listed as parts with rows null.

        A file is given by its bytes, or as a local one, which then is never held in memory.
        """
        parts = []
        for name, data in files.items():
            if isinstance(data, Path):
                with data.open("rb") as file:
                    size, sha256 = data.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()
                self.storage.publish_file(data, f"{self.reference}/{name}")
            else:
                size, sha256 = len(data), hashlib.sha256(data).hexdigest()
                self.storage.write_bytes(f"{self.reference}/{name}", data)
            parts.append(Part(self.stage, name, None, size, sha256, sha256, None))
        zero: dict[str, Any] = dict.fromkeys(COUNTS, 0) | {"seconds": 0.0}
        return self._publish(parts, totals=zero | dict(totals or {}), reasons={}, by_source={}, extra=dict(extra or {}))

    def cause(self) -> str:
        """Why it has to be computed: what differs from the most similar of the latest datasets of this stage."""
        identity = Identity(
            config=resolved(self.config),
            inputs={role: manifest.digest for role, manifest in self.inputs.items()},
            external=dict(self.external),
            modules=self.code.modules,
            packages=self.code.packages,
            generation=self.generation,
        )
        return cause_of(self.storage, self.stage, identity)

    def _checked_totals(self, receipts: Sequence[Receipt]) -> dict[str, Any]:
        totals = _totals(receipts)
        check_conservation(self.stage, totals, self.conservation)
        documents = self.inputs.get("documents")
        if documents is not None and self.conservation in ("documents", "rows"):
            wanted = documents.totals["rows_out"]
            if totals["rows_in"] != wanted:
                raise DataError(
                    f"{self.stage}: read {totals['rows_in']} documents of {wanted} in {documents.reference}"
                )
        return totals

    def _publish(self, parts: list[Part], **facts: Any) -> Manifest:
        facts["extra"] = _as_stored(facts["extra"])
        manifest = Manifest(
            stage=self.stage,
            fingerprint=self.fingerprint,
            generation=self.generation,
            digest=dataset_digest(self.schema, [(part.rows, part.digest) for part in parts]),
            config=resolved(self.config),
            inputs=[
                {"role": role, "stage": m.stage, "fingerprint": m.fingerprint, "digest": m.digest}
                for role, m in self.inputs.items()
            ],
            code={"digest": self.code.digest, "modules": self.code.modules, "packages": self.code.packages} | _commit(),
            environment=_environment(),
            schema=[{"name": f.name, "type": str(f.type), "nullable": f.nullable} for f in self.schema or ()],
            parts=parts,
            run_id=self.into.run_id,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            external=dict(self.external),
            **facts,
        )
        if not manifest.publish(self.storage):
            return self._first_manifest(manifest)
        if self.generation and self.with_code:  # training restarted on other compute or code may differ
            self._check_generation(manifest)
        logger.info("%s: done, %s", self.stage, {k: v for k, v in manifest.totals.items() if v})
        return manifest

    def _first_manifest(self, ours: Manifest) -> Manifest:
        """Another writer was first: its result counts, and must be the same."""
        first = load_manifest(self.storage, self.reference)
        if first.digest != ours.digest and self.with_code:
            raise DataError(
                f"{self.reference}: two computations differ ({first.digest[:12]} by run {first.run_id}, "
                f"{ours.digest[:12]} by run {ours.run_id}): the stage is not deterministic"
            )
        return first

    def _check_generation(self, manifest: Manifest) -> None:
        """A forced recompute must give the digest that it gave before."""
        first = replace(self, into=replace(self.into, generations={}, dry=False)).find()
        if first is not None and first.digest != manifest.digest:
            raise DataError(
                f"{self.stage}: generation {self.generation} gave {manifest.digest[:12]}, the first computation "
                f"{first.digest[:12]} (run {first.run_id}): the stage is not deterministic or a part was damaged"
            )


@dataclass(frozen=True)
class PartTask:
    """A part function as the callable that workers run."""

    function: PartFunction

    @property
    def __name__(self) -> str:
        return self.function.__name__

    def __call__(self, unit: Unit) -> Receipt:
        return run_unit(self.function, unit)


def _as_stored(extra: dict[str, Any]) -> dict[str, Any]:
    """The facts as a reader will load them: keys sorted, so that no order of insertion can reach a later stage."""
    stored: dict[str, Any] = orjson.loads(orjson.dumps(extra, option=orjson.OPT_SORT_KEYS))
    return stored


def _unit_name(unit: Unit) -> str:
    return f"{unit.stage} part {unit.key}" + (f" of source {unit.source}" if unit.source else "")


def _totals(receipts: Sequence[Receipt]) -> dict[str, Any]:
    totals: dict[str, Any] = {name: sum(receipt.counts[name] for receipt in receipts) for name in COUNTS}
    totals["seconds"] = round(sum(receipt.seconds for receipt in receipts), 3)
    return totals


def _sum_counters(counters: Iterator[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for counter in counters:
        total.update(counter)
    return dict(sorted(total.items()))


@lru_cache(maxsize=1)
def _commit() -> dict[str, Any]:
    """The commit of the source tree and whether it has changes; None outside a repository."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return {"commit": None, "dirty": None}
    git = ["git", "-C", str(root)]
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    status = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=False).stdout
    return {"commit": commit or None, "dirty": bool(status.strip())}


@lru_cache(maxsize=1)
def _environment() -> dict[str, Any]:
    names = ("basemill", "pyarrow", "ray", "prefect", "torch", "numba", "tokenizers", "datasketch", "s3fs")
    return {"python": platform.python_version(), "packages": {name: _version(name) for name in names}}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
