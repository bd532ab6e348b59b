"""Language codes, and the language of texts.

The model is that of py3langid 0.4: 140 languages. Two things are done around it: in a text of another script Latin
letters are left out (code, names and markup are no reason to call a Chinese page English), and what is known of
confusable languages is put right (tasks/language_corrections.py). In the 67 languages that the common models share it
is right for 97 % of NTREX sentences, 94 % of UDHR articles and 93 % of whole documents (tests/bench/bench_language.py).

Codes are ISO 639-1 where there is one, else ISO 639-3: "eng", "en-US" and "eng_Latn" are all "en". "und" is a text in
which the model recognises nothing, "zxx" one without language (the model's own class).
"""

from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from tasks.errors import DataError
from tasks.kernels.buffers import Bytes, Offsets, text_array, text_buffers
from tasks.kernels.cuts import apply_cuts
from tasks.kernels.language import Model, count_letters, identify
from tasks.language_corrections import correct_languages

RESULT_PACKAGES = ("py3langid",)
UNDETERMINED = "und"
LANGUAGE_BYTES = 2_048  # the beginning of a text that is looked at; with 16 KiB 1 % more documents get a wrong label
LATIN_LETTERS_EACH = 25  # at most so many ASCII letters per such letter, and the text is of its script
SPECIAL_CODES = frozenset({"und", "zxx", "mul"})

# what the model can say, checked when it is loaded; two scripts of one language have a label each
LABELS = """
af am ar as az be bg bn br bs ca cs cy da de el en eo es et eu fa fi fr fy ga gd gl gu ha he hi hr ht hu hy id ig is
it ja jv ka kk km kn ko ku ky la lg ln lo lt lv mg mk ml mn mr ms my ne nl no om or pa pl ps pt qu ro ru sa si sk sl
so sq sr sr sv sw ta te th tl tr ug uk ur uz vi xh yo zh zu zxx ace bcl dz ext gcf gom grc gug hbo kik nso pcm rw se
sn st uz an ary crh fo fuv gcr guw kab lb lij ltg uzs wa sdh arz ba mt nn oc tg tk tt vec vo wuu yue"""
MODEL_LABELS = tuple(LABELS.split())

# ISO 639-1 with its ISO 639-3 (639-2/T) equivalent
ISO_639_1 = """
aa aar ab abk ae ave af afr ak aka am amh an arg ar ara as asm av ava ay aym az aze ba bak be bel bg bul bi bis bm
bam bn ben bo bod br bre bs bos ca cat ce che ch cha co cos cr cre cs ces cu chu cv chv cy cym da dan de deu dv
div dz dzo ee ewe el ell en eng eo epo es spa et est eu eus fa fas ff ful fi fin fj fij fo fao fr fra fy fry ga
gle gd gla gl glg gn grn gu guj gv glv ha hau he heb hi hin ho hmo hr hrv ht hat hu hun hy hye hz her ia ina id
ind ie ile ig ibo ii iii ik ipk io ido is isl it ita iu iku ja jpn jv jav ka kat kg kon ki kik kj kua kk kaz kl
kal km khm kn kan ko kor kr kau ks kas ku kur kv kom kw cor ky kir la lat lb ltz lg lug li lim ln lin lo lao lt
lit lu lub lv lav mg mlg mh mah mi mri mk mkd ml mal mn mon mr mar ms msa mt mlt my mya na nau nb nob nd nde ne
nep ng ndo nl nld nn nno no nor nr nbl nv nav ny nya oc oci oj oji om orm or ori os oss pa pan pi pli pl pol ps
pus pt por qu que rm roh rn run ro ron ru rus rw kin sa san sc srd sd snd se sme sg sag si sin sk slk sl slv sm
smo sn sna so som sq sqi sr srp ss ssw st sot su sun sv swe sw swa ta tam te tel tg tgk th tha ti tir tk tuk tl
tgl tn tsn to ton tr tur ts tso tt tat tw twi ty tah ug uig uk ukr ur urd uz uzb ve ven vi vie vo vol wa wln wo
wol xh xho yi yid yo yor za zha zh zho zu zul"""
# other names of the same: ISO 639-2/B, withdrawn codes, members that stand for a macrolanguage in language models
ALIASES = """
alb sq arm hy baq eu bur my chi zh cze cs dut nl fre fr geo ka ger de gre el ice is mac mk mao mi may ms per fa rum ro
slo sk tib bo wel cy iw he in id ji yi mo ro sh sr nb no nob no arb ar cmn zh pes fa swh sw ekk et lvs lv azj az uzn uz
zsm ms npi ne ory or khk mn als sq gug gn ydd yi plt mg kmr ku pnb pa fil tl fuv ff yue zh wuu zh arz ar ary ar"""


