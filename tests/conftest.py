"""Fixtures for all tests: a workspace on a temporary root, and documents made of given texts."""

import contextlib
import os
import random
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import botocore.exceptions
import botocore.session
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings

from tasks import parallel
from tasks.config import fingerprint_of
from tasks.dataset import Workspace
from tasks.documents import DOCUMENT_SCHEMA, document_id
from tasks.manifest import Manifest
from tasks.parts import PartWriter, Unit
from tasks.storage import Storage

MakeDocuments = Callable[..., Manifest]

LIMIT_SECONDS = 500.0  # of whatever a test waits for: only what hangs takes so long, on any machine
OF_THIS_SHELL = (
    *("AWS_", "BASEMILL_", "PREFECT_", "RAY_", "TORCHELASTIC_", "MASTER_", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *("RANK", "WORLD_SIZE", "COLUMNS", "FORCE_COLOR", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"),
)
OF_EVERY_TEST = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "RAY_OVERRIDE_RESOURCES": '{"CPU": 2, "GPU": 0}',  # else 64 cores mean 64 workers, and one core none for two ranks
    "BASEMILL_TRAIN": '{"threads": 1}',  # tiny products: a second thread waits more than it works
    "OMP_NUM_THREADS": "1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
if "ray" not in sys.modules:  # a Ray worker that imports this file keeps what Ray gave it
    for name in [name for name in os.environ if name.upper().startswith(OF_THIS_SHELL)]:
        del os.environ[name]
    os.environ.update(OF_EVERY_TEST)

# The same examples in every run: what fails, fails for whoever looks into it
settings.register_profile("suite", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A serial workspace on its own root."""
    return Workspace(Storage(str(tmp_path / "lake")), run_id="test")


@pytest.fixture
def make_documents(workspace: Workspace) -> MakeDocuments:
    """make_documents(texts, source="web", parts=3, **columns): an ingest dataset of these rows, in order.

    `texts` may also be a mapping source -> texts. `columns`: lists for url, timestamp, raw_ref, meta.
    """

    def make(
        texts: Sequence[str] | dict[str, Sequence[str]],
        source: str = "web",
        parts: int = 3,
        into: Workspace = workspace,
        **columns: Sequence[Any],
    ) -> Manifest:
        by_source = texts if isinstance(texts, dict) else {source: texts}
        external = {
            "rows": {name: list(rows) for name, rows in by_source.items()},
            "columns": repr(columns),
            "parts": parts,
        }
        dataset = into.dataset(
            "ingest", None, inputs={}, module="tasks.documents", schema=DOCUMENT_SCHEMA,
            external={"rows": fingerprint_of(external)},
        )  # fmt: skip
        units = []
        for name, rows in by_source.items():
            size = -(-len(rows) // parts) or 1
            for start in range(0, len(rows), size):
                table = document_rows(name, rows[start : start + size], start, columns)
                units.append(dataset.unit(source=name, arguments={"rows": table.to_pylist(), "bytes": table.nbytes}))
        return dataset.publish(dataset.compute(units, write_rows))

    return make


def write_rows(unit: Unit, writer: PartWriter) -> None:
    """Part function of the fixture: the rows stand in the arguments."""
    table = pa.Table.from_pylist(unit.arguments["rows"], schema=DOCUMENT_SCHEMA)
    writer.rows_in = table.num_rows
    writer.write(table)


def document_rows(source: str, texts: Sequence[str], start: int, columns: dict[str, Sequence[Any]]) -> pa.Table:
    """Documents with raw references `file#n` (unless given), n from `start`."""
    end = start + len(texts)
    given = {name: list(values[start:end]) for name, values in columns.items()}
    refs = given.pop("raw_ref", [f"file#{n}" for n in range(start, end)])
    rows: dict[str, list[Any]] = {
        "doc_id": [document_id(source, ref) for ref in refs],
        "source": [source] * len(texts),
        "text": list(texts),
        "url": given.pop("url", [None] * len(texts)),
        "timestamp": given.pop("timestamp", [None] * len(texts)),
        "raw_ref": refs,
        "meta": given.pop("meta", ["{}"] * len(texts)),
    }
    return pa.table(rows | given, schema=DOCUMENT_SCHEMA)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real S3 server (seaweedfs) for the session, with the bucket `lake`; its endpoint stands in the environment."""
    with pytest.MonkeyPatch.context() as environment:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            environment.setenv(name, "any")
        environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
        for _ in range(3):  # somebody may take a port before the server does, which then ends
            server, endpoint = start_s3_server(tmp_path_factory.mktemp("seaweedfs"))
            environment.setenv("AWS_ENDPOINT_URL", endpoint)
            if has_bucket := create_bucket("lake", server):
                break
        try:
            assert has_bucket
            yield endpoint
        finally:
            server.kill()
            server.wait()


@pytest.fixture
def s3_root(s3_server: str) -> str:
    """A root of its own on the S3 server."""
    return f"s3://lake/{uuid.uuid4().hex}"


def start_s3_server(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """The process and its endpoint."""
    ports, names = free_ports(8), ("master", "volume", "filer", "s3")
    options = [f"-{name}.port={ports[i]}" for i, name in enumerate(names)]
    options += [f"-{name}.port.grpc={ports[i + 4]}" for i, name in enumerate(names)]
    weed = [str(Path(sys.executable).with_name("weed")), "server", "-s3", "-filer", f"-dir={folder}", "-ip=127.0.0.1"]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen([*weed, "-volume.max=8", *options], stdout=log, stderr=log)
    return server, f"http://127.0.0.1:{ports[3]}"


def create_bucket(name: str, server: subprocess.Popen[bytes]) -> bool:
    """Create a bucket as soon as the server answers; whether it did before its process ended."""
    client = botocore.session.get_session().create_client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    deadline = time.monotonic() + LIMIT_SECONDS
    while server.poll() is None:
        try:
            client.create_bucket(Bucket=name)
            return True
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    return False


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, below those that a kernel gives to whoever asks for any (from 32,768 on)."""
    found: list[int] = []
    with contextlib.ExitStack() as opened:
        for port in random.SystemRandom().sample(range(20_000, 32_000), 1_000):
            if len(found) < count:
                with contextlib.suppress(OSError):
                    opened.enter_context(socket.socket()).bind(("127.0.0.1", port))
                    found.append(port)
    assert len(found) == count
    return found


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """One local Ray for the whole session of tests; workers import the code under test."""
    parallel.start_ray()
    yield
    parallel.stop_ray()
