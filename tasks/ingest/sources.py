"""Where raw text comes from: the sources of a recipe, and the files that a run found there."""

import re
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Literal

from pydantic import BaseModel, Field, StringConstraints

from tasks.config import Several, Size, fingerprint_of
from tasks.errors import ConfigError, DataError
from tasks.ingest.extract import ExtractorName
from tasks.ingest.page_limits import PageLimits
from tasks.storage import FileInfo, Storage, sha256_of

Format = Literal["auto", "jsonl", "lines", "parquet", "text", "html", "warc", "wet", "mediawiki"]
SourceName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
COMPRESSED = re.compile(r"\.(gz|zst|zstd|bz2|xz)$", re.IGNORECASE)
FORMAT_OF_SUFFIX: dict[str, Format] = {
    **dict.fromkeys(("jsonl", "ndjson", "json"), "jsonl"),
    **dict.fromkeys(("parquet", "pq"), "parquet"),
    **dict.fromkeys(("html", "htm", "xhtml"), "html"),
    **dict.fromkeys(("warc", "arc"), "warc"),
    "wet": "wet",
}
MEDIAWIKI_DUMP = re.compile(r"-pages-(?:articles|meta|logging)[^/]*\.xml", re.IGNORECASE)  # other XML is text
HASH_THREADS = 4
SETTLED_SECONDS = 2.0  # the coarsest clock of a file system in use (FAT)


class SourceConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """One source: where its files are, and how they are read."""

    base: str = Field(min_length=1, description="folder or s3://bucket/prefix; {root}/... lies in the storage root")
    include: Several[str] = Field(default=("**",), description="globs of relative keys; ** crosses folders")
    exclude: Several[str] = Field(default=(), description="globs of relative keys left out")
    priority: int = Field(default=0, description="whose copy of a duplicate stays: the higher number first")
    format: Format = Field(default="auto", description="auto: by the file's name; text: one document per file")
    text_key: str = Field(default="text", description="field or column of the text; a.b reaches into objects")
    url_key: str = Field(default="url", description="field or column of the address")
    timestamp_key: str = Field(default="timestamp", description="field or column of the time")
    id_key: str = Field(default="id", description="the input's own id; goes to meta.id, documents get ids of ours")
    extractor: ExtractorName = Field(
        default="trafilatura",
        description="HTML to text: trafilatura is more precise, resiliparse 8 times as fast, none keeps the HTML",
    )
    limits: PageLimits = Field(default=PageLimits(), description="what one page may cost")
    namespaces: Several[Annotated[int, Field(ge=0)]] = Field(
        default=(0,), description="of a MediaWiki dump; 0: articles"
    )
    max_record_bytes: Size = Field(default=256 << 20, description="longer records are refused (too_large)")
    on_damage: Literal["keep", "fail"] = Field(
        default="keep", description="keep: a damaged file gives what it still holds, and is counted; fail: stop"
    )

    def storage(self, root: Storage) -> Storage:
        """The place that `base` names."""
        return Storage(self.base.replace("{root}", root.url, 1) if self.base.startswith("{root}") else self.base)

    def reading(self) -> "SourceConfig":
        """Itself without what does not change how a file is read: where it lies, which are taken, whose copy stays."""
        return self.model_copy(update={"base": "-", "include": ("**",), "exclude": (), "priority": 0})


class IngestConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """All sources of a recipe, and how much raw data makes a part."""

    sources: dict[SourceName, SourceConfig] = Field(min_length=1, description="name of the source: its settings")
    part_bytes: Annotated[Size, Field(ge=1024)] = Field(default=128 << 20, description="raw bytes of one part, about")

    def reading(self) -> "IngestConfig":
        """Itself with the sources' `reading`: what decides the documents, given the files."""
        return self.model_copy(update={"sources": {name: source.reading() for name, source in self.sources.items()}})


class InputFile(BaseModel, frozen=True):
    """One file as it was when the run listed it. `modified` and `stamp` save hashing an unchanged local file again."""

    key: str
    size: int
    etag: str = ""
    sha256: str = ""
    modified: float = 0.0
    stamp: str = ""

    @property
    def identity(self) -> str:
        """What stands for the content: the sha256, or the store's etag."""
        return self.sha256 or self.etag


class InputFiles(BaseModel, frozen=True):
    """The files of all sources, listed once per run (runs/<id>/inputs.json) and used by all its attempts."""

    sources: dict[str, tuple[InputFile, ...]]

    def hashes(self) -> dict[tuple[int, str], str]:
        """(size, stamp): sha256 of the local files, for the next listing."""
        return {(file.size, file.stamp): file.sha256 for files in self.sources.values() for file in files if file.stamp}

    def identity(self, sources: Iterable[str]) -> dict[str, dict[str, object]]:
        """Per source, in this order: number of files, bytes, and one hash over keys, sizes and contents."""
        return {
            source: {
                "files": len(files),
                "bytes": sum(file.size for file in files),
                "digest": fingerprint_of([[file.key, file.size, file.identity] for file in files]),
            }
            for source in sources
            for files in (self.sources[source],)
        }


