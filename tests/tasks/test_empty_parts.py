"""A part of which nothing is left is legal, in every stage after it; an input that is not there never is."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.dataset import Workspace
from tasks.decontaminate import DecontaminateConfig, drop_evaluation_text
from tasks.dedup_exact import ExactDedupConfig, drop_exact_duplicates
from tasks.dedup_near import NearDedupConfig, drop_near_duplicates
from tasks.errors import DataError
from tasks.manifest import Manifest, list_manifests
from tasks.mixture import MixConfig, split_documents
from tasks.pack import PackConfig, PackRequest, pack_source
from tasks.redact import RedactConfig, redact_personal_data
from tasks.select import GUARDED_DOCUMENTS, select_documents
from tasks.select.rules import SelectConfig
from tasks.signals import SignalsConfig, measure_signals
from tasks.vocabulary import VocabularyConfig, train_tokenizer
from tests.conftest import MakeDocuments
from tests.tasks.test_select import GOOD

GERMAN = "Der Fluss {} fließt ruhig durch das alte Tal, und niemand im Dorf hat es je anders gesehen oder gehört."
ENGLISH = [f"{GOOD}\nAnd this is the {word} one of that kind." for word in ("first", "second", "third", "last")]
KEEP_ENGLISH = SelectConfig.model_validate(
    {"language": {"keep": ["eng"]}, "gopher_quality": None, "gopher_repetition": None, "c4": None, "fineweb": None}
)


@pytest.fixture
def selected(workspace: Workspace, make_documents: MakeDocuments) -> Callable[[list[str], int], Manifest]:
    """selected(texts, parts): those in English."""

    def select(texts: list[str], parts: int) -> Manifest:
        documents = make_documents(texts, parts=parts)
        signals = measure_signals(documents, into=workspace, config=SignalsConfig())
        return select_documents(documents, signals, into=workspace, config=KEEP_ENGLISH)

    return select


def test_a_language_that_no_document_of_a_part_has_leaves_an_empty_part_that_stays_legal(
    workspace: Workspace, selected: Callable[[list[str], int], Manifest]
) -> None:
    """datatrove#365, #388: a filter may keep nothing of one file; that must neither fail later nor look unfinished."""
    german = [GERMAN.format(number) for number in range(2)]
    kept = selected([*ENGLISH[:2], *german, *ENGLISH[2:]], 3)
    assert [part.rows for part in kept.parts] == [2, 0, 2]
    assert kept.reasons == {"language.keep": 2}
    assert not Path(workspace.storage.path(kept.parts[1].path)).exists()  # a receipt, and no file
    stages: list[Callable[[Manifest], Manifest]] = [
        lambda given: drop_exact_duplicates(given, into=workspace, config=ExactDedupConfig()),
        lambda given: drop_near_duplicates(given, into=workspace, config=NearDedupConfig(threshold=1)),
        lambda given: redact_personal_data(given, into=workspace, config=RedactConfig()),
        lambda given: drop_evaluation_text(given, into=workspace, config=DecontaminateConfig()),
    ]
    documents = kept
    for stage in stages:
        documents = stage(documents)
        assert [part.rows for part in documents.parts] == [2, 0, 2], documents.stage
    mix = split_documents(documents, into=workspace, config=MixConfig(held_out_ratio=0))
    vocabulary = train_tokenizer(documents, mix, into=workspace, config=VocabularyConfig(size=300))
    packs = pack_source(
        documents, mix, vocabulary, into=workspace, config=PackConfig(),
        request=PackRequest(source="web", split="train", sequence_length=64),
    )  # fmt: skip
    assert mix.totals["rows_out"] == 4
    assert packs.totals["rows_out"] > 0


def test_a_language_that_no_document_has_stops_the_stage(selected: Callable[[list[str], int], Manifest]) -> None:
    """datatrove#365, NVIDIA-NeMo/Curator PR#2199: "eng" kept nothing where the model says "en", and nobody was told."""
    german = [GERMAN.format(number) for number in range(GUARDED_DOCUMENTS)]
    with pytest.raises(DataError, match=rf"{GUARDED_DOCUMENTS} of {GUARDED_DOCUMENTS} documents.*language\.keep"):
        selected(german, 2)


@pytest.mark.parametrize("lost", ["manifest", "receipt", "rows"])
def test_a_mixture_of_fewer_documents_than_there_were_is_never_made(
    workspace: Workspace, make_documents: MakeDocuments, lost: str
) -> None:
    """marin#1753, #6836, #2212: an unfinished source was skipped silently, and the mixture was smaller."""
    documents = make_documents({"books": ENGLISH, "code": ENGLISH, "web": ENGLISH}, parts=2)
    part = documents.parts_of("code")[1]
    place = {"manifest": documents.file_path("manifest.json"), "receipt": part.receipt_path, "rows": part.path}[lost]
    workspace.storage.delete(place)
    if lost == "receipt":  # what was published needs it no more: the manifest names the file, its size and its rows
        assert split_documents(documents, into=workspace, config=MixConfig()).totals["rows_out"] == 12
        return
    missing = documents.reference if lost == "manifest" else part.path
    with pytest.raises(DataError, match=missing):
        split_documents(workspace.load(documents.reference), into=workspace, config=MixConfig())
    assert list_manifests(workspace.storage, "mix") == []


def test_a_part_that_was_cut_short_is_no_smaller_part(workspace: Workspace, make_documents: MakeDocuments) -> None:
    """datatrove#501, data-prep-kit#1139: half-written and empty files counted as complete."""
    documents = make_documents({"code": ENGLISH, "web": ENGLISH}, parts=2)
    part = documents.parts_of("code")[1]
    path = Path(workspace.storage.path(part.path))
    whole = path.read_bytes()
    for data in (whole[: len(whole) // 2], b""):
        path.write_bytes(data)
        with pytest.raises(DataError, match=part.path):
            split_documents(documents, into=workspace, config=MixConfig())
    assert list_manifests(workspace.storage, "mix") == []
