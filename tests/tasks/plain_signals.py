"""The line rules and signals once more, slowly and in plain Python, written from their definitions."""

import re
import unicodedata
from collections import Counter

from tasks.kernels.characters import CLOSING, INVISIBLE, TERMINAL, UNENDED, UNSPACED, character_table, codes_of
from tasks.signals import SignalsConfig

QUOTES = "\"'”’»」』"
SYLLABLES = [code for codes in codes_of("E00-E7F E80-EFF 1000-109F A9E0-A9FF AA60-AA7F 1780-17FF") for code in codes]
CITATION = re.compile(r"\[[0-9]+\]|\[edit\]|\[citation needed\]")
Cuts = tuple[list[tuple[int, int]], Counter[str]]


def has(char: str, flag: int) -> bool:
    return bool(character_table()[ord(char)] & flag)


def is_word(char: str) -> bool:
    return unicodedata.category(char)[0] in "LMN"


def word_of(run: str) -> str:
    places = [place for place, char in enumerate(run) if is_word(char)]
    return run[places[0] : places[-1] + 1] if places else ""


def plain_cuts(text: str, config: SignalsConfig) -> Cuts:
    """Spans in bytes, touching ones of whole lines joined, and how often each rule fired."""
    spans: list[tuple[int, int]] = []
    counts: Counter[str] = Counter()
    position, is_cut, is_after_blank = 0, False, True
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        end = position + len(line.encode())
        verdict = verdict_of(line.removesuffix("\n"), config)
        if verdict == "blank":
            is_cut = is_cut and is_after_blank
            is_after_blank = is_after_blank or not is_cut
            if is_cut:
                spans[-1] = (spans[-1][0], end)
        elif verdict == "kept":
            is_cut = is_after_blank = False
            for match in CITATION.finditer(line) if config.cut_citations else ():
                start = position + len(line[: match.start()].encode())
                spans.append((start, start + len(match.group())))
                counts["citations"] += 1
        else:
            counts[verdict] += 1
            joins = is_cut and spans[-1][1] == position
            spans[-1:] = [(spans[-1][0], end)] if joins else [*spans[-1:], (position, end)]
            is_cut = True
        position = end
    return spans, counts


def verdict_of(line: str, config: SignalsConfig) -> str:
    words = line.split()
    if all(char.isspace() or has(char, INVISIBLE) for char in line):
        return "blank"
    letters = [char for char in line if char.isalpha()]
    has_words = 5 * sum(has(char, UNSPACED) for char in letters) <= len(letters)
    if has_words and 0 < config.max_word_chars < max(len(word) for word in words):
        return "long_word_lines"
    kept = line.rstrip()
    while config.cut_citations and (match := re.search(f"({CITATION.pattern})$", kept)):
        kept = kept[: match.start()]
    is_ended = kept != "" and (has(kept[-1], TERMINAL) or kept[-1] in QUOTES) and not kept.endswith("...")
    if has_words and config.require_end_marks and not is_ended:
        return "unended_lines"
    if has_words and len(words) < config.min_line_words:
        return "short_lines"
    folded = "".join(char.lower() if char.isascii() else char for char in line)
    return "phrase_lines" if any(phrase in folded for phrase in config.cut_phrases) else "kept"


def cut_text(text: str, spans: list[tuple[int, int]]) -> str:
    data, kept, last = text.encode(), b"", 0
    for start, end in spans:
        kept, last = kept + data[last:start], end
    return (kept + data[last:]).decode()