def list_inputs(config: IngestConfig, root: Storage, earlier: InputFiles | None = None) -> InputFiles:
    """Find the files of every source, and what identifies their content.

    Raises ConfigError with the key path when a base is missing or no file is left. On S3 the etag serves. Local files
    are read for their sha256, but for those that an `earlier` listing hashed and whose size, inode, time of change and
    time of status change (which no program can set back, as it can the former) are as they were.
    """
    known = earlier.hashes() if earlier else {}
    return InputFiles(sources={name: _identify(name, source, root, known) for name, source in config.sources.items()})


def list_source(name: str, source: SourceConfig, root: Storage) -> list[FileInfo]:
    """The files of one source. Raises ConfigError with the key path when a base is missing or no file is left."""
    path = f"ingest.sources.{name}"
    try:
        place = source.storage(root)
        found = place.list_files()
    except ConfigError as error:
        raise ConfigError(f"{path}.base: {error}") from error
    if not found:
        where = "" if place.url == source.base else f" ({place.url})"
        raise ConfigError(f"{path}.base: nothing is at {source.base!r}{where}; wanted a folder with files")
    wanted = list(_selected(found, source))
    if not wanted:
        raise ConfigError(
            f"{path}.include: none of the {len(found)} files at {source.base!r} is selected by include "
            f"{list(source.include)} and exclude {list(source.exclude)}; the first is {found[0].key!r}"
        )
    for info in wanted:
        if info.key != info.key.encode("utf-8", "replace").decode():
            raise ConfigError(f"{path}.base: the name of {info.key!r} is not UTF-8; rename the file or exclude it")
    return wanted


def _identify(
    name: str, source: SourceConfig, root: Storage, known: dict[tuple[int, str], str]
) -> tuple[InputFile, ...]:
    infos, place = list_source(name, source, root), source.storage(root)
    with ThreadPoolExecutor(HASH_THREADS) as pool:
        return tuple(pool.map(lambda info: _identified(info, place, known), infos))


def _selected(found: list[FileInfo], source: SourceConfig) -> Iterator[FileInfo]:
    include, exclude = ([glob_pattern(glob) for glob in globs] for globs in (source.include, source.exclude))
    for info in found:
        if any(glob.match(info.key) for glob in include) and not any(glob.match(info.key) for glob in exclude):
            yield info


def glob_pattern(glob: str) -> re.Pattern[str]:
    """A glob over keys: `*` stays within a folder, `**/` stands for any folders or none, `**` for anything."""
    pieces = re.split(r"(\*\*/|\*\*|\*|\?)", glob)
    table = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(table.get(piece) or re.escape(piece) for piece in pieces) + r"\Z", re.DOTALL)


def _identified(info: FileInfo, place: Storage, known: dict[tuple[int, str], str]) -> InputFile:
    if info.etag:
        return InputFile(key=info.key, size=info.size, etag=info.etag)
    # a file written while it is hashed could keep its stamp where the disk's clock ticks slowly
    stamp = info.stamp if time.time() - info.modified > SETTLED_SECONDS else ""
    sha256 = known.get((info.size, info.stamp))
    if sha256 is None:
        with place.open_input(info.key) as file:
            sha256 = sha256_of(file)
    return InputFile(key=info.key, size=info.size, sha256=sha256, modified=info.modified, stamp=stamp)


def check_unchanged(file: InputFile, place: Storage) -> None:
    """Raises DataError when a file is no longer what the run listed."""
    info = place.info(file.key)
    if info is None:
        raise DataError(f"{place.url}: {file.key} is gone since the run listed its inputs; start a new run")
    same = info.size == file.size and info.etag == file.etag
    if same and not info.etag and info.modified != file.modified:
        with place.open_input(file.key) as opened:
            same = sha256_of(opened) == file.sha256
    if not same:
        raise DataError(f"{place.url}: {file.key} changed since the run listed its inputs; start a new run")


def format_of(key: str, config: SourceConfig) -> Format:
    """The format of a file: as the recipe says, else by its name; a name that says nothing means text."""
    if config.format != "auto":
        return config.format
    if MEDIAWIKI_DUMP.search(key):
        return "mediawiki"
    suffix = COMPRESSED.sub("", key).rpartition("/")[2].rpartition(".")[2].lower()
    return FORMAT_OF_SUFFIX.get(suffix, "text")
