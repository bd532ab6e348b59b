"""What spaCy's English tokenizer (3.8, `spacy.blank("en")`) knows: special words, and which characters it cuts off.

The special words are its tokenizer exceptions, written as the products that they are; "do¦n't" is a run that becomes
the tokens do and n't. Letters are taken from the Unicode database where spaCy lists ranges by hand: the two differ in
rare Greek, Cyrillic and Coptic letters and in new emoji.
"""

import unicodedata
from collections.abc import Iterator
from functools import cache
from itertools import chain

import numpy as np

from tasks.kernels.buffers import frozen
from tasks.kernels.characters import ALPHABETIC, CHECKED, SPACE, TERMINAL, character_table, codes_of
from tasks.kernels.english import (
    BLANK,
    DIGIT,
    DOTTED,
    INFIX,
    LENGTH_BITS,
    LETTER,
    LOWER,
    MARK,
    PREFIX,
    QUOTE,
    SPECIAL_MASK,
    SUFFIX,
    SYMBOL,
    UPPER,
    WORD,
    Flags,
    Special,
    Tables,
)
from tasks.kernels.scan import MIX, word_hash

CUT = "¦"  # between the tokens of a special word

QUOTES = "'\"”“`‘´’‚,„»«「」『』（）〔〕【】《》〈〉〈〉⟦⟧"
PUNCTUATION = "…,:;!?¿؟¡()[]{}<>_#*&。？！，、；：～·।،۔؛٪"
CURRENCIES = "$£€¥฿₽﷼₴₠₡₢₣₤₥₦₧₨₩₪₫₭₮₯₰₱₲₳₵₶₷₸₹₺₻₼₾₿"
SYMBOLS = (
    "!/—”:％１〈&(、━\\【#%「」，】；+^]~“《„';’{|∶´[=-`*．（–？！：$～«〉,><》)?）。…@_.\"}►»"  # 1 as in datatrove
)
UNCASED = """
591-5F4 620-64A 66E-6D5 6E5-6FF 750-77F 8A0-8BD 900-9FF B80-CFF D80-DFF 1100-137F 2E80-2FDF 2FF0-30FF 31C0-31EF
3200-4DBF 4E00-9FFF AC00-D7AF F900-FAFF FB1D-FBB1 FBD3-FD3D FD50-FDC7 FDF0-FDFB FE30-FE4F FE70-FEFC 1EE00-1EEBB
1F200-1F2FF 20000-2A6DF 2A700-2EBEF 2F800-2FA1F"""
CATEGORIES = {"Ll": LOWER | DOTTED, "Lu": UPPER, "So": PREFIX | SUFFIX | INFIX}
UNITS = """
km km² km³ m m² m³ dm dm² dm³ cm cm² cm³ mm mm² mm³ ha µm nm yd in ft kg g mg µg t lb oz m/s km/h kmh mph hPa Pa mbar mb
MB kb KB gb GB tb TB T G M K % км км² км³ м м² м³ дм дм² дм³ см см² см³ мм мм² мм³ нм кг г мг м/с км/ч кПа Па мбар Кб
КБ кб Мб МБ мб Гб ГБ гб Тб ТБ US$ C$ A$"""  # cut off behind a digit

WILL, WOULD, NOT = "'ll 'll¦'ve ", "'d 'd¦'ve ", "n't n't¦'ve "
ENDINGS = {  # words, with a capital too, and the endings they take, without the apostrophe too
    "i": WILL + WOULD + "'m 'm¦a 've", "you we they": WILL + WOULD + "'ve 're", "he she it": WILL + WOULD + "'s",
    "who what when where why how there": WILL + WOULD + "'s 're 've", "that this": WILL + WOULD + "'s",
    "these those": WILL + WOULD + "'re 've", "could might must should would": NOT + "'ve", "not": "'ve",
    "ca do does did had may need ought sha wo": NOT, "ai are is was were have has dare": "n't",
}  # fmt: skip
ORDINARY = "Ill ill Its its Hell hell Shell shell Shed shed were Were Well well Whore whore"
CURLED = """
' '' 's 'S 'd 're 'cause 'Cause 'cos 'Cos 'coz 'Coz 'cuz 'Cuz 'bout 'em 'll 'nuff ma'am Ma'am o'clock O'clock
how¦'d¦'y How¦'d¦'y let¦'s Let¦'s c'm¦on C'm¦on y'¦all :') :'( :'-) :'-( doin' Doin' goin' Goin' nothin' Nothin'
nuthin' Nuthin' ol' Ol' somethin' Somethin' lovin' Lovin' havin' Havin'"""  # with ’ too
SPECIAL = """
y¦all can¦not Can¦not gon¦na Gon¦na got¦ta Got¦ta em ll nuff and/or w/o ‘S ‘s <space> C++ ä. ö. ü. \\") \\n \\t
— doin Doin goin Goin nothin Nothin nuthin Nuthin ol Ol somethin Somethin lovin Lovin havin Havin Mt. Ak. Ala.
Apr. Ariz. Ark. Aug. Calif. Colo. Conn. Dec. Del. Feb. Fla. Ga. Ia. Id. Ill. Ind. Jan. Jul. Jun. Kan. Kans. Ky.
La. Mar. Mass. Mich. Minn. Miss. N.C. N.D. N.H. N.J. N.M. N.Y. Neb. Nebr. Nev. Nov. Oct. Okla. Ore. Pa. S.C.
Sep. Sept. Tenn. Va. Wash. Wis. a.m. Adm. Bros. co. Co. Corp. D.C. Dr. e.g. E.g. E.G. Gen. Gov. i.e. I.e. I.E.
Inc. Jr. Ltd. Md. Messrs. Mo. Mont. Mr. Mrs. Ms. p.m. Ph.D. Prof. Rep. Rev. Sen. St. vs. v.s. :) :-) :)) :-))
:))) :-))) (: (-: =) (= :] :-] [: [-: [= =[ =] :o) (o: :} :-} 8) 8-) (-8 ;) ;-) (; (-; :( :-( :(( :-(( :(((
:-((( ): )-: =( >:( :/ :-/ =/ =| :| :-| ]= :1 :P :-P :p :-p :O :-O :o :-o :0 :-0 :() >:o :* :-* :3 :-3 =3 :> :->
:X :-X :x :-x :D :-D ;D ;-D =D xD XD xDD XDD 8D 8-D ^_^ ^__^ ^___^ >.< >.> <.< ._. ;_; -_- -__- v.v V.V v_v V_V
o_o o_O O_o O_O 0_o o_0 0_0 o.O O.o O.O o.o 0.0 o.0 0.o @_@ <3 <33 <333 </3 (^_^) (-_-) (._.) (>_<) (*_*) (¬_¬)
ಠ_ಠ ಠ︵ಠ (ಠ_ಠ) ¯\\(ツ)/¯ (╯°□°）╯︵┻━┻ ><(((*>"""


