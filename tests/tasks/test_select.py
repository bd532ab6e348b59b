"""Each rule drops what it should for the reason it should; nothing is lost; rows are compared by doc_id."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tasks import select
from tasks.dataset import Workspace
from tasks.errors import DataError
from tasks.manifest import Manifest
from tasks.parts import PartWriter, Unit, read_ledger, read_part
from tasks.select import select_documents
from tasks.select.rules import FAMILIES, RULES, SelectConfig
from tasks.signals import SignalsConfig, measure_signals
from tests.conftest import MakeDocuments

SENTENCES = [
    "The river that runs past our village was high with melted snow in early spring.",
    "Children went down to watch grey ice break against both piers of an old stone bridge.",
    "Nobody could remember so much water, and many people moved their cattle to higher fields.",
    "By evening it had rained again, which made every road below the mill hard to pass.",
    "A letter from town arrived two days late because its carrier had to walk around by the forest.",
    "When summer came at last, gardens on that side of the valley were greener than ever before.",
]
GOOD = "\n".join(SENTENCES)
THAI = "ประเทศไทยเป็นประเทศที่ตั้งอยู่ในภูมิภาคเอเชียตะวันออกเฉียงใต้ " * 40
# text -> the reason for which it is dropped
GOLDEN = {
    GOOD: None,
    "": "empty",
    "\u00a0\u200b\n": "empty",
    "Menu\nHome\n": "all_lines_cut",
    "The short one of that kind.": "gopher_quality.min_words",
    GOOD.replace(" ", " a "): "gopher_quality.min_mean_word_chars",
    GOOD + " x" + "y" * 900 + " " + "z" * 990: "gopher_quality.max_mean_word_chars",
    GOOD + " #" * 30: "gopher_quality.max_hash_ratio",
    GOOD + " ..." * 30: "gopher_quality.max_ellipsis_ratio",
    "\n".join(f"- {line}" for line in SENTENCES): "gopher_quality.max_bullet_line_ratio",
    "\n".join(f"{line[:-1]}…" for line in SENTENCES): "gopher_quality.max_ellipsis_line_ratio",
    GOOD + " 123" * 60: "gopher_quality.min_alphabetic_word_ratio",
    "\n".join(f"Grüner Fluss Nummer {n} fließt ruhig durchs alte Tal, sagt man dort." for n in "abcdefgh"): (
        "gopher_quality.min_stop_words"
    ),
    "\n\n".join([GOOD] * 3): "gopher_repetition.max_duplicate_paragraph_ratio",
    "\n".join([*SENTENCES, *SENTENCES[:4]]): "gopher_repetition.max_duplicate_line_ratio",
    GOOD + " village spring" * 12: "gopher_repetition.max_top_2gram_char_ratio",
    GOOD + "\nThen {x} is one more of them.": "c4.max_curly_brackets",
    GOOD + "\nThen lorem ipsum is one more.": "c4.max_lorem_ipsums",
    GOOD.replace(".", ",").replace("\n", " "): "c4.min_sentences",
    GOOD.replace(".", ""): "fineweb.min_ended_line_ratio",
    THAI: None,
}
REFINEDWEB: dict[str, Any] = {"refinedweb": {}}
FUNNEL = Counter(reason for reason in GOLDEN.values() if reason)
NO_FAMILIES = {name: None for name in FAMILIES if name not in ("quality", "toxicity", "perplexity")}


@pytest.fixture
def run(workspace: Workspace, make_documents: MakeDocuments) -> Callable[..., tuple[Manifest, list[Any], list[Any]]]:
    """run(texts, **settings): the selected dataset, its rows and its ledger."""

    def select_texts(texts: Any, **settings: Any) -> tuple[Manifest, list[Any], list[Any]]:
        documents = make_documents(texts)
        measured = SignalsConfig.model_validate(settings.pop("signals", {}))
        signals = measure_signals(documents, into=workspace, config=measured)
        kept = select_documents(documents, signals, into=workspace, config=SelectConfig.model_validate(settings))
        rows = [row for part in kept.parts for t in read_part(workspace.storage, part) for row in t.to_pylist()]
        ledger = [row for part in kept.parts for row in read_ledger(workspace.storage, part).to_pylist()]
        return kept, rows, ledger

    return select_texts


Run = Callable[..., tuple[Manifest, list[Any], list[Any]]]


def test_golden_documents_and_their_reasons(run: Run) -> None:
    texts = list(GOLDEN)
    kept, rows, ledger = run(texts)
    reasons = {row["doc_id"]: row["reason"] for row in ledger if row["action"] == "drop"}
    dropped = {texts[int(row["raw_ref"].split("#")[1])] for row in rows}
    assert dropped == {text for text, reason in GOLDEN.items() if reason is None}
    assert Counter(reasons.values()) == FUNNEL
    assert {reason: count for reason, count in kept.reasons.items() if reason in FUNNEL} == dict(FUNNEL)
    assert kept.totals["rows_in"] == len(GOLDEN) == len(rows) + len(reasons)


def test_the_ledger_names_value_and_threshold(run: Run) -> None:
    _, _, ledger = run(["The short one of that kind.", GOOD + " #" * 30], gopher_quality={"min_words": 7})
    short, hashes = sorted(ledger, key=lambda row: -row["threshold"])
    assert (short["reason"], short["value"], short["threshold"]) == ("gopher_quality.min_words", 6, 7)
    assert hashes["threshold"] == 0.1
    assert hashes["value"] == pytest.approx(30 / (len(GOOD.split()) + 30))


def test_equal_to_the_threshold_passes(run: Run) -> None:
    settings = NO_FAMILIES | {"gopher_quality": {"min_words": 6, "max_words": 6} | OTHERS_OFF}
    _, rows, ledger = run(["a b c d e f", "a b c d e", "a b c d e f g"], **settings)
    assert [row["text"] for row in rows] == ["a b c d e f"]
    assert {row["reason"] for row in ledger} == {"gopher_quality.min_words", "gopher_quality.max_words"}


OTHERS_OFF = {
    rule.reason.split(".")[1]: None
    for rule in RULES
    if rule.reason.startswith("gopher_quality") and not rule.reason.endswith("_words")
} | {"min_stop_words": None}


def test_cut_spans_are_applied_and_told(run: Run) -> None:
    text = GOOD + "\nMenu\nPlease turn on JavaScript here.\n" + "It is cited [12] once more."
    _, rows, ledger = run([text, GOOD])
    assert [row["text"] for row in rows] == [GOOD + "\nIt is cited  once more.", GOOD]
    (edit,) = ledger
    assert (edit["action"], edit["reason"]) == ("edit", "line_rules")
    assert edit["value"] == len("Menu\nPlease turn on JavaScript here.\n[12]")
    assert json.loads(edit["detail"]) == {"short_lines": 1, "phrase_lines": 1, "citations": 1}


def test_refinedwebs_line_rules_cut_and_drop_what_loses_too_much(run: Run) -> None:
    """Cuts are in the ledger by rule; a document that lost more than 5 % of its words goes; off for other sources."""
    few, many = GOOD + "\n3 likes\nSHARE THIS PAGE\n", GOOD + "\n3 likes\n" * 3
    signals = {"by_source": {"web": {"refinedweb_lines": {}, "min_line_words": 0}}}
    kept, rows, ledger = run({"web": [few, many], "wiki": [many]}, signals=signals, **(NO_FAMILIES | REFINEDWEB))
    assert [(row["source"], row["text"]) for row in rows] == [("web", GOOD + "\n"), ("wiki", GOOD + "\n\n")]
    facts = {row["source"]: json.loads(row["detail"] or "{}") for row in ledger if row["action"] == "edit"}
    assert facts == {"web": {"counter_lines": 1, "upper_case_lines": 1}, "wiki": {"short_lines": 3}}
    assert next(row["value"] for row in ledger if "upper" in (row["detail"] or "")) == len("3 likes\nSHARE THIS PAGE\n")
    [drop] = [row for row in ledger if row["action"] == "drop"]
    assert (drop["reason"], drop["threshold"]) == ("refinedweb.max_edited_word_ratio", 0.05)
    words = len(GOOD.split())
    assert drop["value"] == pytest.approx(6 / (words + 6))
    assert sum(len(row["text"].encode()) for row in rows) + sum(
        row["value"] for row in ledger if row["action"] == "edit"
    ) == len((few + many).encode())
    assert kept.totals["edited"] == 2


CODE = "def area(width, height):\n    return width * height\n" * 20
CODE_GOLDEN = {
    CODE: None,
    "# Copyright 2026 A\n\n" + CODE: None,
    "data = '" + "ab" * 600 + "'\n" + CODE: "code.max_longest_line_chars",
    "name = " * 20 + "1\n": "code.max_mean_line_chars",
    "{[(: ; !)]}\n" * 9: "code.min_alphanumeric_ratio",
    "1, 2, 3, 45\n" * 9: "code.min_alphabetic_ratio",
    "# Code generated by x. DO NOT EDIT.\n" + CODE: "code.max_generated_marks",
    '<?xml version="1.0"?>\n<name>word</name>\n': "code.max_xml_declarations",
}


def test_code_rules_judge_the_source_that_asks_for_them(run: Run) -> None:
    """StarCoder's thresholds; the licence header goes as a span, in the ledger; other sources are not judged so."""
    whole = {"max_word_chars": 0, "min_line_words": 0, "cut_phrases": [], "cut_citations": False}
    signals = {"by_source": {"code": whole | {"cut_licence_headers": True}}}
    off = {"language": None, "gopher_quality": None, "gopher_repetition": None, "c4": None, "fineweb": None}
    texts = list(CODE_GOLDEN)
    rules = {"by_source": {"code": off | {"code": {}}, "raw": off}}
    kept, rows, ledger = run({"code": texts, "raw": texts[4:6]}, signals=signals, **rules)
    assert [row["text"] for row in rows if row["source"] == "code"] == [CODE, CODE]
    assert Counter(kept.by_source["code"]["reasons"]) == Counter(
        ["line_rules", *(reason for reason in CODE_GOLDEN.values() if reason)]
    )
    [edit] = [row for row in ledger if row["action"] == "edit" and row["source"] == "code"]
    assert (json.loads(edit["detail"]), edit["value"]) == ({"licence_headers": 1}, len("# Copyright 2026 A\n\n"))
    assert not any(reason.startswith("code.") for reason in kept.by_source["raw"]["reasons"])


