"""The console in a real browser, against a server under load."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.csv as csv
import pyarrow.parquet as parquet
import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from swanlake.cli.commands import swanlake
from swanlake.client import FlightSQLClient
from swanlake.errors import SwanLakeError
from tests.cli_results import assert_succeeded
from tests.credentials import write_tokens
from tests.queries import ENDLESS_QUERY
from tests.server_process import ServerProcess
from tests.waiting import eventually

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
#: Generous: how long a busy machine may take to show something.
PATIENCE_MS = 240_000
PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1440, "height": 900}
PATHS = ("/", "/queue", "/statements", "/lake", "/pipeline", "/sql")
TOKEN = "a-token-of-sixteen-characters"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing: apt-get install chromium"),
]


class Load:
    """Clients that insert into the queue and query, until the test ends."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(sql,))
            for sql in (
                "INSERT INTO duckling_queue.busy SELECT i, 'load' FROM range(20) r(i)",
                "SELECT s, count(*) FROM busy GROUP BY s",
                "SELECT * FROM missing",
            )
        ]

    def _work(self, sql: str) -> None:
        with FlightSQLClient(self._server.url) as client:
            while not self._stopped.wait(0.05):
                with suppress(SwanLakeError):
                    client.execute(sql)

    def __enter__(self) -> Load:
        with FlightSQLClient(self._server.url) as client:
            client.execute("CREATE TABLE busy (i BIGINT, s VARCHAR)")
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("browser") / "home"
    flags = ("--status", "on", "--status-port", "0")
    with ServerProcess(home, *flags) as server, Load(server):
        yield server
        assert "Traceback" not in server.log_text


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Root has no sandbox, and containers have little shared memory.
        flags = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


