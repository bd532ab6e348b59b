"""Settings of RefinedWeb's line rules (arXiv 2306.01116, figures of DCLM's baseline, arXiv 2406.11794).

Lines that are mostly capitals, nothing but digits, a counter or one word go; navigation is cut from short lines.
The rules themselves: tasks/kernels/line_edits.py. Select drops a document that loses more than 5 % of its words to them
(`refinedweb.max_edited_word_ratio`).
"""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field

COUNTERS = (
    *("likes", "like", "shares", "share", "comments", "comment", "replies", "reply", "views", "view", "followers"),
    *("follower", "downloads", "download", "upvotes", "downvotes", "retweets", "reposts", "quotes", "bookmarks"),
)  # words that stand alone after a number, in any case
ALL_DIGITS, OFF = 1.0, 0.0


def _checked(phrases: tuple[str, ...]) -> tuple[str, ...]:
    for phrase in phrases:
        if phrase != phrase.lower().strip() or len(phrase) < 2 or "\n" in phrase:
            raise ValueError(f"{phrase!r}: a phrase is lower-case, in one line, has two characters and no space around")
    return phrases


Phrases = Annotated[tuple[str, ...], AfterValidator(_checked)]


class RefinedWebLines(BaseModel, frozen=True, extra="forbid", strict=True):
    """Which lines are cut, and which phrases from lines of few words."""

    max_upper_case_ratio: float | None = Field(
        default=0.5, ge=0, le=1, description="cut lines with a larger share of capitals among all characters; null: off"
    )
    cut_digits: bool = Field(default=True, description="cut lines of nothing but digits")
    counters: Phrases = Field(
        strict=False, default=COUNTERS, description="cut lines of a number and one of these; empty: off"
    )
    min_words: int = Field(default=2, ge=0, description="cut lines of fewer words; 0: off")
    max_phrase_words: int = Field(default=10, ge=0, description="phrases are cut from lines of at most so many words")
    phrases_at_start: Phrases = Field(strict=False, default=("sign-in",), description="cut at the start of such a line")
    phrases_at_end: Phrases = Field(strict=False, default=("read more...", "read more…"), description="cut at its end")
    phrases: Phrases = Field(strict=False, default=("items in cart",), description="cut anywhere in it")

    @property
    def limits(self) -> dict[str, float]:
        """The limits as the kernel takes them."""
        return {
            "upper_case_lines": 1.0 if self.max_upper_case_ratio is None else self.max_upper_case_ratio,
            "digit_lines": ALL_DIGITS if self.cut_digits else OFF,
            "few_word_lines": self.min_words,
            "navigation_phrases": self.max_phrase_words,
        }

    @property
    def groups(self) -> tuple[Phrases, Phrases, Phrases, Phrases]:
        """The phrases as the kernel takes them."""
        return self.counters, self.phrases_at_start, self.phrases_at_end, self.phrases