def special_words() -> frozenset[str]:
    """All special words, their tokens separated by "¦"."""
    return frozenset(word for word in _special_words() if word.replace(CUT, "") not in ORDINARY.split())


def _special_words() -> Iterator[str]:
    for words, endings in ENDINGS.items():
        for word in words.split():
            for ending in endings.split():
                for form in (ending, ending.replace("'", "’"), ending.replace("'", "")):
                    yield from (f"{word}{CUT}{form}", f"{word.title()}{CUT}{form}")
    for word in CURLED.split():
        yield from (word, word.replace("'", "’"))
    yield from SPECIAL.split()
    yield from (f"{letter}." for letter in "abcdefghijklmnopqrstuvwxyz")
    yield from (f"{hour}{CUT}{half}{form}" for hour in range(1, 13) for half in "ap" for form in ("m", ".m."))
    yield from (f"°{CUT}{degree}{CUT}." for degree in "cfkCFK")


@cache
def english_characters() -> Flags:
    """Flags per code point, 2.2 MB."""
    known = character_table()
    table: Flags = known.astype(np.uint16) & np.uint16(SPACE | ALPHABETIC)
    for code in chain(*CHECKED):
        category = unicodedata.category(chr(code))
        table[code] |= (CATEGORIES.get(category, 0) if code < 0x10000 or category == "So" else 0) | (
            WORD if category[0] in "LN" or code == 95 else 0
        )
    for codes in codes_of(UNCASED):
        table[codes.start : codes.stop] |= LOWER | UPPER | DOTTED
    table[known & TERMINAL != 0] |= SYMBOL
    for codes in codes_of("0-8 B-1F 7F-9F"):
        table[codes.start : codes.stop] |= SYMBOL
    for chars, flags in (
        ("0123456789", DIGIT | DOTTED), (QUOTES, QUOTE | PREFIX | SUFFIX | DOTTED), (SYMBOLS, SYMBOL),
        (PUNCTUATION, PREFIX | SUFFIX | DOTTED), (CURRENCIES, PREFIX), ("§%=—–", PREFIX), ("—–", SUFFIX), ("…", INFIX),
        ("%²-+|(?:)", DOTTED),
    ):  # fmt: skip
        for char in chars:
            table[ord(char)] |= flags
    return frozen(table)


@cache
def english_tables() -> Tables:
    """What `english_tokens` needs beside the text."""
    plain = np.zeros(256, np.uint8)
    plain[[*range(65, 91), *range(97, 123)]] = LETTER
    plain[list(b',;:!?")')] = MARK
    plain[[*range(9, 14), *range(28, 33)]] = BLANK
    special = {word.replace(CUT, ""): _packed(word) for word in special_words()} | dict.fromkeys(
        (*UNITS.split(), *CURRENCIES), -1
    )
    maybe_special = np.zeros(int(SPECIAL_MASK) + 1, np.uint8)
    maybe_special[[word_hash(word) & int(SPECIAL_MASK) for word in special]] = 1
    return english_characters(), (frozen(plain), frozen(maybe_special)), _table(special)


def _packed(word: str) -> int:
    return sum(len(token) << (LENGTH_BITS * place) for place, token in enumerate(word.split(CUT)))


def _table(values: dict[str, int]) -> Special:
    size = 64
    while size < 4 * len(values):
        size *= 2
    keys, found = np.zeros(size, np.uint64), np.zeros(size, np.int64)
    for word, value in values.items():
        place = (word_hash(word) * int(MIX) % (1 << 64) >> 40) & (size - 1)
        while keys[place]:
            place = (place + 1) & (size - 1)
        keys[place], found[place] = word_hash(word), value
    return frozen(keys), frozen(found)
