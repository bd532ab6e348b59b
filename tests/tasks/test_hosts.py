"""The host of a URL: every spelling that a browser takes for the same host gives the same one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.hosts import canonical_host, host_of, readable_host


@pytest.mark.parametrize(
    "url",
    [
        "https://bad.example/page", "HTTP://BAD.Example", "http://bad.example.", "http://bad.example:8080/x",
        "http://good.example@bad.example/", "http://good.example:80@bad.example:81", "http://a@b@bad.example",
        "http://good.example%2F@bad.example", "https://bad.example\\@good.example/", "https:\\\\bad.example\\x",
        "http:bad.example", "http:/bad.example", "http:///bad.example", "//bad.example/x", "bad.example/page?x#y",
        "  https://bad.example?q=http://good.example", "http://b\tad.exa\nmple/", "http://b%61d.example",
        "http://ｂａｄ.example", "http://bad。example/", "ftp://user:secret@bad.example/f", "http://bad.example#@good.example",
    ],
)  # fmt: skip
def test_one_host_in_many_spellings(url: str) -> None:
    assert host_of(url) == "bad.example"


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://Bücher.example/", "xn--bcher-kva.example"),
        ("http://B%C3%BCcher.example/", "xn--bcher-kva.example"),
        ("http://xn--bcher-kva.EXAMPLE", "xn--bcher-kva.example"),
        ("http://faß.example", "xn--fa-hia.example"),  # IDNA 2008, as browsers do; not fass
        ("http://☃.example", "xn--n3h.example"),
        ("http://a_b.c--d.example", "a_b.c--d.example"),
        ("http://1.2.3.4:80/", "1.2.3.4"),
        ("http://[2001:DB8::1]:443/x", "[2001:db8::1]"),
        ("localhost:8000/x", ""),
        ("mailto:a@bad.example", ""),
        ("urn:isbn:0451450523", ""),
        ("file:///home/x", ""),
        ("data:text/html,x", ""),
        ("", ""),
        ("http://", ""),
    ],
)
def test_other_hosts(url: str, host: str) -> None:
    assert host_of(url) == host


def test_punycode_is_read_where_it_is_sound() -> None:
    assert readable_host("xn--bcher-kva.example") == "bücher.example"
    assert readable_host("xn--\u0080.xn--!.example").endswith(".example")


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60))
def test_no_text_breaks_it_and_the_form_is_stable(text: str) -> None:
    host = host_of("http://" + text)
    assert canonical_host(host) == host or "%" in host or ":" in host or not host.isascii()
    assert isinstance(host_of(text), str)
    assert isinstance(readable_host(host), str)
