"""Storage on disk and on a real S3 server: the same behaviour, whole files, exclusive creation."""

import hashlib
import os
import pickle
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from botocore.exceptions import ReadTimeoutError

from tasks.errors import ConfigError, StorageError
from tasks.storage import SCRATCH_PREFIX, Outage, Storage, probe_exclusive_create, sha256_of
from tests.s3_proxy import s3_proxy_to


@pytest.fixture(params=["disk", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "disk":
        return Storage(str(tmp_path / "lake"))
    return Storage(request.getfixturevalue("s3_root"))


def test_reads_what_was_written_and_replaces_it(storage: Storage) -> None:
    storage.write_bytes("a/b.bin", b"first")
    storage.write_bytes("a/b.bin", b"\x00second")
    assert storage.read_bytes("a/b.bin") == b"\x00second"
    assert storage.read_range("a/b.bin", 1, 4) == b"sec"
    assert storage.read_range("a/b.bin", 3, 3) == b""
    assert storage.size("a/b.bin") == 7
    with storage.open_input("a/b.bin") as file:
        file.seek(3)
        assert file.read(2) == b"co"


def test_json_is_sorted_text(storage: Storage) -> None:
    storage.write_json("x.json", {"b": 1, "a": [None, "é"]})
    assert storage.read_json("x.json") == {"a": [None, "é"], "b": 1}
    assert storage.read_bytes("x.json").index(b'"a"') < storage.read_bytes("x.json").index(b'"b"')


def test_creates_a_file_once(storage: Storage) -> None:
    assert storage.create("lease-00001", b"ours")
    assert not storage.create("lease-00001", b"theirs")
    assert storage.read_bytes("lease-00001") == b"ours"
    probe_exclusive_create(storage)


def test_one_of_many_creators_wins(storage: Storage) -> None:
    storage.write_bytes("warm", b"")
    won: list[int] = []
    threads = [
        threading.Thread(target=lambda n=n: won.append(n) if storage.create("k", b"%d" % n) else None) for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert storage.read_bytes("k") == b"%d" % won[0]


def test_a_missing_file_is_named(storage: Storage) -> None:
    assert not storage.exists("no/such")
    assert storage.size("no/such") is None
    with pytest.raises(FileNotFoundError):
        storage.read_bytes("no/such")
    with pytest.raises(FileNotFoundError):
        storage.open_input("no/such").read()
    storage.delete("no/such")


def test_lists_files_by_key_without_scratch(storage: Storage) -> None:
    for key in ("p/b", "p/a/c", "q/d", f"p/{SCRATCH_PREFIX}x"):
        storage.write_bytes(key, b"12")
    listed = [info for info in storage.list_files("p") if SCRATCH_PREFIX not in info.key]
    assert [info.key for info in listed] == ["p/a/c", "p/b"]
    assert all(info.size == 2 and info.modified > 0 for info in listed)
    assert storage.list_files("nothing") == []
    storage.delete("p/b")
    assert [info.key for info in storage.list_files("p") if SCRATCH_PREFIX not in info.key] == ["p/a/c"]


def test_what_is_no_file_is_named_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("a")
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer
    for name, target in (("loop", "loop"), ("nowhere", "gone"), ("again", "."), ("linked", "file")):
        (tmp_path / name).symlink_to(target)
    assert [info.key for info in Storage(str(tmp_path)).list_files()] == ["file", "linked"]
    assert sorted(line.split()[0].rpartition("/")[2] for line in caplog.messages) == [
        "again",
        "loop",
        "nowhere",
        "pipe",
    ]


def test_a_new_file_is_seen_after_listing(storage: Storage) -> None:
    assert storage.list_files("n") == []
    storage.write_bytes("n/1", b"x")
    assert [info.key for info in storage.list_files("n")] == ["n/1"]


def test_publishes_a_scratch_file_whole(storage: Storage) -> None:
    with storage.scratch_folder() as folder:
        (folder / "part").write_bytes(b"rows")
        storage.publish_file(folder / "part", "parts/k.parquet")
    assert storage.read_bytes("parts/k.parquet") == b"rows"
    with storage.open_input("parts/k.parquet") as file:
        assert sha256_of(file) == hashlib.sha256(b"rows").hexdigest()


def test_a_pickled_storage_reads_the_same_root(storage: Storage) -> None:
    storage.write_bytes("k", b"v")
    again = pickle.loads(pickle.dumps(storage))
    assert again == storage
    assert again.read_bytes("k") == b"v"


def test_a_killed_write_leaves_nothing_readable(tmp_path: Path) -> None:
    """The child is killed after its scratch file is written, before the rename."""
    storage = Storage(str(tmp_path))
    child = os.fork()
    if child == 0:
        os.replace = lambda *_: os._exit(9)
        storage.write_bytes("k", b"half")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert not storage.exists("k")
    assert storage.list_files("") == []


def test_errors_of_the_disk_become_storage_errors(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="folder"):
        Storage(str(tmp_path)).read_bytes("folder")


def test_refuses_an_unknown_scheme() -> None:
    with pytest.raises(ConfigError, match="gs://bucket"):
        Storage("gs://bucket")


def test_a_dead_s3_server_is_a_storage_error(monkeypatch: pytest.MonkeyPatch, s3_server: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("tasks.storage.S3_CONFIG", {"retries": {"max_attempts": 1}, "connect_timeout": 1})
    with pytest.raises(StorageError, match="s3://lake/x"):
        Storage("s3://lake/x").read_bytes("k")


def test_an_outage_of_s3_is_told_once_and_so_is_its_end(
    monkeypatch: pytest.MonkeyPatch, s3_server: str, s3_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    with s3_proxy_to(s3_server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        proxy.refuses = lambda method, path: method == "PUT" and proxy.refused < 2
        monkeypatch.setattr("tasks.storage._outage_of", Outage)  # not that of the tests before, which may last
        storage = Storage(s3_root)
        storage.write_bytes("k", b"v")
        assert storage.read_bytes("k") == b"v"
    told, over = caplog.messages
    assert told == "s3://lake: does not answer as it should (PutObject: HTTP status 503); asked again"
    assert over.startswith("s3://lake: answers again, after ")


def test_an_outage_lasts_until_what_failed_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    def request(name: str, status: int, attempts: int = 2) -> None:
        outage.note(attempts, SimpleNamespace(name=name), (SimpleNamespace(status_code=status), {}), None)

    outage = Outage("here")
    request("PutObject", 503, attempts=1)
    request("PutObject", 200)
    assert not caplog.messages  # one hiccup is no outage
    for _ in range(2):
        request("PutObject", 503)
        request("GetObject", 200)  # other servers behind one address may be well
        request("HeadObject", 500)
        request("PutObject", 200)
        request("HeadObject", 404)  # an answer
    outage.note(1, SimpleNamespace(name="GetObject"), None, ReadTimeoutError(endpoint_url="x"))
    assert [line.split()[1] for line in caplog.messages] == ["does", "answers", "does", "answers", "does"]


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "Unable to locate credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"),
        ({"AWS_ACCESS_KEY_ID": "a"}, "missing: AWS_SECRET_ACCESS_KEY; set AWS_ACCESS_KEY_ID"),
        ({"AWS_PROFILE": "nobody"}, r"profile \(nobody\) could not be found; set AWS_ACCESS_KEY_ID"),
        ({"AWS_ENDPOINT_URL": "host:8333"}, "AWS_ENDPOINT_URL 'host:8333' is no http://HOST:PORT"),
    ],
)
def test_s3_that_is_not_set_up_is_wrong_use_and_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, environment: dict[str, str], said: str
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_") and name != "AWS_CA_BUNDLE"]:
        monkeypatch.delenv(name)
    nowhere = {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)}
    for name, value in (nowhere | environment).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"^s3://bucket/x: .*{said}"):
        Storage("s3://bucket/x").exists("runs/a/run.json")


@pytest.mark.parametrize("url", ["s3://", "s3:///prefix", "s3://a bucket/x", "s3://b!"])
def test_a_root_without_a_bucket_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"use s3://bucket/prefix|is no bucket's name"):
        Storage(url)


def test_what_the_disk_refuses_is_told_without_scratch_files(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    with pytest.raises(StorageError) as raised:
        storage.write_bytes("a" * 300, b"")
    assert str(raised.value) == f"{storage.url}: {'a' * 300}: File name too long"


def test_a_full_disk_is_told_with_what_is_needed_and_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.storage.uuid.uuid4", lambda: SimpleNamespace(hex="full"))
    (tmp_path / "k").write_bytes(b"before")
    (tmp_path / "local").write_bytes(b"12345")
    said = f"{tmp_path}: k: No space left on device: 5 bytes needed, [0-9,]+ free"
    storage = Storage(str(tmp_path))
    (tmp_path / f"{SCRATCH_PREFIX}full").symlink_to("/dev/full")
    with pytest.raises(StorageError, match=said):
        storage.write_bytes("k", b"12345")
    (tmp_path / f"{SCRATCH_PREFIX}full").symlink_to("/dev/full")  # no hard link goes there: it is copied
    with pytest.raises(StorageError, match=said):
        storage.publish_file(tmp_path / "local", "k")
    assert storage.read_bytes("k") == b"before"
