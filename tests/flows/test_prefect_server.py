"""One server per PREFECT_HOME, for as long as it has users."""

import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from flows import prefect_server
from tasks.errors import ConfigError
from tests.conftest import LIMIT_SECONDS

PROJECT = Path(__file__).parents[2]
USE = """
import sys, time
from flows.prefect_server import use_server
with use_server() as server_url:
    print(server_url(), flush=True)
    sys.stdin.read()
"""


def start_user(home: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", USE],
        env={**os.environ, "PREFECT_HOME": str(home), "PYTHONPATH": str(PROJECT)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def servers_of(home: Path) -> list[int]:
    """Processes of servers started for this PREFECT_HOME."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command, environment = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except OSError:
            continue
        if b"-m\0flows.prefect_server" in command and f"PREFECT_HOME={home}".encode() in environment.split(b"\0"):
            found.append(int(folder.name))
    return found


def test_two_users_that_start_together_share_one_server_which_leaves_with_the_last(
    prefect_home: Path, server_url: str, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with (
        closing(sqlite3.connect(prefect_home / "prefect.db")) as used,
        closing(sqlite3.connect(home / "prefect.db")) as copied,
    ):
        used.backup(copied)  # migrated already: saves 10 s; a file copied in use may be half of one
    users = [start_user(home), start_user(home)]
    urls = [user.stdout.readline().strip() for user in users if user.stdout]
    assert urls[0] == urls[1] != server_url
    assert len(servers_of(home)) == 1

    users[0].kill()  # a killed user counts as gone
    time.sleep(2 * prefect_server.USERS_CHECK_SECONDS)
    assert len(servers_of(home)) == 1
    users[1].communicate("")
    until = time.monotonic() + LIMIT_SECONDS
    while servers_of(home) and time.monotonic() < until:
        time.sleep(0.2)
    assert servers_of(home) == []
    assert not (home / "basemill" / "server.json").exists()


def test_the_server_of_the_session_is_joined(server_url: str, prefect_home: Path) -> None:
    assert prefect_server.running_url() == server_url
    assert len(servers_of(prefect_home)) == 1


def test_a_configured_server_wins_and_must_answer(prefect_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    with (
        pytest.raises(ConfigError, match="127.0.0.1:9/api does not answer".replace(".", r"\.")),
        prefect_server.use_server() as server_url,
    ):
        server_url()


def test_the_active_prefect_profile_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert prefect_server.configured_url() is None
    profile = '[profiles.lab]\nPREFECT_API_URL = "http://lab:4200/api"\n[profiles.other]\n'
    (tmp_path / "profiles.toml").write_text(f'active = "lab"\n{profile}')
    assert prefect_server.configured_url() == "http://lab:4200/api"
    monkeypatch.setenv("PREFECT_PROFILE", "other")
    assert prefect_server.configured_url() is None


def test_a_record_of_a_dead_server_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    (tmp_path / "basemill").mkdir()
    for text in ('{"url": "http://127.0.0.1:9/api", "pid": 1}', '{"url": "http', "{}"):
        (tmp_path / "basemill" / "server.json").write_text(text)
        assert prefect_server.running_url() is None


def test_a_port_is_taken_by_one_server_alone() -> None:
    listeners = [prefect_server._listen() for _ in range(3)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    assert len(set(ports)) == 3
    assert set(ports) <= {*prefect_server.PORTS}  # an address that was told once stays good as a rule
    assert 0 not in ports


def test_telemetry_is_off_unless_the_user_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DO_NOT_TRACK", raising=False)
    monkeypatch.setenv("PREFECT_SERVER_ANALYTICS_ENABLED", "true")
    prefect_server.quiet_environment()
    assert os.environ["DO_NOT_TRACK"] == "1"
    assert os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] == "true"


def test_dashboard_addresses() -> None:
    assert prefect_server.dashboard_url("http://host:4200/api") == "http://host:4200"
    assert prefect_server.dashboard_url("http://host:4200/api", "x-1") == "http://host:4200/runs/flow-run/x-1"