def test_sources_have_rules_of_their_own(run: Run) -> None:
    code = "int main() { return 0; }\nMenu\n"
    kept, rows, _ = run(
        {"web": [code, GOOD], "code": [code, GOOD], "raw": [code, ""]},
        by_source={"code": NO_FAMILIES, "raw": {"enabled": False}, "web": {"gopher_quality": {"min_words": 3}}},
    )
    by_source = {source: [row["text"] for row in rows if row["source"] == source] for source in ("web", "code", "raw")}
    assert by_source == {"web": [GOOD], "code": ["int main() { return 0; }\n", GOOD], "raw": [code, ""]}
    assert kept.by_source["web"]["reasons"]["gopher_quality.min_alphabetic_word_ratio"] == 1


def test_languages(run: Run) -> None:
    german = "Der schnelle braune Fuchs springt über den faulen Hund und läuft weiter."
    settings = NO_FAMILIES | {"language": {"keep": ["eng", "tha"], "min_language_score": 0.5}}
    _, rows, ledger = run([GOOD, german, THAI, "a7"], **settings)
    assert [row["text"] for row in rows] == [GOOD, THAI]
    assert json.loads(next(row for row in ledger if row["detail"])["detail"]) == {"language": "de"}


def test_expressions_drop_and_say_what_they_saw(run: Run) -> None:
    """A simple comparison names value and threshold, a longer one the signals that it read; judged in order of name."""
    rules = {"brackets": "num_curly_brackets > 0", "aged": 'language in ("eng",) and num_words < 12 and num_chars > 20'}
    short, code = "The old river was high in early spring.", GOOD + " {x}"
    kept, rows, ledger = run([GOOD, short, code, short + " {x}"], **NO_FAMILIES, rules=rules)
    assert [row["text"] for row in rows] == [GOOD]
    assert Counter(row["reason"] for row in ledger) == {"rules.aged": 2, "rules.brackets": 1} == kept.reasons
    simple = next(row for row in ledger if row["reason"] == "rules.brackets")
    assert (simple["value"], simple["threshold"], simple["detail"]) == (1, 0, None)
    longer = next(row for row in ledger if row["reason"] == "rules.aged")
    assert (longer["value"], longer["threshold"]) == (None, None)
    assert json.loads(longer["detail"]) == {"language": "en", "num_chars": len(short), "num_words": 8}


