"""The Prefect server behind a run: the configured one, a running one, or one started here, never two on one database.

`PREFECT_API_URL` (variable or Prefect profile) wins. Else a server that already serves this PREFECT_HOME is used: the
one recorded in `<PREFECT_HOME>/basemill/server.json`, or one at Prefect's own address, each asked for its home. Else
one is started under a file lock, so that two runs starting together get one server.

Every user holds a shared lock on `users.lock`; the server tries for the exclusive one each second and stops when it
gets it: when the last user has left, however it left (a lock dies with its process). A newcomer that meets a stopping
server waits for the lock and then starts the next. Run as `python -m flows.prefect_server` this file is the server.
"""

import contextlib
import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import httpx

from tasks.errors import ConfigError, PipelineError

STARTUP_SECONDS = 120.0  # a cold database migrates for 20 s, under load much longer
USERS_CHECK_SECONDS = 1.0
DEFAULT_PORT = 4200  # Prefect's own, so that its documentation applies
PORTS = (*range(DEFAULT_PORT, DEFAULT_PORT + 10), 0)  # the next when one is taken: an address told once stays good
QUIET = {  # nothing is reported to anybody (but by the pages below /v2); wins only where the user has said nothing
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",  # fail rather than start a private server on the same database
    "PREFECT_LOGGING_EXTRA_LOGGERS": "tasks,flows,model",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",  # the command prints lines of its own
    "TQDM_DISABLE": "1",  # libraries draw no bars between ours
    "RAY_USAGE_STATS_ENABLED": "0",
}


def quiet_environment() -> None:
    """Telemetry off, our loggers shown in the dashboard. Call before prefect is imported: it reads these then."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)


@contextlib.contextmanager
def use_server() -> Iterator[Callable[[], str]]:
    """A live server for as long as the context lasts; what it yields waits for it and gives its API URL.

    It starts in the background, while the caller imports and plans. Waiting raises ConfigError when the configured
    server does not answer, PipelineError when ours does not start.
    """
    unwanted = threading.Event()
    with contextlib.ExitStack() as held, ThreadPoolExecutor(1, "prefect-server") as pool:
        joining = pool.submit(_join, held, unwanted)
        try:
            yield joining.result
        except BaseException:
            unwanted.set()  # nobody waits for a server that only starts now
            raise


def _join(held: contextlib.ExitStack, unwanted: threading.Event) -> str:
    """The URL of a server that answers; `held` keeps it alive."""
    if url := configured_url():
        _check_answers(url)
        return url
    folder = home() / "basemill"
    folder.mkdir(parents=True, exist_ok=True)
    users = held.enter_context((folder / "users.lock").open("a+b"))
    with (folder / "start.lock").open("a+b") as start:
        fcntl.flock(start, fcntl.LOCK_EX)
        _lock_within(users, fcntl.LOCK_SH, STARTUP_SECONDS)
        return running_url() or _start(folder, unwanted)


def home() -> Path:
    """PREFECT_HOME, Prefect's own default included."""
    return Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser().resolve()


def configured_url() -> str | None:
    """The API URL that the user chose: the variable, else the active Prefect profile."""
    if url := os.environ.get("PREFECT_API_URL"):
        return url
    profiles_path = home() / "profiles.toml"
    if not profiles_path.exists():
        return None
    saved = tomllib.loads(profiles_path.read_text())
    active = os.environ.get("PREFECT_PROFILE", saved.get("active", ""))
    url = saved.get("profiles", {}).get(active, {}).get("PREFECT_API_URL")
    return str(url) if url else None


def running_url() -> str | None:
    """The API URL of a server of this PREFECT_HOME that answers now."""
    candidates = [f"http://127.0.0.1:{DEFAULT_PORT}/api"]
    with contextlib.suppress(OSError, ValueError, KeyError):  # no record, or one half written by a killed server
        candidates.insert(0, json.loads((home() / "basemill" / "server.json").read_text())["url"])
    return next((url for url in candidates if _home_of(url) == str(home())), None)


def dashboard_url(api_url: str, flow_run_id: str = "") -> str:
    """Where a person looks at the run."""
    root = api_url.removesuffix("/").removesuffix("/api")
    return f"{root}/runs/flow-run/{flow_run_id}" if flow_run_id else root


def _home_of(url: str) -> str | None:
    try:
        response = httpx.get(f"{url}/admin/settings", timeout=5.0)
        return str(Path(response.json()["home"]).resolve()) if response.status_code == 200 else None
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None


def _check_answers(url: str) -> None:
    try:
        httpx.get(f"{url}/health", timeout=10.0)
    except httpx.HTTPError as error:
        raise ConfigError(
            f"PREFECT_API_URL {url} does not answer ({error}); start it, or unset the variable"
        ) from error


def _lock_within(file: IO[Any], kind: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not _try_lock(file, kind):
        if time.monotonic() > until:
            raise PipelineError(f"{file.name}: a Prefect server has been stopping for {seconds:.0f} s; end it by hand")
        time.sleep(0.1)


def _try_lock(file: IO[Any], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _start(folder: Path, unwanted: threading.Event) -> str:
    """Start the server process, in a session of its own: Ctrl-C must end the run, which still needs the server."""
    (folder / "server.json").unlink(missing_ok=True)
    log_path = folder / "server.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.prefect_server"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip
    until = time.monotonic() + STARTUP_SECONDS
    while time.monotonic() < until:
        if (folder / "server.json").exists() and (url := running_url()):
            return url
        if process.poll() is not None:
            raise PipelineError(f"the Prefect server ended with {process.returncode} while starting; see {log_path}")
        if unwanted.wait(0.1):
            break
    process.terminate()
    raise PipelineError(f"the Prefect server did not start within {STARTUP_SECONDS:.0f} s; see {log_path}")


def serve() -> None:
    """Be the server until the last user leaves."""
    listener = _listen()
    port = listener.getsockname()[1]
    os.environ["PREFECT_SERVER_API_PORT"] = str(port)
    os.environ["PREFECT_UI_API_URL"] = f"http://127.0.0.1:{port}/api"
    quiet_environment()
    import uvicorn  # late, like the next: the command imports this file and needs neither
    from prefect.server.api.server import create_app

    config = uvicorn.Config(create_app(final=True), log_level="error", lifespan="on", timeout_graceful_shutdown=3)
    server = uvicorn.Server(config)
    threading.Thread(target=_record_and_watch, args=(server, port), daemon=True).start()
    server.run(sockets=[listener])


def _listen() -> socket.socket:
    for port in PORTS:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            listener.listen()  # at once: two sockets may be bound to one port as long as none listens
            return listener
        listener.close()
    raise PipelineError("no free port on 127.0.0.1")


def _record_and_watch(server: Any, port: int) -> None:
    folder = home() / "basemill"
    record_path = folder / "server.json"
    while not server.started:
        time.sleep(0.05)
    record_path.write_text(json.dumps({"url": f"http://127.0.0.1:{port}/api", "pid": os.getpid()}))
    with (folder / "users.lock").open("a+b") as users:
        while not _try_lock(users, fcntl.LOCK_EX):
            time.sleep(USERS_CHECK_SECONDS)
        record_path.unlink(missing_ok=True)
        server.should_exit = True
        threading.Event().wait()  # the lock is held until the process is gone


if __name__ == "__main__":
    serve()
