"""XXH64 against the xxhash package."""

import random

import pyarrow as pa
import pytest
import xxhash

from tasks.kernels.xxhash64 import hash_values


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_equals_xxhash_for_every_length(kind: pa.DataType) -> None:
    rng = random.Random(1)
    values = [rng.randbytes(length) for length in range(300)]
    assert hash_values(pa.array(values, kind)).tolist() == [xxhash.xxh64_intdigest(value) for value in values]


def test_null_counts_as_empty_and_slices_are_respected() -> None:
    column = pa.chunked_array([pa.array(["zero", None]), pa.array(["two", "three"])]).slice(1)
    expected = [xxhash.xxh64_intdigest(value) for value in (b"", b"two", b"three")]
    assert hash_values(column).tolist() == expected
    assert hash_values(pa.array([], pa.string())).tolist() == []