def test_an_expression_over_a_null_signal_drops_nothing_and_is_counted(run: Run, workspace: Workspace) -> None:
    kept, rows, _ = run(
        [THAI, GOOD], **NO_FAMILIES, rules={"short": "num_stop_words < 10000", "b": "num_stop_words > 9999"}
    )
    assert [row["text"] for row in rows] == [THAI]
    receipts = [workspace.storage.read_json(part.receipt_path) for part in kept.parts]
    counts = [receipt["extra"]["not_applied"] for receipt in receipts if "not_applied" in receipt["extra"]]
    assert counts == [{"rules.b": 1, "rules.short": 1}]


def test_languages_have_rules_of_their_own(run: Run) -> None:
    """datatrove#365, NVIDIA-NeMo/Curator#281: thresholds for one language, its code normalised."""
    german = "\n".join(f"Grüner Fluss Nummer {n} fließt ruhig durchs alte Tal, sagt man dort." for n in "abcdefgh")
    off = {"gopher_quality": {"min_stop_words": None}, "gopher_repetition": None}
    by_language = {"deu": off | {"rules": {"long": "num_words > 100"}}, "fr": {"rules": {"all": "num_words > 0"}}}
    by_source = {"news": {"by_language": {"de": {"rules": {"long": "num_words > 80"}}}}}
    texts = {"web": [GOOD, german, german + "\n" + german.replace("Fluss", "Bach")], "news": [german]}
    kept, rows, ledger = run(texts, by_language=by_language, by_source=by_source)
    assert [(row["source"], row["text"]) for row in rows] == [("web", GOOD), ("web", german)]
    facts = {row["source"]: (row["reason"], row["value"], row["threshold"]) for row in ledger}
    assert facts == {"web": ("rules.long", 192, 100), "news": ("rules.long", 96, 80)}
    assert kept.by_source["news"]["reasons"] == {"rules.long": 1}


