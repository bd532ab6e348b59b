"""The dashboard and the report in Chromium (`make browser`): what a person sees, presses, and must never run.

The runs are those of the command, in processes of their own, on the session's server. Screenshots of every page that a
test has looked at lie in the test's folder.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Dialog, Locator, Page, expect, sync_playwright

from tasks.runs import RUN_STAGES, RunRecord, find_record
from tasks.storage import Storage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1200)]

CHROMIUM = os.environ.get("CHROMIUM", "chromium")
LIMIT_SECONDS = 600.0
SHOWN_SECONDS = 60.0  # a page asks the server every few seconds
CANCELLED_SECONDS = 60.0  # 3 to 12 on two idle cores
HOSTILE = "<script>window.pwned=1;alert(1)</script><img src=x onerror='window.pwned=2'> [x](javascript:alert(3))"
CLOSING = "``` </code></pre><img src=x onerror='window.pwned=3'>"
PROJECT = Path(__file__).parents[2]
BOTH = pytest.mark.parametrize("prefix", ["", "/v2"])  # Prefect serves two dashboards
RAN = tuple(stage for stage in RUN_STAGES if stage not in ("classifiers", "import", "fork"))  # not in the recipe
PREFECTS_OWN = ("404", "ERR_NAME", "(reading 'x')")  # a chart of /v2 throws the last while its page is being left


class Mill:
    """The command on one root; its processes carry a mark in their environment."""

    def __init__(self, folder: Path, recipe: dict[str, Any], workers: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.root, self.recipe, self.log = folder / "lake", folder / "recipe.yaml", folder / "log"
        self.recipe.write_text(json.dumps(recipe))
        self.mark = f"BASEMILL_MARK={folder}"
        self.environment = os.environ | {
            "PYTHONPATH": str(PROJECT), "BASEMILL_WORKERS": str(workers), "BASEMILL_MARK": str(folder),
            "BASEMILL_TRAIN": json.dumps({"checkpoint_steps": 4, "ranks": 2 if workers else 1, "threads": 1}),
        }  # fmt: skip

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "flows.cli", *arguments], stdout=log, stderr=log, env=self.environment
            )

    def call(self, command: str, *arguments: str) -> int:
        return self.start(command, *arguments, "--root", str(self.root)).wait(LIMIT_SECONDS)

    def record(self) -> RunRecord:
        return find_record(Storage(str(self.root)), "latest")

    def flow_run_id(self) -> str:
        return str(self.record().attempts[-1].flow_run_id)

    def receipts(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.root.glob("*/parts/*.json")}

    def processes(self) -> list[str]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environment, command = (folder / "environ").read_bytes(), (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if self.mark.encode() in environment.split(b"\0") and command:  # a zombie has none
                found.append(command.replace(b"\0", b" ").decode())
        return found


class Dashboard:
    """A page that notes what it asks for, what it complains of, and every dialog that opens."""

    def __init__(self, page: Page, base: str, folder: Path) -> None:
        self.page, self.base, self.folder = page, base, folder
        self.dialogs: list[str] = []
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on("dialog", self._note_dialog)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: self.requests.append(request.url))

    def _note_dialog(self, dialog: Dialog) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def open(self, path: str) -> None:
        self.page.goto(path if "://" in path else self.base + path)
        self.page.wait_for_load_state("networkidle")

    def tab(self, name: str) -> None:
        self.page.get_by_text(name, exact=True).first.click()
        self.page.wait_for_load_state("networkidle")

    def look(self, name: str) -> str:
        """The page's text, after a screenshot."""
        self.page.wait_for_timeout(1500)  # lists fade in
        self.page.screenshot(path=self.folder / f"{name}.png", full_page=True)
        return self.page.inner_text("body")

    def task_states(self, path: str, name: str) -> dict[str, str]:
        """Stage -> state, as the page of a flow run lists its task runs."""
        self.open(path)
        self.tab("Task Runs")
        expect(self.page.locator("a[href*='/runs/task-run/']").first).to_be_visible(timeout=SHOWN_SECONDS * 1000)
        found = re.findall(r"^([a-z-]+)-\w{3}\n(\w+)$", self.look(name), re.MULTILINE)
        return dict(found)

    def subflows(self, flow_run_id: str) -> list[str]:
        """Addresses of the subflows' pages, newest first."""
        self.open(f"/runs/flow-run/{flow_run_id}")
        self.tab("Subflow Runs")
        links = self.page.locator("a[href*='/runs/flow-run/']")
        expect(links.first).to_be_visible(timeout=SHOWN_SECONDS * 1000)
        return [str(link.get_attribute("href")) for link in links.all()]

    def open_artifact(self, flow_run_id: str, key: str, prefix: str) -> None:
        self.open(f"{prefix}/runs/flow-run/{flow_run_id}")
        self.tab("Artifacts")
        self.page.get_by_text(key, exact=True).first.click()
        expect(self.page.get_by_text("Show Raw Data").or_(self.page.get_by_text("Show raw data"))).to_be_visible()

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def assert_harmless(self) -> None:
        assert self.dialogs == []
        assert self.page.evaluate("window.pwned === undefined")
        assert self.page.locator("img[src='x'], a[href^='javascript']").count() == 0

    def outside(self) -> list[str]:
        """What was asked of other servers."""
        return [url for url in self.requests if not url.startswith((self.base, "data:", "blob:"))]

    def assert_pictures_are_drawn(self) -> None:
        picture = self.page.locator("img[src^='data:image/svg']")
        expect(picture).to_have_count(1, timeout=SHOWN_SECONDS * 1000)
        assert picture.evaluate("image => image.complete && image.naturalWidth") > 100


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    path = shutil.which(CHROMIUM)
    if path is None:
        pytest.fail(f"no {CHROMIUM}: apt-get install chromium (Debian), or set CHROMIUM to the browser's path")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def dashboard(chromium: Browser, server_url: str, tmp_path: Path) -> Iterator[Dashboard]:
    page = chromium.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(SHOWN_SECONDS * 1000)
    yield Dashboard(page, server_url.removesuffix("/api"), tmp_path)
    page.close()


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory, tiny_recipe: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """The tiny recipe, with hostile documents in each file: copies, short ones, personal data."""
    folder = tmp_path_factory.mktemp("raw")
    values = tiny_recipe(folder)
    for path in folder.glob("*/*.jsonl"):
        with path.open("a") as file:
            for text in (HOSTILE, f"{HOSTILE} {CLOSING} mail jo@acme.org", f"{path} {HOSTILE}"):
                file.write(json.dumps({"text": text}) + "\n")
    return values


