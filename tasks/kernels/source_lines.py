r"""Lines and characters of source code: how long the lines are, how much of the text is letters and digits.

A line ends with a newline, of which a \r before it is part; blank lines count, what follows the last newline does if it
is anything ("a\n\nbc" has the lengths 1, 0, 2). All other counts are of all characters, newlines included.
"""

import numpy as np
from numpy.typing import NDArray

from tasks.kernels.buffers import Bytes, Offsets, kernel
from tasks.kernels.characters import ALPHABETIC, WORD
from tasks.kernels.utf8 import decode

COUNTS = ("chars", "letters", "letters_and_digits", "lines", "line_chars", "longest_line_chars")
CHARS, LETTERS, LETTERS_AND_DIGITS, LINES, LINE_CHARS, LONGEST = range(6)
NEWLINE, RETURN = 10, 13


@kernel
def scan_lines(data: Bytes, offsets: Offsets, characters: Bytes) -> NDArray[np.int64]:
    """Counts (documents x COUNTS); `characters`: the character table."""
    counts = np.zeros((len(offsets) - 1, len(COUNTS)), np.int64)
    for doc in range(len(counts)):
        i, end = offsets[doc], offsets[doc + 1]
        chars = letters = words = lines = line_chars = longest = length = 0
        while i < end:
            code, width = decode(data, i)
            i += width
            chars += 1
            if code == NEWLINE:
                length -= length > 0 and data[i - 2] == RETURN
                lines += 1
                line_chars += length
                longest = max(longest, length)
                length = 0
                continue
            flags = characters[code]
            letters += (flags & ALPHABETIC) != 0
            words += (flags & WORD) != 0
            length += 1
        lines += length > 0
        row = counts[doc]
        row[CHARS], row[LETTERS], row[LETTERS_AND_DIGITS] = chars, letters, words
        row[LINES], row[LINE_CHARS], row[LONGEST] = lines, line_chars + length, max(longest, length)
    return counts
