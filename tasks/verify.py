"""Reads what a run is made of again and compares it with what was written (`basemill doctor --verify RUN`).

Of each part: the file's size and sha256, the content digest of its rows, the receipt, the ledger's sha256; of a dataset
that is not row-shaped: size and sha256 of its files; of a training: those of every file of its checkpoints. Readers
check size and page checksums only, since this costs a whole read (1 GB: about 5 s from a local disk, on one core).
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from model.checkpoint_files import UNFINISHED, list_steps, read_manifest, step_key
from tasks.digest import file_digest
from tasks.doctor import Finding
from tasks.errors import DataError
from tasks.manifest import Manifest, load_manifest
from tasks.parts import Part, Receipt
from tasks.runs import DatasetLine, RunRecord
from tasks.storage import Storage, sha256_of


def verify_run(storage: Storage, record: RunRecord) -> Iterator[Finding]:
    """A finding per dataset of the run, or one per fault in it."""
    for line in record.datasets:
        yield from _verify_dataset(storage, line)


def _verify_dataset(storage: Storage, line: DatasetLine) -> Iterator[Finding]:
    try:
        manifest = load_manifest(storage, line.reference)
    except DataError as error:
        yield Finding(check=line.label, is_ok=False, detail=str(error))
        return
    faults = [fault for part in manifest.parts for fault in _faults_of(storage, manifest, part)]
    if checkpoint := manifest.extra.get("checkpoint"):
        faults += _checkpoint_faults(storage, checkpoint)
    if manifest.digest != line.digest:
        faults.append(f"{line.reference} has digest {manifest.digest[:12]}, not {line.digest[:12]} as in the run")
    for fault in faults:
        yield Finding(check=line.label, is_ok=False, detail=fault)
    if not faults:
        size = sum(part.bytes for part in manifest.parts)
        yield Finding(check=line.label, is_ok=True, detail=f"{len(manifest.parts)} parts, {size / 1e6:,.1f} MB")


def _faults_of(storage: Storage, manifest: Manifest, part: Part) -> Iterator[str]:
    if part.rows is None:
        yield from _file_faults(storage, manifest.file_path(part.key), part)
        return
    if part.rows:
        yield from _file_faults(storage, part.path, part)
    try:
        receipt = Receipt.from_json(storage.read_bytes(part.receipt_path))
    except FileNotFoundError:
        yield f"{part.receipt_path} is missing"
        return
    if receipt.part != part:
        yield f"{part.receipt_path} is the receipt of another file than the manifest names"
    if receipt.ledger_sha256 != _sha256(storage, part.ledger_path):
        yield f"{part.ledger_path} is not the ledger that was written"


def _checkpoint_faults(storage: Storage, result: str) -> Iterator[str]:
    """What differs in the checkpoint that is the result of a dataset, and in those before it that are kept."""
    folder = result.rpartition("/")[0]
    if result not in (keys := [step_key(folder, step) for step in list_steps(storage, folder)]):
        yield f"{result} is missing"
    for key in keys:
        manifest = read_manifest(storage, folder, int(key[-8:]))
        if isinstance(manifest, str):
            if key == result or manifest != UNFINISHED:  # a save that a kill cut short is no checkpoint
                yield f"{key}: {manifest}"
            continue
        for file in [*manifest.shards, *manifest.files]:
            yield from _written_faults(storage, f"{key}/{file.name}", file.size, file.sha256)


def _file_faults(storage: Storage, path: str, part: Part) -> Iterator[str]:
    """What differs in the file of a part."""
    faults = list(_written_faults(storage, path, part.bytes, part.sha256))
    if not faults and part.rows is not None and _digest(storage, path) != part.digest:
        faults = [f"{path} holds other rows than its digest names"]
    yield from faults


def _written_faults(storage: Storage, path: str, num_bytes: int, sha256: str) -> Iterator[str]:
    """Whether a file is the one that was written, cheapest first: one of another size is read no further."""
    size = storage.size(path)
    if size is None:
        yield f"{path} is missing"
    elif size != num_bytes:
        yield f"{path} has {size} bytes of {num_bytes} that were written"
    elif _sha256(storage, path) != sha256:
        yield f"{path} has another sha256 than the file that was written"


def _sha256(storage: Storage, path: str) -> str:
    """sha256 of a file, "" where there is none."""
    try:
        with storage.open_input(path) as file:
            return sha256_of(file)
    except FileNotFoundError:
        return ""


def _digest(storage: Storage, path: str) -> str:
    """Content digest of a file, "" where it cannot be read."""
    try:
        with storage.open_input(path) as raw, pq.ParquetFile(raw, page_checksum_verification=True) as file:
            return file_digest(file)
    except (pa.ArrowInvalid, OSError):
        return ""
