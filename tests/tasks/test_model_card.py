"""Model cards: phases, evaluation sets, lineage; no place of this machine."""

import tempfile

from model.config import PhaseRun
from tasks.model_card import model_card
from tests.tasks.conftest import LENGTH, TrainedRun

PARITY = {
    "max_logit_difference": 4.8e-7, "largest_logit": 3.2, "rows": 8, "tokens": 8 * LENGTH, "shape": "llama",
    "vocabulary": 300, "weights_dtype": "bf16", "transformers": "5.0",
}  # fmt: skip


def test_the_card_tells_training_contamination_and_lineage(trained_run: TrainedRun) -> None:
    card = model_card(trained_run.into.storage, trained_run.trained, PARITY)
    assert card.startswith("---\nlibrary_name: transformers\n")
    parameters = PhaseRun.model_validate(trained_run.trained.config).model.num_parameters
    assert f"| parameters | {parameters:,}, of which a token meets {parameters:,} |" in card
    assert "| weights | bf16 |" in card
    assert "differ by at most 4.8e-07 (largest logit 3.2)" in card
    assert "| quiz | decontaminated | 0 | 0 |" in card
    assert "| watched | not decontaminated (sources: code, web) | 0 | 0 |" in card
    assert "| main | 20,480 | 64 | 0.01 | code (" in card
    for manifest in (trained_run.trained, trained_run.vocabulary, trained_run.documents):
        assert f"| {manifest.stage} | {manifest.fingerprint[:16]} | {manifest.digest[:16]} |" in card
    assert tempfile.gettempdir() not in card
    assert card == model_card(trained_run.into.storage, trained_run.trained, PARITY)
