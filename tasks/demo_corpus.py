"""The raw text of the demo recipe: what comes with the installed Python, written like the output of three crawls.

    raw/python-corpus/code/<path>.py            sources of the standard library (tests left out)
                     /docs/<letter>.jsonl.gz    descriptions, READMEs, Markdown, licences of the installed packages
                     /web/<letter>.warc.gz      pydoc's HTML of standard library modules, as WARC response records
                     /complete.json             written last: the corpus exists if and only if this file does
About 30 MB. Nothing is deduplicated here: licences and vendored files are real duplicates. Dates are fixed and no path
of this machine is in it, so one Python and one set of packages give the same bytes everywhere.
"""

import gzip
import json
import logging
import subprocess
import sys
import sysconfig
import tempfile
import uuid
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePath

from tasks.errors import DataError
from tasks.storage import Storage

logger = logging.getLogger(__name__)

FOLDER = "raw/python-corpus"
MARKER = f"{FOLDER}/complete.json"
CORPUS_VERSION = 1  # raised when this module writes something else
CHILD_SECONDS = 300
GZIP_LEVEL = 6
DATE = "2024-01-01T00:00:00Z"
SITE = "https://pydoc.example"
LEFT_OUT = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})
TEXT_SUFFIXES = (".md", ".markdown", ".rst")
TEXT_NAMES = ("license", "licence", "copying", "notice", "authors", "readme", "changelog", "changes", "history")
NO_TEXT_SUFFIXES = (".py", ".pyc", ".pyi", ".so", ".js", ".json", ".h")


def write_python_corpus(storage: Storage) -> None:
    """Write the corpus, unless its marker is there already. Raises DataError when pydoc fails."""
    if storage.exists(MARKER) and storage.read_json(MARKER)["version"] == CORPUS_VERSION:
        return
    old = {info.key for info in storage.list_files(FOLDER)}
    sizes: dict[str, int] = {}
    for name, pairs in (("code", code_files()), ("docs", docs_files()), ("web", web_files())):
        sizes[name] = 0
        for file, data, raw_bytes in pairs:
            key = f"{FOLDER}/{name}/{file}"
            storage.write_bytes(key, data)
            old.discard(key)
            sizes[name] += raw_bytes
    for key in old:
        storage.delete(key)
    storage.write_json(MARKER, {"version": CORPUS_VERSION, "raw_bytes": sizes})
    logger.info("python corpus written: %s bytes of raw text", sizes)


RawFile = tuple[str, bytes, int]  # name, stored bytes, bytes of raw text


def code_files() -> Iterator[RawFile]:
    """Sources of the standard library."""
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        relative = path.relative_to(library)
        if not LEFT_OUT.intersection(relative.parts):
            data = path.read_bytes()
            yield relative.as_posix(), data, len(data)


def docs_files() -> Iterator[RawFile]:
    """One JSONL file per first letter of the packages' names: a new package changes one file."""
    letters: dict[str, list[str]] = {}
    installed = distributions(path=[sysconfig.get_path("purelib")])  # sys.path grows when setuptools is imported
    for package in sorted(installed, key=lambda found: found.name.lower()):
        if package.name != "basemill":  # a change to our own README is no change of the data
            rows = letters.setdefault(package.name[0].lower(), [])
            rows.extend(json.dumps(row, ensure_ascii=False) for row in package_texts(package))
    for letter, rows in letters.items():
        data = "".join(f"{row}\n" for row in rows).encode("utf-8", "replace")
        yield f"{letter}.jsonl.gz", gzip.compress(data, GZIP_LEVEL, mtime=0), len(data)


def package_texts(package: Distribution) -> Iterator[dict[str, str]]:
    """The texts of an installed package: its description, then its files of prose."""
    facts = {"package": package.name, "version": package.version}
    description = package.metadata.get_payload() or package.metadata.get("Description")  # type: ignore[attr-defined]
    if description:
        page = f"https://pypi.org/project/{package.name}/{package.version}/"
        yield {"id": f"{package.name}/description", "text": str(description), "url": page, **facts}
    for path in sorted(package.files or (), key=str):
        if is_prose(path) and (found := Path(str(package.locate_file(path)))).is_file():
            text = found.read_bytes().decode("utf-8", "replace")
            yield {"id": f"{package.name}/{path}", "text": text, **facts}


def is_prose(path: PurePath) -> bool:
    """Whether a file of a package is a text for people; those outside its folders are left alone."""
    name = path.name.lower()
    if ".." in path.parts or path.is_absolute() or name.endswith(NO_TEXT_SUFFIXES):
        return False
    return name.endswith(TEXT_SUFFIXES) or name.startswith(TEXT_NAMES)


def web_files() -> Iterator[RawFile]:
    """One WARC file per first letter of the modules' names, each record a gzip member of its own."""
    letters: dict[str, list[tuple[str, str]]] = {}
    for name, page in pydoc_pages():
        letters.setdefault(name.strip("_")[0].lower(), []).append((name, page))
    for letter, pages in sorted(letters.items()):
        info = warc_record(
            "warcinfo", f"{SITE}/{letter}", b"software: basemill demo corpus\r\nformat: WARC File Format 1.0\r\n"
        )
        records = [info, *(warc_record("response", f"{SITE}/{name}.html", http_response(page)) for name, page in pages)]
        data = b"".join(gzip.compress(record, GZIP_LEVEL, mtime=0) for record in records)
        yield f"{letter}.warc.gz", data, sum(len(page.encode("utf-8", "replace")) for _, page in pages)


def pydoc_pages(*modules: str) -> Iterator[tuple[str, str]]:
    """(module, HTML) of these or all standard library modules, made by a child: pydoc imports what it describes.

    Its environment is empty, because the page of `os` shows it, and its hashes are fixed, because pages show sets.
    """
    program = Path(__file__).with_name("pydoc_pages.py")
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "pages.jsonl")
        child = subprocess.run(
            [sys.executable, "-S", "-P", str(program), str(output), *modules],
            env={"PYTHONHASHSEED": "0", "TZ": "UTC", "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            timeout=CHILD_SECONDS, check=False, text=True,
        )  # fmt: skip
        if child.returncode:
            raise DataError(f"pydoc ended with status {child.returncode}: {child.stderr.strip()[-500:]}")
        for line in output.read_text(encoding="utf-8").splitlines():
            name, page = json.loads(line)
            yield name, page


def http_response(page: str) -> bytes:
    """The page as a server would have sent it."""
    body = page.encode("utf-8", "replace")
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def warc_record(kind: str, url: str, block: bytes) -> bytes:
    """One record; its id is made from kind and address, so that equal input gives equal bytes."""
    content_type = "application/http; msgtype=response" if kind == "response" else "application/warc-fields"
    fields = {
        "WARC-Type": kind,
        "WARC-Record-ID": f"<urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, kind + url)}>",
        "WARC-Date": DATE,
        **({"WARC-Target-URI": url} if kind == "response" else {}),
        "Content-Type": content_type,
        "Content-Length": str(len(block)),
    }
    head = "WARC/1.0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return head.encode() + b"\r\n" + block + b"\r\n\r\n"
