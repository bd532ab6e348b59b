"""What a language model of byte n-grams mistakes, put right by words and letters that only one of the languages has.

A correction looks at texts in which the model saw one of `mistaken`: where `signs` of `language` outnumber `against`
(by more than `margin`), the text is in `language`. Each is a fact about spelling: Serbian writes e where Croatian and
Bosnian write ije or je (reka, rijeka); Azerbaijani Cyrillic alone has ҹ and ҝ; Chữ Nôm writes Vietnamese with Chinese
characters beyond the common planes; polytonic modern Greek has νὰ and στὴν, which ancient Greek has not.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


@dataclass(frozen=True)
class Correction:
    """One kind of mistake; `signs` and `against` are regular expressions (RE2), counted in the text."""

    mistaken: tuple[str, ...]
    language: str
    signs: str
    against: str = ""
    margin: int = 0


def _words(words: str) -> str:
    """Any of the words; "*" stands for letters. Beginnings share theirs: each costs hundreds of states."""
    beginnings = [word for word in words.split() if word.find("*") == len(word) - 1]
    wanted = [word.replace("*", r"\pL*") for word in words.split() if word not in beginnings]
    if beginnings:
        wanted.append(rf"(?:{'|'.join(word[:-1] for word in beginnings)})\pL*")
    return rf"(?i)(?:^|[^\pL])(?:{'|'.join(wanted)})(?:$|[^\pL])"


EKAVIAN = _words("""
gde uvek posle pre vreme vremena mest[oaui] svet[au]? deo dela ceo cel[aeiou] čovek[au]? dve dete dec[aei] reči? vredn*
ovde negde sled* belo? hteli? videl* želel* trebalo pobed* mesec[ia]? uspe* primer* obe zahtev* odel* razume* promen*
posled* predsednik* izveštaj* nedelj[aeu]""")
IJEKAVIAN = _words("""
*ije* gdje mjest* dio djec* ovdje sljede* htje* vidje* pobjed* mjesec* uspje* primjer* obje zahtjev* odjel* razumje*
promjen* posljed* predsjednik* izvješ* nedjelj*""")
CROATIAN = _words("""
tko što tisuć* tijekom općin* sveučili* glazb* siječnja veljače ožujka travnja svibnja lipnja srpnja kolovoza rujna
listopada studenoga? prosinca također uopće suradnj* točn* izvješć* europ* milijun* tvrtk* tjed* sigurnosn* nogomet*
vlak* povijes* znanstven* gospodar* ured* kazao priopć* zrakoplov* uporab* opć* županij*""")
BOSNIAN = _words("""
ko šta hiljad* tokom opštin* univerzitet* muzik* januara? februara? marta? aprila? maja juna jula avgusta? augusta?
septembra? oktobra? novembra? decembra? takođe uopšte saradnj* tačn* evrop* milion* kompanij* sedmic* histor* istorij*
fudbal* nauč* avion* upotreb* opš* rekao pošto ukoliko hemij* porodic*""")
PUNJABI, URDU = _words("نوں وچ دیاں نیں دے دا ایہہ تے اوہ ہووے"), _words("کا کی کے میں ہے اور")
MODERN_GREEK = _words("νὰ στὴν στὸν στὸ στὰ ποὺ τὶς εἶναι δὲν")

CORRECTIONS = (
    Correction(("bs", "hr"), "sr", EKAVIAN, IJEKAVIAN),
    Correction(("bs",), "hr", CROATIAN, BOSNIAN),
    Correction(("hr",), "bs", BOSNIAN, CROATIAN),
    Correction(("ba", "tt", "kk", "ky"), "az", "[ҹҝҸҜјЈ]"),
    Correction(("ur",), "pa", PUNJABI, URDU),
    Correction(("grc",), "el", MODERN_GREEK),
    Correction(("zh",), "vi", r"[\x{20000}-\x{2A6DF}]", margin=2),
)


def correct_languages(languages: NDArray[np.object_], texts: pa.Array) -> NDArray[np.object_]:
    """The languages of the texts, corrected where one of CORRECTIONS applies."""
    corrected = languages.copy()
    for correction in CORRECTIONS:
        rows = np.flatnonzero(np.isin(languages, correction.mistaken) & (corrected == languages))
        if len(rows):
            chosen = texts.take(pa.array(rows))
            signs = np.asarray(pc.count_substring_regex(chosen, pattern=correction.signs))
            against = (
                np.asarray(pc.count_substring_regex(chosen, pattern=correction.against)) if correction.against else 0
            )
            corrected[rows[signs > against + correction.margin]] = correction.language
    return corrected
