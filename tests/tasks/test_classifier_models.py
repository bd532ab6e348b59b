"""Files of classifiers: they read back as written, and a wrong, damaged or missing one is an error."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tasks.classifier_models import (
    MAX_PERPLEXITY,
    NO_MODELS,
    LinearModel,
    Models,
    kind_of,
    listed_words_bytes,
    load_models,
    parse_model,
    perplexity_bytes,
)
from tasks.dataset import Workspace
from tasks.errors import DataError
from tasks.kernels.buffers import Bytes, Offsets, text_buffers
from tasks.kernels.kneser_ney import estimate
from tasks.manifest import Manifest
from tasks.parts import Part
from tests.tasks.kernels.test_words import words_of

LINEAR = LinearModel(np.linspace(-1, 1, 1024, dtype=np.float32), 0.25, 2, 1.5, -0.5)
FILES = {
    "quality": LINEAR.to_bytes("quality"),
    "perplexity": perplexity_bytes(estimate(words_of("a b c", "a b d"), 2, 1), 2),
    "listed_words": listed_words_bytes(["paint", "wet paint", "paint"]),
}


def buffers(*texts: str) -> tuple[Bytes, Offsets]:
    return text_buffers(pa.array(texts, pa.large_string()))


def publish(workspace: Workspace, files: dict[str, bytes]) -> Manifest:
    dataset = workspace.dataset("classifiers", None, inputs={}, module="tasks.documents")
    return dataset.publish_files({f"{kind}.bin": data for kind, data in files.items()})


def files_of(manifest: Manifest) -> tuple[Part, ...]:
    return tuple(replace(part, stage=manifest.reference, source=part.key.split(".")[0]) for part in manifest.parts)


def test_a_linear_model_reads_back_as_written() -> None:
    found = parse_model(FILES["quality"], "test")
    assert np.array_equal(found.weights, LINEAR.weights)
    assert replace(found, weights=LINEAR.weights) == LINEAR
    assert LINEAR.to_bytes("quality") == FILES["quality"]
    assert LINEAR.to_bytes("toxicity") != FILES["quality"]
    assert {kind: kind_of(data, "test") for kind, data in FILES.items()} == {kind: kind for kind in FILES}


def test_signals_of_the_configured_classifiers_only(workspace: Workspace) -> None:
    texts = buffers("Wet paint, a b!", "", "zzz")
    models = load_models(workspace.storage, files_of(publish(workspace, FILES)))
    found = {name: column.to_pylist() for name, column in models.score(*texts).items()}
    assert found.keys() == {"quality_score", "perplexity", "num_listed_words"}
    assert found["num_listed_words"] == [1, 0, 0]
    assert found["quality_score"][1] is found["perplexity"][1] is None
    assert 0 < found["quality_score"][0] < 1
    assert 1 < found["perplexity"][2] < MAX_PERPLEXITY
    assert load_models(workspace.storage, ()) is NO_MODELS
    assert NO_MODELS.score(*texts) == {}
    assert Models(toxicity=LINEAR).score(*texts)["toxicity_score"].null_count == 1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no file of a basemill classifier"),
        (b"\x80\x04pickle", "no file of a basemill classifier"),
        (b"[]", "no file of a basemill classifier"),
        (b'{"format": 1}', "a None model"),
        (b'{"format": 99, "kind": "listed_words", "entries": []}', "of format 99; wanted format 1"),
        (FILES["quality"][:200], "no file of a basemill classifier"),
        (FILES["quality"][:-9], "damaged"),
    ],
)
def test_what_is_no_model_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(DataError, match=words):
        parse_model(data, "test")


def test_a_missing_or_changed_file_is_an_error(workspace: Workspace) -> None:
    manifest = publish(workspace, FILES)
    path = manifest.file_path("quality.bin")
    workspace.storage.write_bytes(path, FILES["perplexity"])
    with pytest.raises(DataError, match=r"quality\.bin is not the file that was written"):
        load_models(workspace.storage, files_of(manifest))
    workspace.storage.delete(path)
    with pytest.raises(DataError, match=r"quality\.bin is missing"):
        load_models(workspace.storage, files_of(manifest))