def plain_signals(text: str, config: SignalsConfig) -> dict[str, float | None]:
    """Signals of a text as it is, without language and cuts; None where not applied."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    runs = text.split()
    words = [word for run in runs if (word := word_of(run))]
    num_words = len(words)
    letters = [char for char in text if is_word(char)]
    has_no_spaces = share(sum(has(char, UNSPACED) for char in letters), len(letters)) > 0.05
    if has_no_spaces:
        num_words = letter_words(text)
        runs = runs[: len(runs) - len(words)] + [""] * num_words
    values: dict[str, float | None] = {
        "num_chars": len(text),
        "num_visible_chars": sum(not char.isspace() and not has(char, INVISIBLE) for char in text),
        "unspaced_ratio": share(sum(has(char, UNSPACED) for char in letters), len(letters)),
        "num_sentences": sum(sentences_of(line) for line in lines),
        "num_curly_brackets": text.count("{"),
        "num_lorem_ipsums": len(re.findall("lorem ipsum", text, re.IGNORECASE | re.ASCII)),
        "bullet_line_ratio": share(sum(line[0] in "•-" for line in lines), len(lines)),
        "ellipsis_line_ratio": share(sum(line.endswith(("...", "…")) for line in lines), len(lines)),
        "ended_line_ratio": share(sum(map(is_ended, lines)), len(lines)),
        "short_line_ratio": share(sum(len(line) <= config.short_line_chars for line in lines), len(lines)),
        "num_words": num_words,
        "mean_word_chars": share(sum(map(len, words)), len(words)),
        "hash_ratio": share(text.count("#"), len(runs)),
        "ellipsis_ratio": share(text.count("...") + text.count("…"), len(runs)),
        "alphabetic_word_ratio": share(sum(any(map(str.isalpha, run)) for run in runs), len(runs)),
        "num_stop_words": len(set(config.stop_words) & set(words)),
        "newline_ratio": share(max(len(lines) - 1, 0), num_words),
    }
    values |= plain_repetition(text, lines, words)
    if share(sum(has(char, UNENDED) for char in letters), len(letters)) > 0.05:
        values |= {"num_sentences": None, "ended_line_ratio": None}
    if has_no_spaces:
        values |= {name: None for name in values if "_word" in name or "gram" in name} | {"num_words": num_words}
        values |= {"num_stop_words": None, "short_line_ratio": None}
    return values


def letter_words(text: str) -> int:
    """Words where letters of scripts without spaces are counted: 2 of Han and kana, or 5 of the others, are one."""
    pieces = "".join(" " if has(char, UNSPACED) or ends_wide(char) else char for char in text).split()
    letters = [char for char in text if is_word(char) and has(char, UNSPACED)]
    syllables = sum(ord(char) in SYLLABLES for char in letters)
    return sum(word_of(piece) != "" for piece in pieces) + (5 * (len(letters) - syllables) + 2 * syllables) // 10


def ends_wide(char: str) -> bool:
    return char >= "\u3000" and not is_word(char)


def is_ended(line: str) -> bool:
    """Whether an end mark, 」 or 』 stands at its end, or a quote or bracket behind an end mark of such a script."""
    before = line[-2:-1]
    is_wide = before != "" and has(before, TERMINAL) and has(before, UNSPACED)
    return has(line[-1], TERMINAL) or line[-1] in "」』" or (has(line[-1], CLOSING) and is_wide and line[-1] > "\x7f")


def plain_repetition(text: str, lines: list[str], words: list[str]) -> dict[str, float | None]:
    blocks = re.sub(r"\n\s+\n", "\n\n", "\n".join(line.strip() for line in text.split("\n"))).strip()
    paragraphs = [part for part in re.split(r"\n\n+", blocks) if part]
    paragraphs = ["\n".join(line.strip() for line in part.split("\n")) for part in paragraphs]
    line_count, line_chars = duplicates(lines)
    paragraph_count, paragraph_chars = duplicates(paragraphs)
    values: dict[str, float | None] = {
        "duplicate_line_ratio": share(line_count, len(lines)),
        "duplicate_line_char_ratio": share(line_chars, len(text)),
        "repeated_line_char_ratio": share(line_chars, len(text) - text.count("\n")),
        "duplicate_paragraph_ratio": share(paragraph_count, len(paragraphs)),
        "duplicate_paragraph_char_ratio": share(paragraph_chars, len(text)),
    }
    for n in (2, 3, 4):
        values[f"top_{n}gram_char_ratio"] = share(top_ngram_chars(words, n), len(text))
    for n in range(5, 11):
        values[f"duplicate_{n}gram_char_ratio"] = share(duplicate_ngram_chars(words, n), len(text))
    return values


def share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def duplicates(items: list[str]) -> tuple[int, int]:
    again = [item for place, item in enumerate(items) if item in items[:place]]
    return len(again), sum(map(len, again))


def top_ngram_chars(words: list[str], n: int) -> int:
    ngrams = Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
    if not ngrams:
        return 0
    ngram, count = ngrams.most_common(1)[0]  # of equals, the one met first
    return len(" ".join(ngram)) * count


def duplicate_ngram_chars(words: list[str], n: int) -> int:
    seen, chars, place = set(), 0, 0
    while place <= len(words) - n:
        ngram = tuple(words[place : place + n])
        if ngram in seen:
            chars += len("".join(ngram))
            place += n
        else:
            seen.add(ngram)
            place += 1
    return chars


def sentences_of(line: str) -> int:
    runs = line.split()
    return 1 + sum(ends_sentence(run) for run in runs[:-1]) + sum(inner_sentences(run) for run in runs)


def ends_sentence(run: str) -> bool:
    while len(run) > 1 and has(run[-1], CLOSING):
        run = run[:-1]
    return has(run[-1], TERMINAL) and not run.endswith("..")


def inner_sentences(run: str) -> int:
    """Words that follow the end mark of a script without spaces at once."""
    found = 0
    for place in range(1, len(run)):
        before = place - 1
        while before > 0 and has(run[before], CLOSING):
            before -= 1
        found += is_word(run[place]) and has(run[before], TERMINAL) and has(run[before], UNSPACED)
    return found
