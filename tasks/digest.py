"""The digest of a table's content: equal for equal rows, whatever the row groups, writer or slices (design section 2).

sha256 over, column by column in schema order: name, type, number of rows, validity bits (only where there are nulls),
value lengths as int64, value bytes. A null counts as empty, every NaN as one bit pattern. File and IPC bytes differ by
row groups, writer versions and slices, so they are never used.
"""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.errors import DataError

Update = Callable[[Any], None]


def table_digest(table: pa.Table) -> str:
    """Content digest of a table, 64 hex digits."""
    return _digest(table.schema, table.num_rows, (table[index] for index in range(table.num_columns)))


def file_digest(file: pq.ParquetFile) -> str:
    """Content digest of an open Parquet file, read one column at a time (memory: the largest column)."""
    schema = file.schema_arrow
    columns = (file.read(columns=[name], use_threads=False)[name] for name in schema.names)
    return _digest(schema, file.metadata.num_rows, columns)


def dataset_digest(schema: pa.Schema | None, parts: list[tuple[int | None, str]]) -> str:
    """sha256 of the schema and the ordered (rows, part digest)."""
    names = "" if schema is None else ";".join(f"{field.name}:{type_name(field.type)}" for field in schema)
    lines = [names, *(f"{rows}:{digest}" for rows, digest in parts)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def type_name(kind: pa.DataType) -> str:
    """The type without the names of list elements: Parquet calls them `element`, Arrow `item`."""
    if pa.types.is_fixed_size_list(kind):
        return f"fixed_size_list<{type_name(kind.value_type)}>[{kind.list_size}]"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"{'large_' if pa.types.is_large_list(kind) else ''}list<{type_name(kind.value_type)}>"
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return f"struct<{', '.join(f'{field.name}: {type_name(field.type)}' for field in fields)}>"
    return str(kind)


def _digest(schema: pa.Schema, rows: int, columns: Iterator[pa.ChunkedArray]) -> str:
    digest = hashlib.sha256()
    for field, column in zip(schema, columns, strict=True):
        digest.update(f"{field.name}\0{type_name(field.type)}\0{rows}\0".encode())
        _update_column(digest.update, column)
    return digest.hexdigest()


def _update_column(update: Update, column: pa.ChunkedArray) -> None:
    """One column; the texts of many row groups are not copied into one."""
    if column.num_chunks > 1 and _is_binary(column.type) and not column.null_count:
        for chunk in column.chunks:
            update(_int64(pc.binary_length(chunk)))
        for chunk in column.chunks:
            update(_binary_values(chunk))
    else:
        _update(update, column.combine_chunks() if column.num_chunks != 1 else column.chunk(0))


def _update(update: Update, array: pa.Array) -> None:
    """Validity, lengths and values of one array, nested types child by child."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        _update(update, array.dictionary_decode())
        return
    if array.null_count:
        update(np.packbits(array.is_valid().to_numpy(zero_copy_only=False)).tobytes())
    if pa.types.is_fixed_size_list(kind):
        _update(update, array.flatten())
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        update(_int64(pc.list_value_length(array)))
        _update(update, array.flatten())
    elif pa.types.is_struct(kind):
        for child in array.flatten():
            _update(update, child)
    elif _is_binary(kind):
        update(_int64(pc.binary_length(array)))
        update(_binary_values(array))
    elif not pa.types.is_null(kind):
        update(_fixed_values(array))


def _is_binary(kind: pa.DataType) -> bool:
    checks = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(check(kind) for check in checks)


def _int64(lengths: pa.Array) -> bytes:
    return bytes(pc.fill_null(lengths.cast(pa.int64()), 0).to_numpy(zero_copy_only=False).tobytes())


def _binary_values(array: pa.Array) -> memoryview:
    """The value bytes, contiguous; junk under a null is left out."""
    filled = pc.fill_null(array, b"" if "binary" in str(array.type) else "")
    _, offsets, values = filled.buffers()
    if values is None or len(filled) == 0:
        return memoryview(b"")
    wide = pa.types.is_large_string(filled.type) or pa.types.is_large_binary(filled.type)
    bounds = np.frombuffer(offsets, np.int64 if wide else np.int32)[filled.offset : filled.offset + len(filled) + 1]
    return memoryview(values)[int(bounds[0]) : int(bounds[-1])]


def _fixed_values(array: pa.Array) -> bytes:
    kind = array.type
    if pa.types.is_boolean(kind):
        return bytes(pc.fill_null(array, False).to_numpy(zero_copy_only=False).astype(np.uint8).tobytes())
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise DataError(f"no digest is defined for columns of type {kind}")
    values = pc.fill_null(array, pa.scalar(0, kind)).to_numpy(zero_copy_only=False)
    if pa.types.is_floating(kind):
        values = np.where(np.isnan(values), np.array(np.nan, values.dtype), values)
    return bytes(np.ascontiguousarray(values).tobytes())