@cache
def _known_codes() -> dict[str, str]:
    """Every code that is understood -> the code that stands for it."""
    words = ISO_639_1.split()
    codes = dict(zip(words[1::2], words[::2], strict=True)) | {code: code for code in words[::2]}
    aliases = ALIASES.split()
    codes |= dict(zip(aliases[::2], aliases[1::2], strict=True))
    return codes | {code: code for code in SPECIAL_CODES} | {label: codes.get(label, label) for label in MODEL_LABELS}


def normalise_language_code(code: str) -> str:
    """ISO 639-1 where there is one, else 639-3, without script and region. Raises ValueError for an unknown code."""
    language = code.strip().replace("_", "-").split("-")[0].lower()
    known = _known_codes()
    if language not in known:
        raise ValueError(f"language code {code!r} does not exist; use ISO 639 codes such as en, de, zh, kab")
    return known[language]


def identifiable_languages() -> frozenset[str]:
    """The codes that `identify_languages` can give."""
    return frozenset(normalise_language_code(label) for label in MODEL_LABELS) | {UNDETERMINED}


def check_language_code(code: str) -> str:
    """The normalised code. Raises ValueError for one that does not exist or that the model never gives."""
    normal, known = normalise_language_code(code), identifiable_languages()
    if normal not in known:
        raise ValueError(f"the language model does not know {normal!r}, only {', '.join(sorted(known))}")
    return normal


def identify_languages(data: Bytes, offsets: Offsets) -> tuple[pa.Array, NDArray[np.float64]]:
    """Code and probability (0..1) of each text, from its first LANGUAGE_BYTES; the probability is the model's own."""
    heads = pc.utf8_normalize(_heads(data, offsets), form="NFC")  # the model was trained on composed, cased text
    heads = pc.if_else(pc.utf8_is_upper(heads), pc.utf8_lower(heads), heads)
    best, probability = identify(*text_buffers(_without_latin(heads)), language_model())
    names = np.array([*(normalise_language_code(label) for label in MODEL_LABELS), UNDETERMINED], object)
    return pa.array(correct_languages(names[best], heads), pa.string()), probability


def _without_latin(texts: pa.Array) -> pa.Array:
    """The texts, those of another script without their ASCII letters."""
    foreign, latin = count_letters(*text_buffers(texts))
    rows = np.flatnonzero((foreign * LATIN_LETTERS_EACH >= latin) & (latin > 0))
    if len(rows) == 0:
        return texts
    mask = np.zeros(len(texts), np.bool_)
    mask[rows] = True
    shorter = pc.replace_substring_regex(texts.take(pa.array(rows)), "[A-Za-z]+", " ")
    return pc.replace_with_mask(texts, pa.array(mask), shorter)


def _heads(data: Bytes, offsets: Offsets) -> pa.Array:
    """The texts cut to LANGUAGE_BYTES, at character boundaries."""
    lengths = np.diff(offsets)
    long = np.flatnonzero(lengths > LANGUAGE_BYTES)
    if len(long) == 0:
        return text_array(data, offsets)
    cuts = np.full(len(long), LANGUAGE_BYTES)
    for _ in range(3):  # back over the bytes that continue a character
        cuts -= (data[offsets[long] + cuts] & 0xC0) == 0x80
    spans = np.stack([cuts, lengths[long]], axis=1)
    return text_array(*apply_cuts(data, offsets, np.searchsorted(long, np.arange(len(offsets))), spans))


@cache
def language_model() -> Model:
    """The model as arrays (70 MB), loaded once per process. Raises DataError when its labels are not ours."""
    model = LanguageIdentifier.from_model_file(MODEL_FILE)
    labels = tuple(model.nb_classes)
    if labels != MODEL_LABELS:
        raise DataError(f"the language model of py3langid has labels {labels}; this version knows those of 0.4.0")
    codes = [normalise_language_code(label) for label in labels]
    counts_as = np.array([codes.index(code) for code in codes], np.int64)
    moves, rows = np.array(model.tk_nextmove, np.uint32), np.asarray(model.tk_row, np.uint32)  # a copy has huge pages
    likelihood, prior = model.nb_ptc.astype(np.float16).view(np.uint16), model.nb_pc.astype(np.float32)
    arrays = moves, rows, np.asarray(model.tk_output, np.int32), likelihood, prior, counts_as
    for array in arrays:
        array.setflags(write=False)
    return arrays
