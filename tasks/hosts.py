r"""The host of a URL as a browser would take it (WHATWG URL standard, UTS 46), so that no spelling hides one.

HTTP://good.example:80@B%C3%BCcher.EXAMPLE.:8080/x  ->  xn--bcher-kva.example
https://bad.example\@good.example/                  ->  bad.example
"""

import re
import unicodedata
from urllib.parse import unquote

import idna

RESULT_PACKAGES = ("idna",)
IGNORED = re.compile(r"[\t\n\r]")  # a browser takes them out of a URL
SPECIAL = re.compile(r"(?:https?|ftp|wss?):[/\\]*", re.IGNORECASE)  # one slash or none do as well
SCHEME = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
AUTHORITY_END = re.compile(r"[/\\?#]")
BARE = re.compile(r"[^/\\?#@:\s]+\.[^/\\?#@:\s]+(?::[0-9]*)?(?=[/\\?#]|$)")  # example.com/page, without a scheme


def host_of(url: str) -> str:
    """The host in lower case and ASCII, without user, port and last dot; empty where there is none. Never raises."""
    text = IGNORED.sub("", url).strip()
    scheme = SPECIAL.match(text) or SCHEME.match(text)
    if scheme is None and not BARE.match(text):
        return ""
    authority = AUTHORITY_END.split(text[scheme.end() if scheme else 0 :], maxsplit=1)[0]
    return canonical_host(authority.rpartition("@")[2])


def canonical_host(host: str) -> str:
    """A host (with its port, if any) in the form in which hosts are compared."""
    if host.startswith("["):
        return host[: host.find("]") + 1].lower()
    name = unquote(host.partition(":")[0])
    if not name.isascii():
        name = ".".join(_ascii_label(label) for label in _mapped(name).split("."))
    return name.lower().strip(".")


def readable_host(host: str) -> str:
    """The host with its punycode labels as the letters that they stand for."""
    return ".".join(_readable_label(label) for label in host.split("."))


def _mapped(name: str) -> str:
    """Upper case, full-width letters and dots, ... as UTS 46 maps them; what it forbids, by compatibility alone."""
    try:
        return idna.uts46_remap(name, std3_rules=False, transitional=False)
    except idna.IDNAError:
        return unicodedata.normalize("NFKC", name).lower()


def _ascii_label(label: str) -> str:
    return label if label.isascii() else "xn--" + label.encode("punycode").decode("ascii")


def _readable_label(label: str) -> str:
    try:
        return label.removeprefix("xn--").encode("ascii").decode("punycode") if label.startswith("xn--") else label
    except UnicodeError:
        return label
