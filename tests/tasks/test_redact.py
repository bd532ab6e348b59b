"""redact: the same documents, without personal data; each edit in the ledger, never the data itself."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tasks.dataset import Workspace
from tasks.documents import document_id
from tasks.ledger import Ledger
from tasks.manifest import Manifest
from tasks.parts import read_ledger, read_part
from tasks.redact import (
    KINDS,
    REPLACEMENTS,
    RedactConfig,
    masked,
    redact_personal_data,
    redact_table,
    redact_text,
    replacement_of,
)
from tasks.storage import Storage
from tests.conftest import MakeDocuments, document_rows

CONFIG = RedactConfig()
TEXTS = [
    "Nothing personal in version 1.2.3.4.",
    "Write to jo@acme.org or JO@ACME.ORG, or call +31 546 577 994.",
    "The machine 86.231.85.193 (10.0.0.1 inside) and 2a04:4e42:e00::347.",
    "",
    "Überweisung an GB56HXDO88167774656119 – Karte 4539 7990 3179 6088 😀",
    "AWS key AKIAIOSFODNN7EXAMPLF, ask max@firma.de",
    "jo@acme.org again",
]
REASONS = {"email": 3, "phone": 1, "ipv4": 1, "ipv6": 1, "iban": 1, "card": 1, "api_key": 1}


def texts_of(workspace: Workspace, manifest: Manifest) -> list[str]:
    return [
        text for part in manifest.parts for t in read_part(workspace.storage, part) for text in t["text"].to_pylist()
    ]


def ledger_of(workspace: Workspace, manifest: Manifest) -> list[dict[str, Any]]:
    return [row for part in manifest.parts for row in read_ledger(workspace.storage, part).to_pylist()]


def cleaned(text: str, config: RedactConfig = CONFIG) -> str:
    table = redact_table(document_rows("web", [text], 0, {}), config, Ledger(), {})
    assert table["text"][0].as_py() == redact_text(text, config)
    return redact_text(text, config)


def test_golden_fixture_with_counted_reasons(workspace: Workspace, make_documents: MakeDocuments) -> None:
    documents = make_documents(TEXTS)
    redacted = redact_personal_data(documents, into=workspace, config=CONFIG)
    assert redacted.reasons == REASONS
    assert {k: redacted.totals[k] for k in ("rows_in", "rows_out", "dropped", "edited")} == {
        "rows_in": 7, "rows_out": 7, "dropped": 0, "edited": 5,
    }  # fmt: skip
    texts = texts_of(workspace, redacted)
    email = replacement_of("email", b"jo@acme.org", CONFIG).decode()
    assert [texts[0], texts[3], texts[6]] == [TEXTS[0], "", f"{email} again"]
    assert texts[1].startswith(f"Write to {email} or {email}, or call ")
    assert "10.0.0.1 inside" in texts[2]
    assert texts[4] == "Überweisung an [IBAN] – Karte [CARD NUMBER] 😀"
    assert texts[5].startswith("AWS key [API KEY], ask ")
    assert [cleaned(text) for text in texts] == texts


def test_the_ledger_counts_and_shows_shapes_never_the_data(workspace: Workspace, make_documents: MakeDocuments) -> None:
    rows = ledger_of(workspace, redact_personal_data(make_documents(TEXTS), into=workspace, config=CONFIG))
    own = [row for row in rows if row["doc_id"] == document_id("web", "file#1")]
    assert [(row["action"], row["reason"], row["value"], row["detail"]) for row in own] == [
        ("edit", "email", 2.0, '{"samples": ["aa@aaaa.aaa"]}'),
        ("edit", "phone", 1.0, '{"samples": ["+00 000 000 000"]}'),
    ]
    everything = str(rows)
    assert not any(secret in everything for secret in ("acme", "ACME", "546", "231", "HXDO", "4539", "AKIA", "firma"))


def test_the_manifest_sums_up_kinds_by_source_with_masked_samples(
    workspace: Workspace, make_documents: MakeDocuments
) -> None:
    documents = make_documents({"web": TEXTS * 2, "code": TEXTS[5:6], "wiki": TEXTS[:1]})
    summary = redact_personal_data(documents, into=workspace, config=CONFIG).extra["personal_data"]
    counts = {
        name: {kind: (own["documents"], own["matches"]) for kind, own in s.items()} for name, s in summary.items()
    }
    once = dict.fromkeys(("api_key", "card", "iban", "ipv4", "ipv6", "phone"), (2, 2))
    assert counts == {"web": {"email": (6, 8), **once}, "code": {"api_key": (1, 1), "email": (1, 1)}, "wiki": {}}
    assert summary["web"]["email"]["samples"] == ["aa@aaaa.aaa", "aaa@aaaaa.aa"]
    assert summary["web"]["card"]["samples"] == ["0000 0000 0000 0000"]


def test_addresses_for_examples_are_replaced_too_but_no_replacement_is() -> None:
    assert cleaned("ask jane@example.com") == f"ask {replacement_of('email', b'jane@example.com', CONFIG).decode()}"
    assert cleaned("ask EMAIL@example.com or 1-202-555-0117") == "ask EMAIL@example.com or 1-202-555-0117"
    own = RedactConfig(replacements={"email": ("jo@acme.org",)})
    assert cleaned("jo@acme.org, email@example.com", own) == "jo@acme.org, jo@acme.org"


def test_other_columns_and_order_stay(workspace: Workspace, make_documents: MakeDocuments) -> None:
    documents = make_documents(TEXTS, url=[f"http://x/{n}" for n in range(7)])
    redacted = redact_personal_data(documents, into=workspace, config=CONFIG)

    def others(manifest: Manifest) -> list[dict[str, Any]]:
        tables = [t.drop_columns("text") for part in manifest.parts for t in read_part(workspace.storage, part)]
        return [row for table in tables for row in table.to_pylist()]

    assert others(redacted) == others(documents)
    assert [part.source for part in redacted.parts] == [part.source for part in documents.parts]


def test_kinds_and_replacements_by_source(workspace: Workspace, make_documents: MakeDocuments) -> None:
    config = RedactConfig(
        kinds=("email",),
        replacements={"email": ("[MAIL]",)},
        by_source={"code": {"kinds": ["phone"]}, "wiki": {"enabled": False}},
    )
    texts = ["jo@acme.org +31 546 577 994"]
    redacted = redact_personal_data(
        make_documents({"web": texts, "code": texts, "wiki": texts}), into=workspace, config=config
    )
    web, code, wiki = texts_of(workspace, redacted)
    assert (web, wiki) == ("[MAIL] +31 546 577 994", texts[0])
    assert code.startswith("jo@acme.org ")
    assert code != texts[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_replacement_depends_on_the_match_alone_and_stays(kind: Any) -> None:
    matches = [f"{n}x".encode() for n in range(200)]
    chosen = {replacement_of(kind, match, CONFIG).decode() for match in matches}
    assert chosen == set(REPLACEMENTS[kind])
    assert replacement_of(kind, b"Jo@ACME.org", CONFIG) == replacement_of(kind, b"jo@acme.org", CONFIG)
    assert all(cleaned(f"phone, card: {text} office") == f"phone, card: {text} office" for text in chosen)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.text(alphabet=st.characters(exclude_categories=["Cs", "Nd"]), max_size=20),
            st.sampled_from(
                [
                    "jo@acme.org",
                    "+31 546 577 994",
                    "86.231.85.193",
                    "4539 7990 3179 6088",
                    "(202) 456-1111",
                    "@",
                    "1",
                    "tel",
                    "AKIAIOSFODNN7EXAMPLE",
                    "2a04:4e42:e00::347",
                    "me@example.com",
                    "202-555-0143",
                    ".",
                    ":",
                ]
            ),
        ),
        max_size=12,
    ),
    st.sampled_from([" ; ", " ", "\n"]),
)
@example(["1", "+31 546 577 994"], " ")
@example(["tel", "202-555-0117", "1"], " ")
def test_redacting_twice_changes_nothing(pieces: list[str], joint: str) -> None:
    text = joint.join(pieces)
    once = cleaned(text)
    assert cleaned(once) == once
    once.encode()


def test_clean_row_groups_pass_as_they_are() -> None:
    table = document_rows("web", ["clean", "also clean"], 0, {})
    assert redact_table(table, CONFIG, Ledger(), {}) is table


def test_masked_keeps_the_shape() -> None:
    assert masked("Jö.D1@x-y.org") == "aa.a0@a-a.aaa"
    assert len(masked("a" * 500)) == 64


def test_a_second_call_finds_it_and_a_killed_one_is_finished(
    workspace: Workspace, make_documents: MakeDocuments, tmp_path: Path
) -> None:
    documents = make_documents(TEXTS)
    first = redact_personal_data(documents, into=workspace, config=CONFIG)
    assert redact_personal_data(documents, into=workspace, config=CONFIG) == first
    files = {path: path.read_bytes() for path in (tmp_path / "lake/redact/parts").glob("*.parquet")}
    workspace.storage.delete(first.file_path("manifest.json"))
    workspace.storage.delete(first.parts[1].receipt_path)
    (tmp_path / "lake" / first.parts[1].path).write_bytes(b"half a f")
    kept = (tmp_path / "lake" / first.parts[0].path).stat().st_mtime_ns
    again = redact_personal_data(documents, into=workspace, config=CONFIG)
    assert (again.digest, again.parts) == (first.digest, first.parts)
    assert {path: path.read_bytes() for path in files} == files
    assert (tmp_path / "lake" / first.parts[0].path).stat().st_mtime_ns == kept


def test_workers_do_not_change_the_bytes(
    ray_cluster: None, workspace: Workspace, make_documents: MakeDocuments, tmp_path: Path
) -> None:
    first = redact_personal_data(make_documents(TEXTS * 3), into=workspace, config=CONFIG)
    other = Workspace(Storage(str(tmp_path / "other")), run_id="test", workers=2)
    again = redact_personal_data(make_documents(TEXTS * 3, into=other), into=other, config=CONFIG)
    assert (again.digest, again.parts, again.reasons) == (first.digest, first.parts, first.reasons)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kinds": ["telepathy"]}, "kinds"),
        ({"replacements": {"email": ["Jo <jo@acme.org>"]}}, "holds email data"),
        ({"replacements": {"phone": ["jo@acme.org"]}}, "holds email data"),
        ({"replacements": {"email": []}}, "at least 1"),
        ({"by_source": {"web": {"kind": []}}}, r"by_source\.web\.kind"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RedactConfig.model_validate(wrong)


def test_documents_of_all_sizes_pass(workspace: Workspace, make_documents: MakeDocuments) -> None:
    long = "word " * 400_000 + "jo@acme.org"
    texts = ["", "\x00", "\n\n", long, " " * 1_000_000]
    redacted = redact_personal_data(make_documents(texts, parts=2), into=workspace, config=CONFIG)
    out = texts_of(workspace, redacted)
    assert (out[:3], out[4]) == (texts[:3], texts[4])
    assert out[3] == long[:-11] + replacement_of("email", b"jo@acme.org", CONFIG).decode()
    assert redact_personal_data(make_documents([]), into=workspace, config=CONFIG).totals["rows_out"] == 0
