"""The signatures step: one row per document, null where there is nothing to compare, kept for later runs."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.dataset import Dataset, Workspace
from tasks.dedup_near.signatures import SCHEME, SIGNATURE_BYTES, sign, signature_matrix
from tasks.documents import DOCUMENT_SCHEMA
from tasks.kernels.shingles import sign_documents
from tasks.manifest import Manifest
from tasks.parts import read_part

MakeDocuments = Callable[..., Manifest]
TEXTS = ["one two three four five six", "too short", "", "Ein ganz anderer Text, mit Zahlen: 1, 2, 3.", "a b c d e"]


def dataset_of(workspace: Workspace, documents: Manifest) -> Dataset:
    return workspace.dataset(
        "dedup-near", None, inputs={"documents": documents}, module="tasks.dedup_near", schema=DOCUMENT_SCHEMA
    )


def rows_of(workspace: Workspace, manifest: Manifest) -> pa.Table:
    return pa.concat_tables(table for part in manifest.parts for table in read_part(workspace.storage, part))


def test_each_document_has_a_row_in_the_same_order(workspace: Workspace, make_documents: MakeDocuments) -> None:
    documents = make_documents(TEXTS, parts=2)
    manifest = sign(dataset_of(workspace, documents), documents, {"web": True})
    rows = rows_of(workspace, manifest)
    assert rows["doc_id"].to_pylist() == rows_of(workspace, documents)["doc_id"].to_pylist()
    assert rows["shingles"].to_pylist() == [2, 0, 0, 5, 1]
    assert rows["signature"].is_null().to_pylist() == [False, True, True, False, False]
    assert set(pc.binary_length(rows["signature"].drop_null()).to_pylist()) == {SIGNATURE_BYTES}
    assert manifest.extra == {"shingles": 8, "too_short": 2, "scheme": SCHEME}


def test_stored_signatures_are_those_of_the_kernel(workspace: Workspace, make_documents: MakeDocuments) -> None:
    documents = make_documents(TEXTS, parts=1)
    rows = rows_of(workspace, sign(dataset_of(workspace, documents), documents, {"web": True}))
    expected, counts = sign_documents(pa.chunked_array([pa.array(TEXTS, pa.large_string())]))
    stored = signature_matrix(rows["signature"].drop_null())
    np.testing.assert_array_equal(stored, expected[counts > 0])
    assert signature_matrix(pa.chunked_array([], pa.binary())).shape == (0, expected.shape[1])


def test_a_source_that_is_left_out_is_not_signed(workspace: Workspace, make_documents: MakeDocuments) -> None:
    documents = make_documents({"web": TEXTS, "code": TEXTS}, parts=1)
    manifest = sign(dataset_of(workspace, documents), documents, {"web": True, "code": False})
    nulls = [part_rows["signature"].null_count for part_rows in (rows_of_part(workspace, manifest, n) for n in (0, 1))]
    assert nulls == [2, 5]
    assert manifest.extra["too_short"] == 2


def rows_of_part(workspace: Workspace, manifest: Manifest, number: int) -> pa.Table:
    return pa.concat_tables(read_part(workspace.storage, manifest.parts[number]))


def test_signatures_are_found_again_and_shared_between_corpora(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    small, large = make_documents({"web": TEXTS}, parts=1), make_documents({"web": TEXTS, "new": ["x " * 9]}, parts=1)
    first = sign(dataset_of(workspace, small), small, {"web": True})
    second = sign(dataset_of(workspace, large), large, {"web": True, "new": True})
    assert [part.key for part in first.parts] == [part.key for part in second.parts[:1]]
    assert sign(dataset_of(workspace, large), large, {"web": True, "new": True}).fingerprint == second.fingerprint
