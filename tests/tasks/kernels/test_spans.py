"""Lines, paragraphs and word windows, against plain Python; and that two texts which share enough share an anchor."""

import random

import numpy as np
import pyarrow as pa

from tasks.kernels.spans import CHECK, END, KEY, ROW, START, anchor_pieces, line_pieces, paragraph_pieces, window_pieces

TEXTS = ["one\n  two  \n\n\nthree\n", "", "\n \n", "één 你好\nlast", "a\nb\n\t\nc\n\nd"]


def column(texts: list[str]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(["xx"], pa.large_string()), pa.array(texts, pa.large_string())]).slice(1)


def cut_out(texts: list[str], pieces: np.ndarray) -> list[tuple[int, str]]:
    return [(int(row[ROW]), texts[int(row[ROW])].encode()[int(row[START]) : int(row[END])].decode()) for row in pieces]


def test_lines_take_what_follows_up_to_the_next_line_with_text() -> None:
    assert cut_out(TEXTS, line_pieces(column(TEXTS), 1)) == [
        (0, "one\n"), (0, "  two  \n\n\n"), (0, "three\n"), (3, "één 你好\n"), (3, "last"),
        (4, "a\n"), (4, "b\n\t\n"), (4, "c\n\n"), (4, "d"),
    ]  # fmt: skip
    assert cut_out(TEXTS, line_pieces(column(TEXTS), 5)) == [(0, "three\n"), (3, "één 你好\n")]


def test_paragraphs_end_at_a_line_without_text() -> None:
    assert cut_out(TEXTS, paragraph_pieces(column(TEXTS), 1)) == [
        (0, "one\n  two  \n\n\n"), (0, "three\n"), (3, "één 你好\nlast"), (4, "a\nb\n\t\n"), (4, "c\n\n"), (4, "d"),
    ]  # fmt: skip


def test_a_key_is_that_of_the_text_without_what_stands_around_it() -> None:
    keys = [tuple(row[[KEY, CHECK]]) for row in line_pieces(column(["  same\n", "same", "Same", "same too"]), 1)]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def words_of(rng: random.Random, count: int) -> list[str]:
    return [rng.choice(["tree", "río", "水", "ab", "no."]) + str(rng.randrange(9)) for _ in range(count)]


def test_texts_that_share_enough_words_share_an_anchor_wherever_they_stand() -> None:
    rng = random.Random(1)
    for _ in range(200):
        shared = words_of(rng, 20)
        texts = [" ".join(words_of(rng, rng.randrange(40)) + shared + words_of(rng, rng.randrange(40))) for _ in "ab"]
        pieces = anchor_pieces(column(texts), 20)
        keys = [{tuple(row[[KEY, CHECK]]) for row in pieces if row[ROW] == number} for number in (0, 1)]
        assert keys[0] & keys[1]
    assert len(anchor_pieces(column([" ".join(map(str, range(19)))]), 20)) == 0
    assert len(anchor_pieces(column([" ".join(map(str, range(20)))]), 20)) == 1
    assert len(anchor_pieces(column([" ".join(map(str, range(20_000)))]), 50)) < 20_000 / 10


def test_windows_are_those_around_an_anchor_and_whitespace_does_not_count() -> None:
    texts = ["zero", " ".join(map(str, range(30))), "  \n".join(map(str, range(30)))]
    first = texts[1].index("12")
    windows = window_pieces(column(texts), np.array([[1, first], [1, first + 3]], np.int64), 10)
    found = [text.split()[0] for _, text in cut_out(texts, windows)]
    assert found == [str(number) for number in range(7, 14)]  # the anchor's five words begin at 12 and at 13
    assert all(len(text.split()) == 10 for _, text in cut_out(texts, windows))
    other = window_pieces(column(texts), np.array([[2, texts[2].index("12")]], np.int64), 10)
    assert [row[KEY] for row in other] == [row[KEY] for row in windows[:6]]


def test_each_character_of_a_script_without_spaces_is_a_word() -> None:
    text = "漢字仮名交じり文です" * 3
    pieces = anchor_pieces(column([text, f"abc{text}def"]), 30)
    assert [int(row[ROW]) for row in pieces] == [0, 1]
    assert pieces[0][KEY] == pieces[1][KEY]
