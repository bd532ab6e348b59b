"""What documents' URLs say: words, substrings and listed domains in them (RefinedWeb and FineWeb filter by these).

Words are runs of letters and digits of the whole URL, percent-encoding and punycode resolved, in lower case; a word of
a list counts once however often it stands there. Substrings are looked for in the URL without its - and dots. Without a
URL nothing is measured (null). Select drops at one hard word, two soft words, one substring, a listed domain.

    https://free-movies.example/play-poker-casino.html     soft words "casino poker"
"""

import re
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Annotated, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AfterValidator, BaseModel, Field

from tasks.config import Several
from tasks.hosts import host_of, readable_host
from tasks.signals.domain_lists import DomainListConfig, Hashes, find_listed

# Our own, and short on purpose: enough to show what they do. What a corpus needs stands in its recipe.
HARD_WORDS = ("porn", "porno", "hentai", "camgirl", "camgirls", "sexcam", "sexcams", "gangbang", "creampie", "upskirt")
SOFT_WORDS = (
    *("xxx", "sex", "sexy", "nude", "nudes", "erotic", "escort", "escorts", "webcam", "milf", "dating", "casino"),
    *("casinos", "poker", "betting", "gambling", "jackpot", "slots", "viagra", "cialis", "payday", "warez", "keygen"),
)
SUBSTRINGS = ("freeporn", "pornvideo", "porntube", "sexvideo", "livesex", "freesex", "xxxmovie", "xxxvideo")
WORD = re.compile(r"[^\W_]+")
PUNYCODE = "xn--"
MAX_PATTERN_CHARS = 100_000  # compiling a longer one takes longer than it spares, and RE2 refuses the very long
NOTHING: list[str] = []


def _checked_words(words: tuple[str, ...]) -> tuple[str, ...]:
    for word in words:
        if word != word.lower() or not WORD.fullmatch(word):
            raise ValueError(f"{word!r}: a word of a URL is one run of lower-case letters and digits")
    return words


def _checked_substrings(texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        if not text or text != _squeezed(text.lower()).strip():
            raise ValueError(f"{text!r}: a substring is lower-case, without the - and dots that are ignored in URLs")
    return texts


Measured = TypeVar("Measured")
Words = Annotated[tuple[str, ...], AfterValidator(_checked_words)]
Substrings = Annotated[tuple[str, ...], AfterValidator(_checked_substrings)]


class UrlConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """What is looked for in URLs."""

    hard_words: Words = Field(strict=False, default=HARD_WORDS, description="words of which one is enough")
    soft_words: Words = Field(
        strict=False, default=SOFT_WORDS, description="words of which two different ones are enough"
    )
    substrings: Substrings = Field(
        strict=False, default=SUBSTRINGS, description="found inside words too, across - and dots"
    )
    domain_lists: Several[DomainListConfig] = Field(default=(), description="files with one domain a line")


def url_signals(
    urls: Sequence[str | None], config: UrlConfig | None, lists: Sequence[Hashes] = ()
) -> dict[str, pa.Array]:
    """The signals of URLs; null where there is no URL, or no config. `lists`: those of config.domain_lists, loaded."""
    known = [url or None for url in urls] if config else [None] * len(urls)
    config = config or UrlConfig()
    hosts = [None if url is None else host_of(url) for url in known]
    likely = pc.match_substring_regex(pa.array(known, pa.string()), suspicion(config)).to_pylist()
    plain = [
        _plain(url, host) if url and host is not None and is_likely else "" if url else None
        for url, host, is_likely in zip(known, hosts, likely, strict=True)
    ]
    words = [set(WORD.findall(text)) if text else text for text in plain]
    squeezed = [_squeezed(text) if text else text for text in plain]
    return {
        "url_host": pa.array(hosts, pa.string()),
        **_named("url_hard_words", words, frozenset(config.hard_words).intersection),
        **_named("url_soft_words", words, frozenset(config.soft_words).intersection),
        **_named("url_substrings", squeezed, lambda text: [wanted for wanted in config.substrings if wanted in text]),
        **_named("url_listed_domains", find_listed(hosts, lists), lambda domain: [domain]),
    }


@lru_cache(maxsize=16)
def suspicion(config: UrlConfig) -> str:
    """A pattern that every URL has in which something of the lists stands; few others have it (long lists: all)."""
    words = [re.escape(word) for word in (*config.hard_words, *config.soft_words)]
    substrings = [r"[-.]*".join(map(re.escape, text)) for text in config.substrings]
    pattern = "(?i)" + "|".join([*words, *substrings, "%", PUNYCODE, r"[^\x00-\x7F]"])
    return pattern if len(pattern) <= MAX_PATTERN_CHARS else ""


def _plain(url: str, host: str) -> str:
    """The URL in lower case without percent-encoding; a host in punycode once more in its own letters."""
    text = unquote(url).lower() if "%" in url else url.lower()
    return f"{text} {readable_host(host).lower()}" if PUNYCODE in host else text


def _squeezed(text: str) -> str:
    return text.replace("-", "").replace(".", "")


def _named(
    name: str, values: Sequence[Measured | None], find: Callable[[Measured], Collection[str]]
) -> dict[str, pa.Array]:
    """A signal that names what was found, and the one that counts it; nothing is found in an empty value."""
    found = [None if value is None else sorted(set(find(value))) if value else NOTHING for value in values]
    texts = [None if names is None else " ".join(names) for names in found]
    counts = [None if names is None else len(names) for names in found]
    return {name: pa.array(texts, pa.string()), f"num_{name}": pa.array(counts, pa.int64())}