def test_blank_lines_and_separators_make_nothing_repetitive(run: Run) -> None:
    """datatrove#273: a poem with a blank line after each line, and code by the rules that its source has."""
    poem = "\n\n".join(SENTENCES)
    code = "def area(width, height):\n\n    return {'area': width * height}\n\n\nfor name in names:\n\n    print(name)"
    families = ("c4", "gopher_quality", "gopher_repetition", "fineweb")
    _, rows, _ = run({"web": [poem], "code": [code]}, by_source={"code": dict.fromkeys(families)})
    assert [row["source"] for row in rows] == ["web", "code"]


def test_another_expression_measures_nothing_again_and_leaves_other_sources(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    """datatrove#220: a changed rule is never taken for done; only select's own parts of that source are made again."""
    documents = make_documents({"web": [GOOD, "a b c"], "code": ["x y z", GOOD]}, parts=1)
    signals = measure_signals(documents, into=workspace, config=SignalsConfig())
    results = [
        select_documents(documents, signals, into=workspace, config=SelectConfig.model_validate({"by_source": own}))
        for own in ({}, {"web": {"rules": {"all": "num_words > 1"}}})
    ]
    (web, code), (other_web, other_code) = ([part.key for part in result.parts] for result in results)
    assert code == other_code
    assert web != other_web
    assert results[1].by_source["web"]["rows_out"] == 0


def test_rules_that_do_not_apply_are_counted(run: Run, workspace: Workspace) -> None:
    kept, rows, _ = run([THAI])
    assert [row["text"] for row in rows] == [THAI]
    receipt = workspace.storage.read_json(kept.parts[0].receipt_path)
    assert receipt["extra"]["not_applied"]["gopher_quality.min_stop_words"] == 1
    assert receipt["extra"]["not_applied"]["fineweb.min_ended_line_ratio"] == 1


def test_a_source_that_loses_nearly_all_stops_the_stage(run: Run) -> None:
    texts = ["too short"] * 950 + [GOOD] * 50
    with pytest.raises(DataError, match=r"950 of 1000 documents of source 'web'.*all_lines_cut 950.*max_drop_ratio"):
        run(texts)
    kept, rows, _ = run(texts, by_source={"web": {"max_drop_ratio": 1.0}})
    assert len(rows) == 50
    assert len(run({"small": texts[:900], "other": [GOOD]})[1]) == 1
    assert kept.totals["dropped"] == 950


def test_a_source_that_ends_empty_is_named_and_a_corpus_that_does_stops_the_stage(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    run({"web": ["too short"] * 20, "few": ["too short"] * 19, "void": [], "other": [GOOD]})
    [record] = [record for record in caplog.records if record.name == "tasks.select"]
    assert record.getMessage().startswith("select: all 20 documents of source web dropped (all_lines_cut 20). ")
    with pytest.raises(DataError, match=r"every source .*: web 19 \(all_lines_cut 18\); few 1 \(empty 1\)\. .*whatif"):
        run({"web": [*["too short"] * 18, ""], "few": [""], "void": []})
    assert run({"web": ["too short"] * 19})[1] == []


def test_signals_of_other_documents_fail_the_stage(workspace: Workspace, make_documents: MakeDocuments) -> None:
    documents = make_documents([GOOD, "a", "b"], parts=1)
    config = SignalsConfig()
    for others, message in (
        (make_documents([GOOD, "a", "b"], source="wiki", parts=1), "meets the signals of wiki:"),
        (make_documents([GOOD, "a"], parts=1), "3 documents in a row group, but 2 rows"),
        (make_documents([GOOD, "a", "b"], parts=3), "1 parts of documents, but 3 of signals"),
    ):
        signals = measure_signals(others, into=workspace, config=config)
        with pytest.raises(DataError, match=message):
            select_documents(documents, signals, into=workspace, config=SelectConfig())


def test_another_threshold_measures_nothing_again(workspace: Workspace, make_documents: MakeDocuments) -> None:
    documents = make_documents({"web": [GOOD, "a b c", "d e f g"], "code": ["x y z", GOOD]})
    signals = measure_signals(documents, into=workspace, config=SignalsConfig())
    first = select_documents(documents, signals, into=workspace, config=SelectConfig())
    assert select_documents(documents, signals, into=workspace, config=SelectConfig()) == first
    config = SelectConfig(by_source={"web": {"gopher_quality": {"min_words": 60}}})
    second = select_documents(documents, signals, into=workspace, config=config)
    keys = [{part.key for part in manifest.parts_of("code")} for manifest in (first, second)]
    assert keys[0] == keys[1]
    assert not {part.key for part in first.parts_of("web")} & {part.key for part in second.parts_of("web")}


def test_a_killed_stage_finishes_with_the_same_bytes(
    workspace: Workspace, make_documents: MakeDocuments, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = make_documents(list(GOLDEN), parts=3)
    signals = measure_signals(documents, into=workspace, config=SignalsConfig())
    straight = Workspace(workspace.storage, generations={"select": 1})
    expected = select_documents(documents, signals, into=straight, config=SelectConfig())
    whole, calls = select.select_part, Counter[str]()

    def killed(unit: Unit, writer: PartWriter) -> None:
        calls["parts"] += 1
        if calls["parts"] == 3:
            raise KeyboardInterrupt
        whole(unit, writer)

    with monkeypatch.context() as patch:
        patch.setattr(select, "select_part", killed)
        with pytest.raises(KeyboardInterrupt):
            select_documents(documents, signals, into=workspace, config=SelectConfig())
    again = select_documents(documents, signals, into=workspace, config=SelectConfig())
    assert [part.sha256 for part in again.parts] == [part.sha256 for part in expected.parts]
    assert again.digest == expected.digest


@pytest.mark.usefixtures("ray_cluster")
def test_same_bytes_for_any_number_of_workers(workspace: Workspace, make_documents: MakeDocuments) -> None:
    documents = make_documents(list(GOLDEN), parts=4)
    results = []
    for generation, workers in enumerate((0, 1, 2)):
        into = Workspace(workspace.storage, workers=workers, generations={"signals": generation, "select": generation})
        signals = measure_signals(documents, into=into, config=SignalsConfig())
        kept = select_documents(documents, signals, into=into, config=SelectConfig())
        results.append([part.sha256 for part in (*signals.parts, *kept.parts)])
    assert results[0] == results[1] == results[2]
