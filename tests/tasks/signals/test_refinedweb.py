"""Settings of RefinedWeb's line rules: the published figures are the defaults, wrong ones are refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from tasks.config import resolved
from tasks.signals import SignalsConfig
from tasks.signals.refinedweb import RefinedWebLines


def test_the_defaults_are_the_published_figures() -> None:
    lines = RefinedWebLines()
    assert lines.limits == {
        "upper_case_lines": 0.5, "digit_lines": 1.0, "few_word_lines": 2, "navigation_phrases": 10,
    }  # fmt: skip
    counters, starts, ends, anywhere = lines.groups
    assert "likes" in counters
    assert (starts, ends[0], anywhere) == (("sign-in",), "read more...", ("items in cart",))


def test_off_is_a_limit_that_no_line_reaches() -> None:
    off = RefinedWebLines(max_upper_case_ratio=None, cut_digits=False, min_words=0)
    assert (off.limits["upper_case_lines"], off.limits["digit_lines"], off.limits["few_word_lines"]) == (1.0, 0.0, 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"phrases": ["Sign"]}, r"refinedweb_lines\.phrases[\s\S]*'Sign': a phrase is lower-case"),
        ({"counters": ["x"]}, "has two characters"),
        ({"phrases_at_end": ["more "]}, "no space around"),
        ({"phrases_at_start": ["a\nb"]}, "in one line"),
        ({"max_upper_case_ratio": 1.5}, "less than or equal to 1"),
        ({"min_word": 1}, r"refinedweb_lines\.min_word"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SignalsConfig.model_validate({"refinedweb_lines": settings})


def test_a_source_can_have_the_rules_alone_and_off_costs_no_key() -> None:
    config = SignalsConfig.model_validate({"by_source": {"web": {"refinedweb_lines": {}}}})
    assert config.refinedweb_lines is None
    assert "refinedweb_lines" not in resolved(config)
    assert resolved(SignalsConfig(refinedweb_lines=RefinedWebLines()))["refinedweb_lines"]