@pytest.fixture(scope="module")
def ran(recipe: dict[str, Any], server_url: str, tmp_path_factory: pytest.TempPathFactory) -> Mill:
    """A finished run of the whole recipe."""
    mill = Mill(tmp_path_factory.mktemp("mill"), recipe)
    assert mill.call("run", str(mill.recipe)) == 0, mill.log.read_text()[-3000:]
    return mill


@pytest.fixture
def worker(server_url: str, recipe: dict[str, Any], tmp_path: Path) -> Iterator[None]:
    """`basemill up`, as the README says."""
    mill = Mill(tmp_path / "up", recipe)
    process = mill.start("up")
    yield
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_SECONDS) == 0, mill.log.read_text()
    assert mill.processes() == []


def test_a_run_shows_every_stage_and_the_next_one_shows_them_cached(ran: Mill, dashboard: Dashboard) -> None:
    first = ran.flow_run_id()
    states: dict[str, str] = {}
    for index, path in enumerate(dashboard.subflows(first)):
        states |= dashboard.task_states(path, f"subflow-{index}")
    assert states == dict.fromkeys(RAN, "Completed")
    assert dashboard.task_states(f"/runs/flow-run/{first}", "first") == {"report": "Completed"}
    expect(dashboard.page.get_by_text("Completed", exact=True).first).to_be_visible()

    assert ran.call("run", str(ran.recipe)) == 0
    states = dashboard.task_states(f"/runs/flow-run/{ran.flow_run_id()}", "second")
    assert states == dict.fromkeys(RAN, "Cached") | {"report": "Completed"}
    assert not [error for error in dashboard.errors if "404" not in error]


@BOTH
@pytest.mark.parametrize("key", ["funnel", "loss", "graph"])
def test_pictures_and_tables_are_drawn(ran: Mill, dashboard: Dashboard, key: str, prefix: str) -> None:
    dashboard.open_artifact(ran.flow_run_id(), key, prefix)
    dashboard.assert_pictures_are_drawn()
    text = dashboard.look(key)
    if key == "funnel":
        rows = [row.inner_text().split() for row in dashboard.page.locator("tr").all()]
        assert rows[0] == ["stage", "source", "in", "out", "dropped", "edited", "unreadable"]
        assert ["dedup-near", "web"] in [row[:2] for row in rows]
        assert "same_text" in text
    assert prefix or dashboard.outside() == []  # the new pages (/v2) ask amplitude.com, analytics off or not


@BOTH
def test_text_of_documents_is_shown_and_never_run(ran: Mill, dashboard: Dashboard, prefix: str) -> None:
    dashboard.open_artifact(ran.flow_run_id(), "samples", prefix)
    text = "".join(dashboard.look("samples").split())  # lines are wrapped
    assert "".join(HOSTILE.split()) in text
    assert "".join(CLOSING.split()) in text
    dashboard.assert_harmless()


def test_the_report_opens_from_disk_and_asks_for_nothing(ran: Mill, dashboard: Dashboard) -> None:
    path = ran.root / "runs" / ran.record().run_id / "report.html"
    dashboard.open(path.as_uri())
    text = dashboard.look("report")
    assert dashboard.errors == []
    assert dashboard.requests == [path.as_uri()]
    pictures = dashboard.page.locator("svg")
    assert pictures.count() >= 3  # graph, funnel, loss
    for picture in pictures.all():
        box = picture.bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) > 50
    assert HOSTILE in text
    dashboard.assert_harmless()


