"""Prose in scripts without spaces is kept by the rules as they are, and its words are counted by letters."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.kernels.buffers import text_buffers
from tasks.kernels.characters import SPACE, UNSPACED, WORD, character_table
from tasks.kernels.unspaced import FIRST_IDEOGRAPH, MYANMAR_EXTENDED, count_words
from tasks.select.rules import SelectConfig
from tasks.select.verdicts import first_failing, verdicts
from tasks.signal_table import SIGNALS
from tasks.signals import SignalsConfig, measure, unmeasured

GOLD = Path(__file__).parents[4] / "shared/data"
PROSE = {  # articles 1, 3, 4 and 5 of the Universal Declaration of Human Rights, which is free to reproduce
    "zh": (
        "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心,并应以兄弟关系的精神相对待。\n"
        "人人有权享有生命、自由和人身安全。\n"
        "任何人不得使为奴隶或奴役;一切形式的奴隶制度和奴隶买卖,均应予以禁止。\n"
        "任何人不得加以酷刑,或施以残忍的、不人道的或侮辱性的待遇或刑罚。"
    ),
    "ja": (
        "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。人間は、理性と良心と"
        "を授けられており、互いに同胞の精神をもって行動しなければならない。\n"
        "すべての人は、生命、自由及び身体の安全に対する権利を有する。\n"
        "何人も、奴隷にされ、又は苦役に服することはない。奴隷制度及び奴隷売買は、いかなる形においても禁止する。\n"
        "何人も、拷問又は残虐な、非人道的なもしくは屈辱的な取扱もしくは刑罰を受けることはない。"
    ),
    "th": (
        "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ต่างมีเหตุผลและมโนธรรม และควรปฏิบัติต่อกั"
        "นด้วยเจตนารมณ์แห่งภราดรภาพ\n"
        "คนทุกคนมีสิทธิในการดำรงชีวิต เสรีภาพ และความมั่นคงแห่งตัวตน\n"
        "บุคคลใด ๆ จะถูกยึดเป็นทาส หรือต้องภาระจำยอมไม่ได้ความเป็นทาษ และการค้าทาษเป็นห้ามขาดทุกรูป\n"
        "บุคคลใด ๆ จะถูกทรมานหรือได้รับผลปฏิบัติ หรือการลงโทษที่โหดร้ายผิดมนุษยธรรมหรือต่ำช้าไม่ได้"
    ),
    "km": (
        "មនុស្សទាំងអស់ កើតមកមានសេរីភាព និងសមភាព ក្នុងផ្នែកសេចក្ដីថ្លៃថ្នូរនិងសិទ្ធិ។ មនុស្ស មានវិចារណញ្ញាណនិងសតិស"
        "ម្បជញ្ញៈជាប់ពីកំណើត ហើយគប្បីប្រព្រឹត្ដចំពោះគ្នាទៅវិញទៅមកក្នុងស្មារតីភាតរភាពជាបងប្អូន។\n"
        "បុគ្គលម្នាក់ៗ មានសិទ្ធិរស់រានមានជីវិត សេរីភាព និងសន្ដិសុខផ្ទាល់ខ្លួន។\n"
        "គ្មានជនណាម្នាក់ ត្រូវស្ថិតក្នុងទាសភាព ឬស្ថិតក្នុងភាពជាអ្នកបម្រើដាច់ថ្លៃឡើយ។ ទាសភាព និងទាសពាណិជ្ជកម្ម តាម"
        "គ្រប់ទម្រង់ទាំងអស់ ត្រូវហាមឃាត់។\n"
        "គ្មានជនណាម្នាក់ ត្រូវទទួលទារុណកម្ម ឬការប្រព្រឹត្ដិមកលើខ្លួន ឬទណ្ឌកម្មឃោរឃៅ អមនុស្សធម៌ ឬបន្ថោកបន្ទាបបានឡើ"
        "យ។"
    ),
    "lo": (
        "ມະນຸດເກີດມາມີສິດເສລີພາບ ແລະ ສະເໝີໜ້າກັນໃນທາງກຽດຕິສັກ ແລະ ທາງສິດດ້ວຍມະນຸດມີສະຕິສຳປັດຊັນຍະ(ຮູ້ດີຮູ້ຊົ່ວ)ແລ"
        "ະມີມະໂນທຳຈື່ງຕ້ອງປະພຶດຕົນຕໍ່ກັນໃນທາງພີ່ນ້ອງ.\n"
        "ບຸກຄົນທຸກຄົນມີສິດດຳລົງຊີວິດ ມີສິດເສລີພາບ ແລະ ຄວາມປອດໄພໃນຕົວ.\n"
        "ບໍ່ມີຜູ້ໃດເລີຍທີ່ຈະຕ້ອງຖືວ່າ:ມີອາການເປັນທາດ ແລະ ເປັນຂ້ອຍເປັນຂ້າການເປັນທາດ ແລະ ຂ້າທາດນັ້ນ ເປັນສີ່ງທີ່ຕ້ອງ"
        "ຫ້າມທຸກປະການ.\n"
        "ບໍ່ມີຜູ້ໃດເລີຍທີ່ຈະຕ້ອງຖືກທໍລະມານຕົວ ຖືກໂທດ ຫຼື ຂະນາບຢ່າງມາລຸນໂຫດຮ້າຍຢ່າງຂາດມະນຸດສະທຳ ຫຼື ເຊື່ອມເສຍກຽດຕິ"
        "ຍົດ."
    ),
    "my": (
        "လူတိုင်းသည် တူညီ လွတ်လပ်သော ဂုဏ်သိက္ခာဖြင့် လည်းကောင်း၊ တူညီလွတ်လပ်သော အခွင့်အရေးများဖြင့် လည်းကောင်း၊ မွေး"
        "ဖွားလာသူများ ဖြစ်သည်။ ထိုသူတို့၌ ပိုင်းခြား ဝေဖန်တတ်သော ဉာဏ်နှင့် ကျင့်ဝတ် သိတတ်သော စိတ်တို့ရှိကြ၍ ထိုသူ"
        "တို့သည် အချင်းချင်း မေတ္တာထား၍ ဆက်ဆံကျင့်သုံးသင့်၏။\n"
        "လူတိုင်း၌ အသက်ရှင်ရန် လွတ်လပ်ခွင့်နှင့် လုံခြုံစိတ်ချခွင့် ရှိသည်။\n"
        "မည်သူကိုမျှ ကျေးကျွန်အဖြစ်၊ သို့တည်းမဟုတ် အစေအပါးအဖြစ်၊ နိုင်ထက်စီးနင်း စေခိုင်းခြင်း မပြုရ၊ လူကို ကျေးကျွ"
        "န် သဖွယ် အဓမ္မ စေခိုင်းခြင်း၊ အရောင်းအဝယ် ပြုခြင်းနှင့် ထိုသဘော သက်ရောက်သော လုပ်ငန်းဟူသမျှကို ပိတ်ပင် တား"
        "မြစ် ရမည်။\n"
        "မည်သူကိုမျှ ညှဉ်းပန်းနှိပ်စက်ခြင်း၊ သို့တည်းမဟုတ် ရက်စက်ကြမ်းကြုတ်စွာ လူမဆန်စွာ ဂုဏ်ငယ်စေသောဆက်ဆံမှု မပြု"
        "ရ၊ သို့တည်းမဟုတ် အပြစ်ဒဏ် ပေးခြင်းမပြုရ။"
    ),
}  # fmt: skip
# lines of speech, as novels have them: short, and ended by what closes the speech
SPEECH = "「そうですか」と彼は言った。\n「ええ、明日の朝には」\n『また会えるといいですね』\n他说：“我们明天再见吧。”\n"


def counted(*texts: str) -> list[int]:
    data, offsets = text_buffers(pa.array(texts, pa.large_string()))
    return list(count_words(data, offsets, np.arange(len(texts)), character_table()))


def reasons(texts: list[str]) -> list[str | None]:
    """Why the rules, as they are by default, drop each text; None: it is kept."""
    columns = unmeasured(len(texts)) | measure(pa.array(texts, pa.large_string()), SignalsConfig())
    found = verdicts(pa.table({signal.name: columns[signal.name] for signal in SIGNALS}), SelectConfig())
    return [found[index].reason if index >= 0 else None for index in first_failing(found, len(texts))]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("東京タワー", 2),  # 5 letters, 2 to a word
        ("使用 OpenTelemetry的API。", 3),  # 3 letters and 2 words
        ("ประเทศไทย", 1),  # 9 letters and signs, 5 to a word
        ("ภาษา 汉字", 1),  # 4 of 5 and 2 of 2 make 1.8
        ("don't、well-known（12）", 3),
        ("。…（）\n #", 0),
        ("", 0),
    ],
)
def test_words_are_counted_by_letters(text: str, words: int) -> None:
    assert counted(text) == [words]


def test_only_the_rows_asked_for_are_counted() -> None:
    data, offsets = text_buffers(pa.array(["汉字", "one two three", "ไทยไทยไทยไ"], pa.large_string()).slice(1))
    assert count_words(data, offsets, np.array([1, 0]), character_table()).tolist() == [2, 3]
    assert len(count_words(data, offsets, np.zeros(0, np.int64), character_table())) == 0


def test_every_unspaced_script_has_its_rate() -> None:
    """10 letters of Han and kana are 5 words, of each other script 2."""
    letters = np.flatnonzero((character_table() & (WORD | UNSPACED | SPACE)) == WORD | UNSPACED)
    is_syllabic = (letters < FIRST_IDEOGRAPH) | ((letters >= MYANMAR_EXTENDED[0]) & (letters < MYANMAR_EXTENDED[1]))
    assert all(
        counted(chr(code) * 10) == [2 if low else 5] for code, low in zip(letters[::50], is_syllabic[::50], strict=True)
    )
    assert {"ก", "ກ", "က", "ꩠ", "ក"} <= set(map(chr, letters[is_syllabic]))
    assert {"の", "カ", "漢", "𠀋", "ｱ"} <= set(map(chr, letters[~is_syllabic]))


@pytest.mark.parametrize("language", PROSE)
def test_normal_prose_is_kept(language: str) -> None:
    """NVIDIA-NeMo/Curator#281: Thai, Chinese and Japanese were lost to rules that count words between spaces."""
    text = PROSE[language]
    assert reasons([text, text.replace("\n", " "), text[: len(text) // 10]]) == [None, None, "gopher_quality.min_words"]
    assert 50 <= counted(text)[0] <= 150


def test_speech_and_mixed_technical_prose_are_kept() -> None:
    assert reasons([(SPEECH + PROSE["ja"]) * 2])[0] == "gopher_repetition.max_duplicate_line_ratio"
    assert reasons([SPEECH + PROSE["ja"]]) == [None]
    link = "请参见 [Collector 配置文档](https://opentelemetry.io/docs/collector/configuration/)，第 {} 节。\n"
    assert reasons(["".join(link.format(number) for number in range(20))]) == [None]


def test_ends_of_lines() -> None:
    columns = measure(
        pa.array(["」\n他说“好。”\n好』\n“好”\n(ok.)\n好。）\n”\n漢"], pa.large_string()),
        SignalsConfig(min_line_words=0),
    )
    assert columns["ended_line_ratio"][0].as_py() == 4 / 8
    for name in ("short_line_ratio", "mean_word_chars", "num_stop_words", "duplicate_5gram_char_ratio"):
        assert columns[name][0].as_py() is None, name


@pytest.mark.skipif(not GOLD.is_dir(), reason="the shared corpora are not here")
def test_encyclopedias_are_kept() -> None:
    """Paragraphs of Wikipedia. What goes was cut in mid-sentence by its makers, has braces or is a line or two."""
    rows = pq.read_table(GOLD / "text/encyclopedic_multi.parquet", columns=["text", "lang"]).to_pylist()
    texts = [row["text"] for row in rows if row["lang"] in ("th", "zh-Hant")]
    found = reasons(texts)
    assert found.count(None) > 0.97 * len(texts)
    assert {reason.split(".")[0] for reason in found if reason} <= {"c4", "fineweb", "all_lines_cut"}
    ended = {"c4.min_sentences", "fineweb.min_ended_line_ratio", "all_lines_cut"}
    assert set(filter(None, found)) <= ended
