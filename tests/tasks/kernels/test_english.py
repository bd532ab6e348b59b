"""Tokens of English as spaCy 3.8 cuts them (each row below is its answer), and what any text must keep."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.kernels.buffers import text_buffers
from tasks.kernels.english import MAX_SPECIAL_CHARS, TOKEN_COUNTS, english_tokens
from tasks.kernels.english_tables import english_tables, special_words
from tasks.kernels.scan import MAX_ITEMS, word_hash

GOLD = """
hello | hello
hello, | hello ,
don't | do n't
“Don’t” | “ Do n’t ”
cannot | can not
dont. | do nt .
well-known | well - known
word—word | word — word
one--two | one -- two
a---b | a --- b
self-contained, | self - contained ,
Mr. | Mr.
(Mr.) | ( Mr. )
said—Mr. | said — Mr.
e.g., | e.g. ,
U.S.A. | U.S.A.
end... | end ...
wait……. | wait …… .
Smith's | Smith 's
dogs' | dogs '
10am | 10 am
5km/h | 5 km/h
20% | 20 %
€5 | € 5
5€ | 5 €
$1,000.50! | $ 1,000.50 !
A$5 | A$ 5
+1 | +1
+x | + x
3+4 | 3 + 4
C++ | C++
x=y | x = y
a:b | a : b
and/or | and/or
his/her | his / her
http://example.com/a-b | http://example.com/a-b
(https://docs.rs/x). | ( https://docs.rs/x ) .
me@mail.example.org | me@mail.example.org
href="http://a.bc/d-e" | href="http://a.bc / d - e "
example.com:80/x | example.com:80/x
example.com:x | example.com :x
lower.Upper | lower . Upper
:-) | :-)
fine:) | fine :)
[[link|text]] | [ [ link|text ] ]
├── | ├ ─ ─
#tag | # tag
_x_ | _ x _
'tis | ' tis
'' | ''
café.The | café . The
naïve, | naïve ,
日本語。 | 日本語 。
"""
CASES = [line.split(" | ") for line in GOLD.strip().splitlines()]


def tokens(text: str) -> tuple[dict[str, int], list[int], list[int]]:
    counts, (hashes, chars, _) = english_tokens(*text_buffers(pa.array([text], pa.large_string())), english_tables())
    return dict(zip(TOKEN_COUNTS, counts[0].tolist(), strict=True)), hashes.tolist(), chars.tolist()


@pytest.mark.parametrize(("run", "expected"), CASES)
def test_tokens_are_those_of_spacy(run: str, expected: str) -> None:
    wanted = [word_hash(token) for token in expected.split()]
    assert tokens(run)[1] == wanted
    assert tokens(f"the {run} end")[1] == [word_hash("the"), *wanted, word_hash("end")]
    assert tokens(f"\u00a0{run}\n{run}\u2003")[1] == wanted * 2  # the second time it is known already


def test_counts() -> None:
    counts, _, chars = tokens("Don't pay $5, “well-known” friend...")
    assert counts == {"words": 7, "word_chars": 24, "symbols": 6, "alphabetic_runs": 6}
    assert chars == [2, 3, 3, 1, 1, 1, 1, 4, 1, 5, 1, 6, 3]


PIECES = st.sampled_from(
    ["a", "the", "Mr.", "don't", "x.y", ".", "..", "-", "--", "'", "’s", "5", "km", "@", "://", "(", "€"]
)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(max_size=60), st.lists(st.one_of(PIECES, st.just(" ")), max_size=30).map("".join)))
def test_tokens_tile_the_text(text: str) -> None:
    counts, hashes, chars = tokens(text)
    assert sum(chars) == sum(len(run) for run in text.split())
    assert all(length > 0 for length in chars)
    assert counts["words"] + counts["symbols"] == len(hashes)
    assert counts["alphabetic_runs"] <= counts["words"]


def test_documents_do_not_see_one_another() -> None:
    texts = ["one, two", "", "don't", "Mr", ". x", "one, two"]
    counts, (hashes, _, ends) = english_tokens(*text_buffers(pa.array(texts, pa.large_string())), english_tables())
    for place, text in enumerate(texts):
        assert hashes[ends[place] : ends[place + 1]].tolist() == tokens(text)[1]
    assert counts[0].tolist() == counts[-1].tolist()


@pytest.mark.parametrize("text", ["(" * 200_000, "a." * 200_000, "x@" * 200_000, "." * 300_000, "a-" * 200_000 + "b"])
def test_long_runs_are_read_once(text: str) -> None:
    assert sum(tokens(text)[2]) == len(text)


def test_only_so_many_tokens_are_kept_but_all_are_counted() -> None:
    counts, hashes, _ = tokens("a-b " * (MAX_ITEMS // 2))
    assert len(hashes) == MAX_ITEMS
    assert counts["words"] == MAX_ITEMS


def test_special_words() -> None:
    words = special_words()
    assert len(words) == 1343  # of spaCy's 1,347 the four that are white space are none
    assert {"do¦n't", "they¦’d¦’ve", "can¦not", "12¦p.m.", "Mr.", "q.", "°|C|.".replace("|", "¦"), "how¦'d¦'y"} <= words
    assert not {"we¦ll", "it¦s", "he¦ll", "were"} & words
    assert max(len(word.replace("¦", "")) for word in words) == MAX_SPECIAL_CHARS
