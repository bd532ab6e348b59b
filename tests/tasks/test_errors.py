"""Errors as people read them."""

import pytest

from tasks.errors import in_words


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("ConfigError: train: phase main", "train: phase main"),
        ("RayNotStarted: Ray: slow", "Ray: slow"),
        ("ValueError: x", "ValueError: x"),  # not ours: its class may be all that it says
        ("PipelineErrors: x", "PipelineErrors: x"),
        ("ended by SIGTERM", "ended by SIGTERM"),
        ("", ""),
    ],
)
def test_the_class_of_our_errors_is_left_out(message: str, told: str) -> None:
    assert in_words(message) == told