class Visit:
    """A page of the console, and what it must not do: ask other hosts, or write to the console."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.requests: list[str] = []
        self.problems: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", self._note)

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def open(self, path: str) -> Page:
        """Opens a page and waits until it is live."""
        self.page.goto(self.url + path)
        expect(self.page.locator("#live")).to_have_text("Live")
        return self.page

    def confirm(self, button: str, says: str) -> None:
        """Confirms the dialog that is open, and waits for the message about what was done."""
        dialog = self.page.get_by_role("dialog")
        dialog.get_by_role("button", name=button, exact=True).click()
        expect(self.page.locator("#toasts")).to_contain_text(re.compile(says))
        expect(dialog).to_have_count(0)

    def row(self, table: str, text: str) -> Locator:
        """The row of a table with a text."""
        return (
            self.page.get_by_role("table", name=table, exact=True)
            .locator("tbody tr", has_text=text)
            .first
        )


@pytest.fixture
def visit(server: ServerProcess, browser: Browser) -> Iterator[Visit]:
    with visiting(browser, server.status_url, viewport=DESKTOP) as visit:
        yield visit


@contextmanager
def visiting(browser: Browser, url: str, **options: Any) -> Iterator[Visit]:
    """A visit in a context of its own; at its end it checks what the page did besides."""
    context = browser.new_context(accept_downloads=True, **options)
    try:
        visit = Visit(context.new_page(), url)
        yield visit
        assert visit.problems == []
        assert {urlsplit(each).netloc for each in visit.requests} == {urlsplit(url).netloc}
        assert all(each.startswith(url) for each in visit.requests)
    finally:
        context.close()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[FlightSQLClient]:
    with FlightSQLClient(server.url) as client:
        yield client


def statement_in_background(server: ServerProcess, sql: str) -> threading.Thread:
    """Runs a statement that a button will stop."""

    def run() -> None:
        with FlightSQLClient(server.url) as client:
            with pytest.raises(SwanLakeError):
                client.execute(sql)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_fits_and_has_the_theme(
    server: ServerProcess, browser: Browser, viewport: dict[str, int], theme: Any
) -> None:
    options = {"viewport": viewport, "color_scheme": theme}
    with visiting(browser, server.status_url, **options) as visit:
        for path in PATHS:
            page = visit.open(path)
            expect(page.locator("main h1").first).to_be_attached()
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= viewport["width"], f"{path} scrolls sideways"
            lightness = page.evaluate(
                "getComputedStyle(document.body).backgroundColor.match(/[0-9.]+/g).map(Number)"
            )
            assert (sum(lightness[:3]) > 600) == (theme == "light")


def test_theme_button_changes_and_keeps_the_theme(visit: Visit) -> None:
    page = visit.open("/")
    page.get_by_role("button", name="Dark theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    visit.open("/queue")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    expect(page.get_by_role("button", name="Light theme")).to_be_visible()


def test_values_change_while_the_page_is_open(visit: Visit) -> None:
    page = visit.open("/")
    expect(page.get_by_role("region", name="Health")).to_contain_text("Healthy")
    queued = page.locator(".tile", has_text="Queued rows").locator("dd").first
    before = queued.inner_text()
    expect(queued).not_to_have_text(before)
    page.get_by_role("link", name="Queue").click()
    rows = visit.row("Tables with queued rows", "swanlake.main.busy").locator("td").nth(2)
    before = rows.inner_text()
    expect(rows).not_to_have_text(before)


def test_update_keeps_elements_and_the_focus(visit: Visit) -> None:
    page = visit.open("/queue")
    row = visit.row("Tables with queued rows", "swanlake.main.busy")
    button = row.get_by_role("button", name="Flush swanlake.main.busy")
    button.focus()
    row.evaluate("element => { window.kept = element; }")
    rows = row.locator("td").nth(2)
    before = rows.inner_text()
    expect(rows).not_to_have_text(before)
    assert page.evaluate("window.kept.isConnected")
    expect(button).to_be_focused()


def test_queue_is_flushed_paused_and_resumed_by_clicking(
    visit: Visit, client: FlightSQLClient
) -> None:
    client.execute("CREATE TABLE clicked (i INTEGER)")
    client.execute("INSERT INTO duckling_queue.clicked VALUES (1), (2), (3)")
    page = visit.open("/queue")
    name = "swanlake.main.clicked"
    page.get_by_role("button", name=f"Flush {name}").click()
    expect(page.get_by_role("dialog")).to_contain_text(
        """CALL duckling_queue_flush('"swanlake"."main"."clicked"')"""
    )
    visit.confirm("Flush", "Flushed 3 rows in 1 file")
    expect(page.get_by_role("button", name=f"Flush {name}")).to_have_count(0)
    assert client.execute("FROM clicked").table.num_rows == 3

    page.get_by_role("button", name="Pause flushing").click()
    visit.confirm("Pause", "Flushing is paused")
    expect(page.locator(".notice.warn")).to_contain_text("Paused")
    page.get_by_role("button", name="Resume flushing").click()
    visit.confirm("Resume", "Flushing is resumed")
    expect(page.locator(".notice.warn")).to_have_count(0)


def test_dead_letter_is_read_replayed_and_discarded_by_clicking(
    visit: Visit, client: FlightSQLClient
) -> None:
    for word in ("first", "second"):
        client.execute("CREATE TABLE lost (s VARCHAR)")
        client.execute(f"INSERT INTO duckling_queue.lost VALUES ('the {word} row')")
        client.execute("DROP TABLE lost")
        client.execute("CALL duckling_queue_flush('lost')")
    client.execute("CREATE TABLE lost (s VARCHAR)")
    page = visit.open("/queue")
    letters = page.get_by_role("table", name="Dead letters", exact=True)
    lost = letters.locator("tbody tr:not(.detail)", has_text="swanlake.main.lost")
    expect(lost).to_have_count(2)
    lost.first.get_by_role("button", name="Rows").click()
    expect(letters).to_contain_text("the second row")
    lost.first.get_by_role("button", name="Replay").click()
    visit.confirm("Replay", "1 dead letter went back")
    expect(lost).to_have_count(1)
    lost.first.get_by_role("button", name="Discard").click()
    visit.confirm("Discard for ever", "deleted")
    expect(lost).to_have_count(0)
    client.execute("CALL duckling_queue_flush('lost')")
    assert client.execute("FROM lost").table.to_pylist() == [{"s": "the second row"}]


def test_statement_is_cancelled_and_session_killed_by_clicking(
    visit: Visit, server: ServerProcess
) -> None:
    for says, act in (("interrupted", visit_cancel), ("The session is closed", visit_kill)):
        sql = f"{ENDLESS_QUERY} AND x > {len(says)}"
        thread = statement_in_background(server, sql)
        visit.open("/statements")
        expect(visit.row("Running statements", sql)).to_be_visible()
        act(visit, sql, says)
        thread.join()
        running = visit.page.get_by_role("table", name="Running statements")
        expect(running.get_by_text(sql)).to_have_count(0)
        errors = visit.page.get_by_role("table", name="Recent errors")
        expect(errors).to_contain_text("QUERY_CANCELLED")


def visit_cancel(visit: Visit, sql: str, says: str) -> None:
    visit.row("Running statements", sql).get_by_role("button", name="Cancel").click()
    expect(visit.page.get_by_role("dialog")).to_contain_text(sql)
    visit.confirm("Cancel the statement", says)


def visit_kill(visit: Visit, sql: str, says: str) -> None:
    session = visit.row("Running statements", sql).locator("[title]").get_attribute("title")
    visit.page.get_by_role("button", name=f"Kill the session {session}").click()
    visit.confirm("Kill the session", says)


def test_dialog_that_is_not_confirmed_changes_nothing(
    visit: Visit, client: FlightSQLClient
) -> None:
    page = visit.open("/queue")
    page.get_by_role("button", name="Pause flushing").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="Pause flushing")).to_be_focused()
    assert not any("pause" in url for url in visit.requests)


def test_table_is_compacted_by_clicking(visit: Visit, client: FlightSQLClient) -> None:
    client.execute("CREATE SCHEMA shop")
    client.execute("CREATE TABLE shop.small (i BIGINT)")
    for _ in range(4):
        client.execute("INSERT INTO shop.small SELECT i FROM range(4000) r(i)")
    page = visit.open("/lake")
    page.get_by_role("navigation", name="Catalogs and tables").get_by_text("small").click()
    expect(page.locator(".title")).to_contain_text("shop.small")
    files = page.locator(".tile", has_text="Files").locator("dd").first
    expect(files).to_have_text("4")
    page.get_by_role("button", name="What would compaction do?").click()
    plan = visit.row("Steps of the compaction", "shop.small")
    expect(plan).to_contain_text("merge small files")
    page.get_by_role("button", name="Compact", exact=True).click()
    visit.confirm("Compact", "became 1 file")
    expect(files).to_have_text("1")
    page.get_by_role("link", name="Pipeline").click()
    expect(visit.row("Jobs", "swanlake.shop.small")).to_contain_text("compact")


def test_query_runs_and_is_drawn_and_downloaded(visit: Visit, tmp_path: Path) -> None:
    page = visit.open("/sql")
    page.get_by_label("SQL statement").fill("SELECT i, i * i AS square FROM range(2500) r(i)")
    page.get_by_label("SQL statement").press("Control+Enter")
    expect(page.get_by_role("heading", name="The first 1,000 rows")).to_be_visible()
    expect(page.locator(".result-rows thead")).to_contain_text("bigint")
    expect(page.locator(".result-rows tbody tr")).to_have_count(1000)
    page.get_by_role("button", name="Chart").click()
    expect(page.get_by_role("img", name="square over i, 1,000 values")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    download.value.save_as(tmp_path / "result.csv")
    assert csv.read_csv(tmp_path / "result.csv")["square"].to_pylist()[-1] == 2499**2

    # The selection only, in the same session; a small result is downloaded in both formats.
    page.get_by_label("SQL statement").fill("SELECT 1 AS one; SELECT 'x' AS other")
    page.get_by_label("SQL statement").evaluate("area => area.setSelectionRange(0, 15)")
    page.get_by_role("button", name="Run selection").click()
    expect(page.locator(".result-rows thead")).to_contain_text("one")
    with page.expect_download() as download:
        page.get_by_role("link", name="Parquet").click()
    download.value.save_as(tmp_path / "result.parquet")
    assert parquet.read_table(tmp_path / "result.parquet").to_pylist() == [{"one": 1}]

    page.get_by_role("button", name="History").click()
    page.get_by_role("dialog").get_by_text("SELECT i, i * i AS square").click()
    expect(page.get_by_label("SQL statement")).to_have_value(re.compile("square"))


def test_query_of_a_page_is_cancelled_and_its_error_shown(visit: Visit) -> None:
    page = visit.open("/sql")
    page.get_by_label("SQL statement").fill(ENDLESS_QUERY)
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".results")).to_contain_text("running")
    # The statement may not have arrived yet.
    cancelled = page.get_by_role("alert").filter(has_text="QUERY_CANCELLED")
    eventually(lambda: _try_cancel(page) and cancelled.count())
    visit.problems.clear()  # the browser reports every refused request


def _try_cancel(page: Page) -> bool:
    cancel = page.get_by_role("button", name="Cancel", exact=True)
    if cancel.is_enabled():
        cancel.click()
    page.wait_for_timeout(200)
    return True


def test_schema_browser_inserts_names(visit: Visit) -> None:
    page = visit.open("/sql")
    browser = page.get_by_role("navigation", name="Schema browser")
    browser.get_by_role("button", name="busy: open").click()
    browser.get_by_role("button", name="s", exact=True).click()
    expect(page.get_by_label("SQL statement")).to_have_value(re.compile("s$"))


def test_page_notices_a_lost_server_and_its_return(
    browser: Browser, tmp_path: Path, client: FlightSQLClient
) -> None:
    with ServerProcess(tmp_path / "home", "--status", "on", "--status-port", "0") as server:
        port = str(urlsplit(server.status_url).port)
        with visiting(browser, server.status_url, viewport=PHONE) as visit:
            page = visit.open("/queue")
            server.kill()
            expect(page.locator("#live")).to_have_text("No connection")
            again = ServerProcess(tmp_path / "home", "--status", "on", "--status-port", port)
            with again:
                expect(page.locator("#live")).to_have_text("Live")
            visit.problems.clear()  # the browser reports every failed request


def test_reader_logs_in_and_gets_no_buttons(browser: Browser, tmp_path: Path) -> None:
    write_tokens(tmp_path / "home", operator=TOKEN)
    flags = ("--auth", "any", "--status", "on", "--status-port", "0")
    with ServerProcess(tmp_path / "home", *flags) as server:
        with FlightSQLClient(server.url, token=TOKEN) as admin:
            admin.execute("CREATE TABLE t (i INTEGER)")
            admin.execute("INSERT INTO duckling_queue.t VALUES (1)")
        arguments = ["token", "create", "ann", "--role", "reader", "--home", str(server.home)]
        reader = assert_succeeded(CliRunner().invoke(swanlake, arguments)).strip()
        with visiting(browser, server.status_url, viewport=DESKTOP) as visit:
            page = visit.page
            page.goto(server.status_url + "/queue")
            page.locator("input[type=password]").fill(reader)
            page.get_by_role("button", name="Log in").click()
            expect(visit.row("Tables with queued rows", "swanlake.main.t")).to_be_visible()
            expect(page.get_by_role("button", name=re.compile("Flush|Pause"))).to_have_count(0)
            page.get_by_role("link", name="Lake", exact=True).click()
            expect(page.locator(".title")).to_contain_text("swanlake")
            expect(page.get_by_role("button", name=re.compile("ompact"))).to_have_count(0)
            page.get_by_role("button", name="Log out").click()
            expect(page.get_by_role("button", name="Log in")).to_be_visible()
