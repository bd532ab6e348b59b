"""Lists of domains that a recipe names: read and checked by the driver, searched by workers as sorted 64-bit hashes.

A list is a text (UTF-8, plain, gz or zst) with one domain a line; blank lines and what follows a # are left out, `www.`
or `*.` before a domain too. A domain matches its subdomains. 1 million domains take 8 MB; a host that is on no list is
found there by chance once in 10^13 times then. Published as `signals.domains`, a dataset per file content.
"""

import hashlib
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, chain
from typing import Annotated, Any, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, Field

from tasks.dataset import Dataset, Workspace
from tasks.errors import ConfigError, DataError
from tasks.hosts import canonical_host
from tasks.parts import Part, read_published_file
from tasks.recipe_files import check_path, decompressed, read_recipe_file, unmarked
from tasks.storage import Storage

RESULT_PACKAGES = ("xxhash",)
FILE = "domains.bin"
DOMAIN = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\]")
ADDRESS = re.compile(r"[0-9.]+|\[.*\]")
Hashes = NDArray[np.uint64]


class DomainListConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """One list."""

    path: Annotated[str, AfterValidator(check_path)] = Field(
        description="file: absolute, s3://..., {root}/... or recipe:name", json_schema_extra={"neutral": ""}
    )  # out of fingerprints: the sha256 stands in its place
    sha256: str | None = Field(default=None, pattern="^[0-9a-f]{64}$", description="of that file; another is refused")


Section = TypeVar("Section", bound=BaseModel)


def by_content(storage: Storage, config: Section) -> tuple[Section, dict[str, "NamedList"]]:
    """The signals section with each list by its content instead of its path, and the lists by their sha256.

    Raises ConfigError with the list's place in the recipe when its content is not known, or another than named there.
    """
    values: dict[str, Any] = config.model_dump(mode="json")
    named: dict[str, NamedList] = {}
    for place, own in {
        "": values,
        **{f".by_source.{name}": over for name, over in values["by_source"].items()},
    }.items():
        lists = (own.get("url") or {}).get("domain_lists", [])
        for number, item in enumerate(lists):
            given = NamedList(f"signals{place}.url.domain_lists[{number}]", DomainListConfig.model_validate(item))
            sha256 = given.digest(storage)
            lists[number] = {"path": "", "sha256": sha256}
            named[sha256] = given
    return type(config).model_validate(values), named


@dataclass(frozen=True)
class NamedList:
    """A list and its place in the recipe."""

    place: str
    config: DomainListConfig

    def read(self, storage: Storage) -> bytes:
        """The file's bytes. Raises ConfigError when it is missing."""
        return read_recipe_file(storage, self.config.path, self.place)

    def digest(self, storage: Storage) -> str:
        """The file's sha256; of one that is missing that in the recipe, by which what was made with it is found.

        Raises ConfigError when the file is another than the recipe names, or missing and the recipe names none.
        """
        named = self.config.sha256
        try:
            found = hashlib.sha256(self.read(storage)).hexdigest()
        except ConfigError as error:
            if named is None:
                raise ConfigError(f"{error}; with its sha256 in the recipe, signals made before are found") from error
            return named
        if named not in (None, found):
            raise ConfigError(f"{self.place}.sha256: {self.config.path} has {found}, not {named}")
        return found

    def publish(self, into: Workspace, sha256: str) -> Part:
        """Its hashes as an input of units. Raises DataError when the file is no list of domains."""
        step = self._step(into, sha256)
        manifest = step.find() or step.publish_files({FILE: self._domains(into.storage).tobytes()})
        return replace(manifest.parts[0], stage=manifest.reference)

    def check(self, storage: Storage, sha256: str) -> None:
        """Raises DataError when the file is no list of domains; one that was published before is not read again."""
        if self._step(Workspace(storage), sha256).find() is None:
            self._domains(storage)

    def _step(self, into: Workspace, sha256: str) -> Dataset:
        return into.dataset("signals.domains", None, inputs={}, module=__name__, external={"sha256": sha256})

    def _domains(self, storage: Storage) -> Hashes:
        return read_domains(self.read(storage), f"{self.place}.path: {self.config.path}")


def read_domains(data: bytes, place: str) -> Hashes:
    """The sorted hashes of a list's domains. Raises DataError with the line that is none, or when there are none."""
    try:
        lines = unmarked(decompressed(data)).decode().splitlines()
    except (ValueError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{place}: no text in UTF-8, plain, gz or zst: {error}") from error
    domains = set()
    for number, line in enumerate(lines, 1):
        if entry := line.partition("#")[0].strip():
            domain = canonical_host(entry.removeprefix("*.")).removeprefix("www.")
            if not DOMAIN.fullmatch(domain) or (":" in entry and not entry.startswith("[")):
                raise DataError(
                    f"{place}: line {number}: {entry[:80]!r} is no domain; write one a line, without a path"
                )
            domains.add(_hash(domain))
    if not domains:
        raise DataError(f"{place}: holds no domain")
    return np.sort(np.fromiter(domains, np.dtype("<u8"), len(domains)))


def load_list(storage: Storage, part: Part) -> Hashes:
    """The hashes of a published list. Raises DataError when the file is missing or not what was written."""
    return _load(storage, f"{part.stage}/{part.key}", part.sha256)


@lru_cache(maxsize=16)
def _load(storage: Storage, path: str, sha256: str) -> Hashes:
    """Once per process: a list is used for every part."""
    return np.frombuffer(read_published_file(storage, path, sha256), np.dtype("<u8"))


def find_listed(hosts: Sequence[str | None], lists: Sequence[Hashes]) -> list[str | None]:
    """For each host the longest domain above it (or itself) that is on a list, else an empty text; None stays."""
    found = [None if host is None else "" for host in hosts]
    if not lists:
        return found
    above = [_domains_of(host) if host else [] for host in hosts]
    hashes = np.fromiter((_hash(domain) for domain in chain.from_iterable(above)), np.uint64)
    is_listed = np.zeros(len(hashes), np.bool_)
    for known in lists:
        is_listed |= known[np.minimum(np.searchsorted(known, hashes), len(known) - 1)] == hashes
    for row, (end, domains) in enumerate(zip(accumulate(map(len, above)), above, strict=True)):
        own = is_listed[end - len(domains) : end]
        if own.any():
            found[row] = domains[int(np.argmax(own))]
    return found


def _domains_of(host: str) -> list[str]:
    """The host and the domains above it, longest first; an address has none."""
    if ADDRESS.fullmatch(host):
        return [host]
    labels = host.split(".")
    return [".".join(labels[place:]) for place in range(len(labels))]


def _hash(domain: str) -> int:
    return xxhash.xxh64_intdigest(domain.encode())
