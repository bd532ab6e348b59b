"""Epochs before training: what weights draw, beside estimated or packed tokens, over phases that follow each other."""

from collections import Counter
from typing import Any

import pytest

from tasks.epochs import check_repeats, mixture_lines
from tasks.errors import ConfigError
from tasks.recipe import Recipe


def recipe(*phases: dict[str, Any], **train: Any) -> Recipe:
    usual = {
        "tokens": 64_000, "sequence_length": 64, "batch": 10, "schedule": {"lr": 1e-3},
        "weights": {"web/0": 1, "web/1": 2, "code": 1},
    }  # fmt: skip
    buckets = {"signal": "num_words", "edges": [100]}
    return Recipe.parse(
        {
            "name": "tiny", "ingest": {"sources": {"web": {"base": "/x"}, "code": {"base": "/y"}}},
            "mix": {"by_source": {"web": {"buckets": buckets}}}, "vocabulary": {"size": 300}, "model": {"size": "tiny"},
            "train": train | {"phases": [usual | phase for phase in phases]},
        }
    )  # fmt: skip


ESTIMATED = {"web/0": 16_000, "web/1": 4_000, "code": 160_000, "web/unmeasured": 0}


def test_a_source_is_read_as_often_as_its_weight_draws_from_what_there_is() -> None:
    lines = mixture_lines(recipe({"name": "main"}), {}, ESTIMATED)
    assert [(line.source, line.share, line.tokens, line.epochs) for line in lines] == [
        ("code", 0.25, 16_000, 0.1), ("web/0", 0.25, 16_000, 1.0), ("web/1", 0.5, 32_000, 8.0),
    ]  # fmt: skip
    assert [line.warning for line in lines] == ["", "", "above train.max_epochs 4: training will refuse"]
    assert all(line.is_estimate for line in lines)


def test_above_four_epochs_is_a_warning_where_the_recipe_allows_it() -> None:
    lines = mixture_lines(recipe({"name": "main"}, max_epochs=10), {}, ESTIMATED)
    assert [line.warning for line in lines] == ["", "", "above 4: repeats gain little"]


def test_packed_tokens_count_where_there_are_some() -> None:
    [code, _, web] = mixture_lines(recipe({"name": "main"}), {("web/1", 64, 0): 32_000}, ESTIMATED)
    assert (web.available, web.epochs, web.is_estimate) == (32_000, 1.0, False)
    assert code.is_estimate


def test_phases_that_follow_add_up_and_other_lengths_are_other_packs() -> None:
    phases = (
        {"name": "main"}, {"name": "more", "weights": {"code": 1}},
        {"name": "long", "sequence_length": 128, "weights": {"code": 1}},
        {"name": "fork", "after": "main", "weights": {"web/0": 1}},
    )  # fmt: skip
    lines = {(line.phase, line.source): line for line in mixture_lines(recipe(*phases), {}, ESTIMATED)}
    assert lines["more", "code"].tokens == 64_000
    assert lines["more", "code"].epochs == 0.5
    assert lines["long", "code"].epochs == pytest.approx(0.4, abs=0.01)
    assert lines["fork", "web/0"].epochs == 5.0


def test_a_fork_counts_what_its_checkpoint_had_read() -> None:
    fork = {"name": "main", "after": {"run": "20260101"}, "weights": {"code": 1}}
    before = {"main": Counter({("code", 64, 0): 160_000})}
    [line] = mixture_lines(recipe(fork), {}, ESTIMATED, before)
    assert (line.tokens, line.epochs) == (64_000, 1.4)
    assert mixture_lines(recipe(fork, {"name": "tail", "weights": {"code": 1}}), {}, ESTIMATED, before)[1].epochs == 1.8


def test_what_packed_text_is_too_short_for_is_refused_with_what_fits() -> None:
    packed = {("code", 64, 0): 10_000, ("web/0", 64, 0): 10_000_000, ("web/1", 64, 0): 10_000_000}
    wanted = recipe({"name": "first", "tokens": 32_000}, {"name": "main"})
    lines = mixture_lines(wanted, packed, {})
    check_repeats(wanted, lines[:3])
    with pytest.raises(
        ConfigError, match=r"train\.phases\[1\]\.tokens: phase main would read source code 2\.40 times .* "
    ):
        check_repeats(recipe({"name": "first", "tokens": 32_000}, {"name": "main"}, max_epochs=2), lines)
    most = 4 * (2 * 10_000 - 8_000)
    with pytest.raises(ConfigError, match=f"at most {most:,} tokens with this weight"):
        check_repeats(recipe({"name": "first", "tokens": 32_000}, {"name": "main"}, max_epochs=2), lines)
    estimates = mixture_lines(recipe({"name": "main"}), {}, ESTIMATED)
    check_repeats(recipe({"name": "main"}), estimates)  # web/1 is above the cap by an estimate: plan warns


def test_what_is_not_known_yet_is_said() -> None:
    lines = mixture_lines(
        recipe({"name": "main", "weights": {"web/unmeasured": 1, "code": 1}}), {}, {"web/unmeasured": 0}
    )
    assert [(line.available, line.epochs, line.warning) for line in lines] == [
        (None, None, ""), (0, None, "no text to train on: training will refuse"),
    ]  # fmt: skip


def test_a_sub_source_without_text_is_refused_by_name() -> None:
    wanted = recipe({"name": "first"}, {"name": "main", "weights": {"web/unmeasured": 1, "code": 1}})
    check_repeats(wanted, mixture_lines(wanted, {}, {"code": 10**6}))  # not known yet
    with pytest.raises(ConfigError, match=r"^train: phase main: weights name web/unmeasured, which has no text to"):
        check_repeats(wanted, mixture_lines(wanted, {}, ESTIMATED))


def test_the_last_batch_is_whole() -> None:
    lines = mixture_lines(recipe({"name": "main", "tokens": 64_001}), {}, ESTIMATED)
    assert sum(line.tokens for line in lines) == 64_000 + 10 * 64
