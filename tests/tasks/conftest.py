"""Fixtures of the stage tests: one small model trained on real stages, shared by the tests of what follows training."""

import json
import random
from dataclasses import dataclass

import pytest
import torch

from model.config import PhaseRun
from model.job import Settings
from tasks.dataset import Workspace
from tasks.decontaminate import DecontaminateConfig, drop_evaluation_text
from tasks.documents import DOCUMENT_SCHEMA
from tasks.manifest import Manifest
from tasks.mixture import MixConfig, split_documents
from tasks.pack import PackConfig, PackRequest, pack_source
from tasks.storage import Storage
from tasks.train import train_phase
from tasks.vocabulary import VocabularyConfig, train_tokenizer
from tests.conftest import document_rows, write_rows

torch.set_num_threads(1)  # tiny products: a second thread waits more than it works, tenfold on a busy machine

LENGTH, VOCABULARY, MODEL_VOCABULARY = 64, 300, 320
WORDS = (
    *("time", "light", "water", "stone", "river", "tree", "house", "green", "small", "old"),
    *("walks", "sings", "turns", "under", "over", "beside", "each", "no", "café", "東京"),
)


@dataclass(frozen=True)
class TrainedRun:
    """A trained phase and everything before it, on a root of its own."""

    into: Workspace
    documents: Manifest
    vocabulary: Manifest
    held_out: dict[str, Manifest]
    trained: Manifest


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """Two sources, decontaminated, split, packed and trained for 40 steps."""
    return train_everything(Workspace(Storage(str(tmp_path_factory.mktemp("trained") / "lake")), run_id="test"), LENGTH)


def train_everything(into: Workspace, length: int) -> TrainedRun:
    """Every stage on an empty root; rows of `length` tokens."""
    documents = drop_evaluation_text(make_sources(into), into=into, config=decontamination(into))
    mix = split_documents(documents, into=into, config=MixConfig(held_out_ratio=0.3))
    vocabulary = train_tokenizer(documents, mix, into=into, config=VocabularyConfig(size=VOCABULARY))
    packs = {
        (source, split): pack_source(
            documents, mix, vocabulary, into=into, config=PackConfig(),
            request=PackRequest(source=source, split=split, sequence_length=length),
        )
        for source in ("code", "web") for split in ("train", "held_out")
    }  # fmt: skip
    trained = train_phase(
        packs["code", "train"], packs["web", "train"], into=into, config=phase_run(length), settings=Settings(threads=1)
    )
    held_out = {source: packs[source, "held_out"] for source in ("code", "web")}
    return TrainedRun(into, documents, vocabulary, held_out, trained)


def phase_run(length: int = LENGTH) -> PhaseRun:
    """A two-layer model that learns the words in 40 steps of 8 rows of 64; its RoPE base is the phase's."""
    phase = {
        "name": "main", "tokens": 40 * 8 * LENGTH, "sequence_length": length, "batch": 8, "rope_base": 5_000.0,
        "weights": {"web": 0.6, "code": 0.4}, "schedule": {"lr": 1e-2, "warmup_tokens": 4 * 8 * LENGTH},
    }  # fmt: skip
    return PhaseRun.model_validate(
        {"model": {"size": "tiny", "vocab_size": MODEL_VOCABULARY}, "phase": phase, "max_epochs": 1000}
    )


def make_sources(into: Workspace) -> Manifest:
    """web: sentences of a few words, some in Japanese; code: assignments."""
    generator = random.Random(0)
    web = [" ".join(generator.choices(WORDS, k=40)) + "." for _ in range(120)]
    code = ["\n".join(f"{word} = old({n})" for n, word in enumerate(generator.choices(WORDS, k=16))) for _ in range(60)]
    dataset = into.dataset("ingest", None, inputs={}, module="tasks.documents", schema=DOCUMENT_SCHEMA)
    units = [
        dataset.unit(source=source, arguments={"rows": document_rows(source, texts[start::2], start, {}).to_pylist()})
        for source, texts in (("code", code), ("web", web))
        for start in (0, 1)
    ]
    return dataset.publish(dataset.compute(units, write_rows))


def decontamination(into: Workspace) -> DecontaminateConfig:
    """Two sets that no document holds; one is only reported on, and one source is left out."""
    item = {
        "question": "Who measured the distance between the two oldest lighthouses of that coast in spring, and how?"
    }
    into.storage.write_bytes("sets/quiz.jsonl", json.dumps(item).encode())
    quiz = {"path": "{root}/sets/quiz.jsonl", "question": "question"}
    return DecontaminateConfig.model_validate(
        {"evaluation_sets": {"quiz": quiz, "watched": quiz | {"action": "report"}}}
    )
