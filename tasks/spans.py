"""Spans of a text, given as UTF-8 bytes (first, end): joined where they meet, cut out with a margin."""

MAX_WORD_CHARS = 40  # how far a cut is moved to fall between words; scripts without spaces have none to find


def merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans in order, those that touch or overlap joined."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def cut_spans(text: str, spans: list[tuple[int, int]], margin_chars: int) -> str:
    """The text without the spans (UTF-8 bytes) and `margin_chars` characters around them.

    Cuts fall between words; what is left on both sides is joined by a line break.
    """
    data = text.encode()
    places = {place: 0 for span in spans for place in span}
    chars = 0
    last = 0
    for place in sorted(places):
        chars += len(data[last:place].decode())
        places[place], last = chars, place
    wide = merged([(max(0, places[a] - margin_chars), min(len(text), places[b] + margin_chars)) for a, b in spans])
    kept, begin = [], 0
    for first, last in wide:
        start, end = _word_start(text, first, begin), _word_end(text, last)
        piece = text[begin:start].rstrip()  # empty where one cut reaches into the next
        kept.append(piece.lstrip() if begin else piece)
        begin = end
    kept.append(text[begin:].lstrip())
    return "\n".join(piece for piece in kept if piece)


def _word_start(text: str, at: int, begin: int) -> int:
    """The nearest place before `at` that follows whitespace or is `begin`; `at` itself when there is none near."""
    for place in range(at, max(begin, at - MAX_WORD_CHARS) - 1, -1):
        if place <= begin or text[place - 1].isspace():
            return max(place, begin)
    return at


def _word_end(text: str, at: int) -> int:
    """The nearest place from `at` on that whitespace follows or is the text's end; `at` when there is none near."""
    for place in range(at, min(len(text), at + MAX_WORD_CHARS) + 1):
        if place == len(text) or text[place].isspace():
            return place
    return at