def test_cancel_stops_the_work_keeps_what_is_finished_and_a_rerun_completes(
    recipe: dict[str, Any], dashboard: Dashboard, tmp_path: Path
) -> None:
    """prefect#17482, #12688, #17259, #18840, #19593: Ray's tasks go too, nothing is tried again."""
    mill = Mill(tmp_path / "mill", recipe, workers=2)
    process = mill.start("run", str(mill.recipe), "--root", str(mill.root), "--until", "mix")
    wait_until(lambda: bool(list(mill.root.glob("ingest/*/manifest.json"))), process)
    dashboard.open(f"/runs/flow-run/{mill.flow_run_id()}")
    dashboard.button("Cancel").click()
    dashboard.look("asked")
    wait_until(lambda: bool(list(mill.root.glob("dedup-exact/*/manifest.json"))), process)  # then signals, the longest
    assert len(mill.processes()) > 4  # Ray and its workers
    dashboard.button("Confirm").click()
    assert process.wait(CANCELLED_SECONDS) == 1
    wait_until(lambda: mill.processes() == [])
    expect(dashboard.page.get_by_text("Cancelled", exact=True).first).to_be_visible()
    dashboard.look("cancelled")
    record = mill.record()
    assert [attempt.state for attempt in record.attempts] == ["cancelled"]
    assert f"basemill rerun {record.run_id}" in mill.log.read_text()
    assert not list(mill.root.glob("mix/*/manifest.json"))

    finished = mill.receipts()
    assert finished
    mill.environment["BASEMILL_WORKERS"] = "0"  # any number gives the same
    assert mill.call("rerun", "latest") == 0, mill.log.read_text()[-3000:]
    assert [attempt.state for attempt in mill.record().attempts] == ["cancelled", "completed"]
    assert finished.items() <= mill.receipts().items()


def test_retry_goes_on_with_a_failed_run_and_shows_the_finished_stages_cached(
    ran: Mill, recipe: dict[str, Any], dashboard: Dashboard, worker: None, tmp_path: Path
) -> None:
    """prefect#9814, #7440, #13735, #9292: no finished stage runs again; the worker is that of `basemill up`."""
    mill = Mill(tmp_path / "mill", recipe)
    shutil.copytree(ran.root, mill.root)
    for stage in ("redact", "decontaminate", "mix"):
        shutil.rmtree(mill.root / stage)
    part = next((mill.root / "dedup-near" / "parts").glob("*.parquet"))
    sound = part.read_bytes()
    part.unlink()
    assert mill.call("run", str(mill.recipe), "--until", "mix") == 1
    flow_run_id, finished = mill.flow_run_id(), mill.receipts()
    dashboard.open(f"/runs/flow-run/{flow_run_id}")
    expect(dashboard.page.get_by_text("Failed", exact=True).first).to_be_visible()
    dashboard.tab("Details")
    dashboard.page.get_by_text("See More", exact=True).click()
    assert part.name in dashboard.look("failed")

    part.write_bytes(sound)
    dashboard.button("Retry").first.click()
    dashboard.button("Retry").last.click()
    expect(dashboard.page.get_by_text("Completed", exact=True).first).to_be_visible(timeout=LIMIT_SECONDS * 1000)
    attempts = mill.record().attempts
    assert [(attempt.state, attempt.flow_run_id) for attempt in attempts] == [
        ("failed", flow_run_id), ("completed", flow_run_id),
    ]  # fmt: skip
    states = dashboard.task_states(dashboard.subflows(flow_run_id)[0], "retried")
    before = RAN[: RAN.index("redact")]
    assert {stage: states[stage] for stage in before} == dict.fromkeys(before, "Cached")
    assert states["redact"] == "Completed"
    assert finished.items() <= mill.receipts().items()


@BOTH
def test_the_form_of_a_custom_run_shows_our_fields(ran: Mill, dashboard: Dashboard, prefix: str) -> None:
    """prefect#7816, #18084, #12066, #12566, #14835, #12024: forms of nested models break; ours has a JSON editor."""
    dashboard.open(f"{prefix}/runs/flow-run/{ran.flow_run_id()}")
    dashboard.page.locator("a[href*='/deployments/deployment/']").first.click()
    dashboard.page.wait_for_url("**/deployments/deployment/*")
    dashboard.open(f"{dashboard.page.url.partition('?')[0]}/run")
    text = dashboard.look("form")
    for field in ("root", "recipe", "from_stage (Optional)", "until_stage (Optional)", "force (Optional)"):
        expect(dashboard.page.get_by_text(field, exact=True).first).to_be_visible()
    assert "storage root, a folder or s3://bucket/prefix" in text
    assert "keys left out have their defaults" in text
    assert not [error for error in dashboard.errors if not any(own in error for own in PREFECTS_OWN)]


def wait_until(is_so: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> None:
    until = time.monotonic() + LIMIT_SECONDS
    while not is_so():
        assert process is None or process.poll() is None, "the run ended too early"
        assert time.monotonic() < until
        time.sleep(0.05)
