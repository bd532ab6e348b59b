"""Drop lists: documents that curation leaves out by name, such as those that an incident of training named.

A list is a JSONL file with a `doc_id` per line; whatever else stands there goes into the ledger. `basemill exclude`
writes them to <root>/drop-lists/<digest>.jsonl; the recipe names them (`select.drop_lists`), and stage select drops the
documents with reason `drop_list`, whatever its rules say. A part's key holds the ids of its own source alone, so that a
list costs the parts of the sources that it names.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa
from pydantic import BaseModel, Field, field_validator

from tasks.documents import source_of
from tasks.errors import ConfigError, DataError
from tasks.ledger import Ledger
from tasks.recipe_files import check_path, read_recipe_file, read_rows
from tasks.storage import Storage

DROP_LIST = "drop_list"  # the reason
FOLDER = "drop-lists"
NAME_HEX_DIGITS = 32

Listed = dict[str, dict[str, dict[str, Any]]]  # source -> doc_id -> what else the list says


class DropListConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """One drop list."""

    path: str = Field(description="JSONL file: absolute, s3://..., {root}/... or recipe:name")
    sha256: str | None = Field(
        default=None, pattern="^[0-9a-f]{64}$", description="digest of the file; another one is refused"
    )

    @field_validator("path")
    @classmethod
    def _check_path(cls, value: str) -> str:
        return check_path(value)


def read_drop_lists(storage: Storage, configs: Sequence[DropListConfig]) -> Listed:
    """The documents of all lists by source. Raises ConfigError with the key's path when a file is no such list."""
    listed: Listed = {}
    for number, config in enumerate(configs):
        place = f"select.drop_lists[{number}]"
        data = read_recipe_file(storage, config.path, place)
        if config.sha256 not in (None, digest := hashlib.sha256(data).hexdigest()):
            raise ConfigError(f"{place}.sha256: {config.path} has the digest {digest}")
        try:
            for line, row in enumerate(read_rows(data, "jsonl", f"{place}.path")):
                if not (isinstance(row, dict) and isinstance(doc_id := row.get("doc_id"), str)):
                    raise ConfigError(f"{place}.path: {config.path}: row {line} has no doc_id")
                rest = {name: value for name, value in row.items() if name != "doc_id"}
                listed.setdefault(source_of(doc_id), {})[doc_id] = rest
        except DataError as error:
            raise ConfigError(str(error)) from error
    return {source: dict(sorted(own.items())) for source, own in sorted(listed.items())}


def digests_of(listed: Listed) -> dict[str, str]:
    """sha256 of what is listed of each source."""
    return {source: hashlib.sha256(as_bytes(own)).hexdigest() for source, own in listed.items()}


def as_bytes(listed: Mapping[str, dict[str, Any]]) -> bytes:
    """One line per document."""
    return b"".join(orjson.dumps({"doc_id": doc_id} | rest) + b"\n" for doc_id, rest in listed.items())


def write_drop_list(storage: Storage, listed: Mapping[str, dict[str, Any]]) -> DropListConfig:
    """Write a list below the storage root; its name is its digest. Returns how a recipe names it."""
    data = as_bytes(dict(sorted(listed.items())))
    digest = hashlib.sha256(data).hexdigest()
    key = f"{FOLDER}/{digest[:NAME_HEX_DIGITS]}.jsonl"
    storage.write_bytes(key, data)
    return DropListConfig(path=f"{{root}}/{key}", sha256=digest)


def leave_out(
    table: pa.Table, signals: pa.Table, listed: Mapping[str, dict[str, Any]], ledger: Ledger
) -> tuple[pa.Table, pa.Table]:
    """The documents, and their signals, that no list names; the others go into the ledger."""
    is_listed = [doc_id in listed for doc_id in table["doc_id"].to_pylist()]
    for row in (row for row, is_dropped in enumerate(is_listed) if is_dropped):
        doc_id = table["doc_id"][row].as_py()
        ledger.drop(doc_id, table["source"][row].as_py(), DROP_LIST, detail=listed[doc_id] or None)
    keep = pa.array([not is_dropped for is_dropped in is_listed])
    return table.filter(keep), signals.filter(keep)
