"""The manifest: what a dataset is made of and where it came from. Written last and exclusively: the dataset exists if
and only if `<stage>/<fingerprint>/manifest.json` does. Above MANY_PARTS its parts lie in a parts.parquet beside it.
"""

import io
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.errors import DataError
from tasks.parts import FORMAT_VERSION, Part
from tasks.storage import Storage

MANY_PARTS = 100_000
MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True)
class Manifest:
    """A dataset. `parts` are in order; `by_source` and `reasons` are sums over the parts' receipts."""

    stage: str
    fingerprint: str
    generation: int
    digest: str
    config: dict[str, Any]
    inputs: list[dict[str, str]]  # role, stage, fingerprint, digest
    code: dict[str, Any]  # digest, modules, packages, commit, dirty
    environment: dict[str, Any]  # python, packages
    schema: list[dict[str, Any]]  # name, type, nullable
    parts: list[Part]
    totals: dict[str, Any]
    reasons: dict[str, int]
    by_source: dict[str, dict[str, Any]]
    run_id: str
    created: str
    external: dict[str, Any] = field(default_factory=dict)  # identity of what is no dataset: raw files, evaluation sets
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def reference(self) -> str:
        """`stage/fingerprint`: the short name by which flows hand datasets on."""
        return f"{self.stage}/{self.fingerprint}"

    def parts_of(self, source: str) -> list[Part]:
        """The parts of one source, in order."""
        return [part for part in self.parts if part.source == source]

    @property
    def sources(self) -> list[str]:
        """Sources in order of first appearance."""
        return list(dict.fromkeys(part.source for part in self.parts if part.source is not None))

    def file_path(self, name: str) -> str:
        """Key in the storage of one of the dataset's own files."""
        return f"{self.stage}/{self.fingerprint}/{name}"

    def read_file(self, storage: Storage, name: str) -> bytes:
        """One of the dataset's own files. Raises DataError when the manifest does not name it or it is missing."""
        if name not in {part.key for part in self.parts}:
            raise DataError(f"{self.reference} has no file {name!r}")
        try:
            return storage.read_bytes(self.file_path(name))
        except FileNotFoundError as error:
            raise DataError(f"{self.file_path(name)} is missing: its manifest names it") from error

    def publish(self, storage: Storage) -> bool:
        """Write the manifest, last; False when another writer was first."""
        value = {"format_version": FORMAT_VERSION, **asdict(self)}
        if len(self.parts) > MANY_PARTS:
            storage.write_bytes(self.file_path("parts.parquet"), _parts_table(self.parts))
            value["parts"] = "parts.parquet"
        data = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
        return storage.create(self.file_path(MANIFEST_NAME), data)


def load_manifest(storage: Storage, reference: str) -> Manifest:
    """The dataset `stage/fingerprint`. Raises DataError when it does not exist."""
    found = find_manifest(storage, reference)
    if found is None:
        raise DataError(f"{storage.url}: dataset {reference} is not complete: it has no manifest")
    return found


def find_manifest(storage: Storage, reference: str) -> Manifest | None:
    """The dataset `stage/fingerprint`, or None. Raises DataError on another format."""
    try:
        value = storage.read_json(f"{reference}/{MANIFEST_NAME}")
    except FileNotFoundError:
        return None
    if value.pop("format_version") != FORMAT_VERSION:
        raise DataError(f"{reference}: this basemill reads format {FORMAT_VERSION} only")
    if isinstance(value["parts"], str):
        table = pq.read_table(io.BytesIO(storage.read_bytes(f"{reference}/{value['parts']}")))
        value["parts"] = table.to_pylist()
    value["parts"] = [Part(**part) for part in value["parts"]]
    return Manifest(**value)


def list_manifests(storage: Storage, stage: str) -> list[str]:
    """References of the finished datasets of a stage, newest first."""
    found = [info for info in storage.list_files(stage) if info.key.endswith(f"/{MANIFEST_NAME}")]
    found = [info for info in found if info.key.count("/") == 2]
    return [info.key.removesuffix(f"/{MANIFEST_NAME}") for info in sorted(found, key=lambda info: -info.modified)]


def _parts_table(parts: list[Part]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([asdict(part) for part in parts]), sink)
    return sink.getvalue()
