"""Expressions: what they mean on plain rows, what null does, and that nothing else than rules gets through."""

import pyarrow as pa
import pytest

from tasks.select.expressions import MAX_CHARS, parse_expression
from tasks.signal_table import SIGNAL_SCHEMA

ROWS = [
    {"num_words": 10, "hash_ratio": 0.5, "language": "en", "num_sentences": 2},
    {"num_words": 100, "hash_ratio": 0.0, "language": "de", "num_sentences": 0},
    {"num_words": None, "hash_ratio": 0.5, "language": "ja", "num_sentences": 5},
    {"num_words": 1000, "hash_ratio": 0.25, "language": None, "num_sentences": 10},
]


def judged(text: str) -> list[bool | None]:
    """True: drops; False: passes; None: not applied."""
    table = pa.Table.from_pylist(ROWS, schema=SIGNAL_SCHEMA)
    failing, missing = parse_expression(text).judge(table)
    return [None if m else bool(f) for f, m in zip(failing, missing, strict=True)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("num_words < 100", [True, False, None, False]),
        ("100 >= num_words", [True, True, None, False]),
        ("50 < num_words <= 1000", [False, True, None, True]),
        ("num_words == 100 or hash_ratio == 0.25", [False, True, None, True]),
        ("num_words < 100 or hash_ratio > 0.3", [True, False, True, False]),  # null or true is true
        ("num_words < 100 and hash_ratio < 0.3", [False, False, False, False]),  # null and false is false
        ("num_words < 100 and hash_ratio > 0.3", [True, False, None, False]),
        ("not num_words < 100", [False, True, None, True]),
        ("num_words / num_sentences > 9", [False, None, None, True]),  # by zero: null, not infinite
        ("num_words * 2 - 10 + hash_ratio > -(-190)", [False, False, None, True]),
        ('language == "deu"', [False, True, False, None]),
        ('language != "de_DE"', [True, False, True, None]),
        ('language in ("eng", "ja")', [True, False, True, None]),
        ('language not in ["en"]', [False, True, True, None]),
        ("num_sentences in (0, 5)", [False, True, True, False]),
        ('language == "ja" and num_sentences >= 5 or num_words > 500', [False, False, True, True]),
        ("1 < 2 and num_sentences > 4", [False, False, True, True]),
    ],
)
def test_expressions_mean_what_they_say(text: str, expected: list[bool | None]) -> None:
    assert judged(text) == expected


@pytest.mark.parametrize(
    ("text", "threshold", "signals"),
    [
        ("num_words < 50", 50, ("num_words",)),
        ("-1.5 >= hash_ratio", -1.5, ("hash_ratio",)),
        ("num_words < num_sentences", None, ("num_words", "num_sentences")),
        ("num_words < 50 and num_sentences < 2", None, ("num_words", "num_sentences")),
        ("1 < num_words < 50", None, ("num_words",)),
        ('language == "en"', None, ("language",)),
    ],
)
def test_a_simple_comparison_has_a_threshold(text: str, threshold: float | None, signals: tuple[str, ...]) -> None:
    parsed = parse_expression(text)
    assert (parsed.threshold, parsed.signals) == (threshold, signals)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_wrods < 50", "no signal num_wrods; did you mean num_words"),
        ("cut_spans == 0", "neither a number nor a text"),
        ("num_words", "a number; a rule is a comparison"),
        ("1 < 2", "names no signal"),
        ('num_words < "50"', "num_words is a number, but '50' is a text"),
        ('language < "en"', "has no order"),
        ("language == num_words", "a text, but num_words is a number"),
        ("num_words + language > 3", "language is a text"),
        ("num_words and num_chars > 3", "num_words is a number"),
        ("(num_words < 3) == (num_chars < 3)", "has no order and no size"),
        ('language == "xx"', "'xx' does not exist"),
        ('language in ("en", "aa")', "the language model does not know 'aa'"),
        ("num_words in num_chars", "write a list of constants"),
        ("num_words in ()", "write a list of constants"),
        ("num_words in (num_chars, 3)", "only constants"),
        ("num_words is 3", "is and is not are not allowed"),
        ("num_words < True", "'True' is not allowed"),
        ("num_words < None", "'None' is not allowed"),
        ("num_words < 1e999", "too large"),
        ("num_words <", "not an expression: invalid syntax at character 12$"),
        (" num_words ? 3", "not an expression: invalid syntax at character 12$"),
        ("num_words / 0 > 1", "division by 0, which is zero"),
        ("num_words / (2 - 2.0) > 1 or num_chars > 3", "division by 2 - 2.0, which is zero"),
        ("", "not an expression"),
        ("num_words = 3", "not an expression"),
        ("num_words < 3; num_words", "not an expression"),
        ("__import__('os').system('true')", "is not allowed"),
        ("().__class__.__bases__[0] == 1", "is not allowed"),
        ("[x for x in (1,)] == 1", "is not allowed"),
        ("(lambda: 1)() == num_words", "is not allowed"),
        ("2 ** 10 ** 10 < num_words", "is not allowed"),
        ("f'{num_words}' == language", "is not allowed"),
        ("(num_words := 3) < 4", "is not allowed"),
        ("-" * 900 + "num_words < 3", "at most 200"),
        ("num_words < 3 or " * 100, f"at most {MAX_CHARS} characters"),
        ('language == "\\ud800"', "surrogates not allowed|does not exist"),
        ("num_words < 3 \0", "not an expression"),
    ],
)
def test_nothing_else_gets_through(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_expression(text)
