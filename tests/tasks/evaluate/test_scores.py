"""The score table names every source, also one without held-out text, and mix warns of such a source."""

import logging

import pytest

from tasks.dataset import Workspace
from tasks.evaluate import losses_of
from tasks.evaluate.scores import BITS, score_rows, shown_figures
from tasks.mixture import MixConfig, split_documents
from tests.conftest import MakeDocuments


def test_a_source_without_held_out_text_has_a_row_without_figures(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    measured = [{"source": name, **losses_of(4, 8, 9.0, 5.0)} for name in ("web", "all")]
    packs = {f"held_out:{name}": make_documents([name], source=name) for name in ("web", "code", "zines/0")}
    dataset = workspace.dataset("evaluate", None, inputs=packs, module="tasks.documents")
    rows = score_rows(dataset.publish_files({}, extra={"losses": measured}))
    assert [(row["source"], row["tokens"]) for row in rows] == [("code", 0), ("web", 4), ("zines/0", 0), ("all", 4)]
    assert rows[0]["bits_per_byte_after"] is None
    assert rows[1] == measured[0]
    assert shown_figures(rows[0], BITS, "{:.1f}".format) == ["no held-out text", ""]
    assert shown_figures(rows[1], BITS, "{:.1f}".format) == ["1.6", "0.9"]


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (MixConfig(held_out_ratio=0.001), ["code", "web"]),
        (MixConfig(held_out_ratio=0.001, by_source={"web": {"held_out_ratio": 0.9}}), ["code"]),
        (MixConfig(held_out_ratio=0), []),  # asked for
    ],
)
def test_mix_warns_of_a_source_that_will_have_no_score(
    workspace: Workspace, make_documents: MakeDocuments, caplog: pytest.LogCaptureFixture,
    config: MixConfig, named: list[str],
) -> None:  # fmt: skip
    documents = make_documents({"web": [f"page {n}" for n in range(9)], "code": ["x = 1", "y = 2"], "void": []})
    with caplog.at_level(logging.WARNING, logger="tasks"):
        split_documents(documents, into=workspace, config=config)
    assert [record.args[0] for record in caplog.records if isinstance(record.args, tuple)] == named
    assert all("raise mix.held_out_ratio" in record.getMessage() for record in caplog.records)
