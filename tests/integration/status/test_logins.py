"""Who may read the status server: the callers of Flight, and browsers that logged in."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.credentials import write_tokens
from tests.integration.status.console import SECONDS
from tests.server_process import ServerProcess

TOKEN = "a-token-of-sixteen-characters"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("logins") / "home"
    write_tokens(home, operator=TOKEN)
    with ServerProcess(home, "--auth", "token", "--status", "on", "--status-port", "0") as server:
        yield server
        assert TOKEN not in server.log_text


@pytest.fixture
def browser(server: ServerProcess) -> Iterator[httpx.Client]:
    """A client that keeps cookies and says, as browsers do, which page made a request."""
    headers = {"accept": "text/html", "origin": server.status_url}
    with httpx.Client(base_url=server.status_url, headers=headers) as client:
        yield client


def log_in(browser: httpx.Client, password: str = TOKEN, **fields: str) -> httpx.Response:
    return browser.post("/login", data={"user": "", "password": password} | fields)


def test_probes_need_no_login(server: ServerProcess) -> None:
    for path in ("/livez", "/readyz", "/healthz"):
        response = httpx.get(server.status_url + path, headers={"host": "probe.example"})
        assert response.status_code == 200


@pytest.mark.parametrize(
    ("headers", "auth", "status"),
    [
        ({}, None, 401),
        ({"authorization": f"Bearer {TOKEN}"}, None, 200),
        ({"authorization": "Bearer wrong"}, None, 401),
        ({"cookie": "swanlake_session=guessed"}, None, 401),
        ({}, ("operator", TOKEN), 200),
        ({}, ("operator", "wrong"), 401),
    ],
)
def test_programs_send_a_token_or_a_password(
    server: ServerProcess, headers: dict[str, str], auth: tuple[str, str] | None, status: int
) -> None:
    response = httpx.get(server.status_url, headers=headers, auth=auth)
    assert response.status_code == status
    if status == 401:
        assert response.json()["error"] == "UNAUTHENTICATED"
        assert response.headers["www-authenticate"] == "Bearer"


def test_browser_is_led_to_the_login_and_back(browser: httpx.Client) -> None:
    refused = browser.get("/")
    assert refused.status_code == 303
    form = browser.get(refused.headers["location"])
    assert form.status_code == 200
    assert 'name="password"' in form.text
    accepted = log_in(browser, next="/queue?table=t")
    assert accepted.status_code == 303
    assert accepted.headers["location"] == "/queue?table=t"
    cookie = accepted.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert TOKEN not in cookie
    assert browser.get("/").status_code == 200


@pytest.mark.parametrize("page", ["https://evil.example", "//evil.example", "/\\evil.example", "x"])
def test_login_leads_to_pages_of_this_server_only(browser: httpx.Client, page: str) -> None:
    assert log_in(browser, next=page).headers["location"] == "/"


def test_wrong_password_is_refused_without_a_cookie(browser: httpx.Client) -> None:
    refused = log_in(browser, "wrong")
    assert refused.status_code == 401
    assert 'role="alert"' in refused.text
    assert "set-cookie" not in refused.headers
    assert browser.get("/").status_code == 303


def test_page_of_another_site_cannot_log_in(browser: httpx.Client) -> None:
    for origin in ("https://evil.example", "null"):
        browser.headers["origin"] = origin
        assert log_in(browser).status_code == 403


def test_logout_ends_the_session_and_not_only_its_cookie(
    server: ServerProcess, browser: httpx.Client
) -> None:
    log_in(browser)
    cookie = browser.cookies["swanlake_session"]
    assert browser.post("/logout").status_code == 303
    again = httpx.get(server.status_url, cookies={"swanlake_session": cookie})
    assert again.status_code == 401


def test_session_ends_with_the_token_that_opened_it(
    server: ServerProcess, browser: httpx.Client
) -> None:
    file = Path(server.home / "tokens" / "temporary")
    write_tokens(server.home, temporary="another-token-of-16-characters")
    while log_in(browser, "another-token-of-16-characters").status_code != 303:
        pass
    file.unlink()
    while browser.get("/").status_code == 200:
        pass
    assert browser.get("/").status_code == 303


def test_stream_ends_with_its_login(browser: httpx.Client) -> None:
    log_in(browser)
    with browser.stream(
        "GET", "/api/live", params={"topic": "server"}, timeout=SECONDS
    ) as response:
        lines = response.iter_lines()
        assert next(line for line in lines if line.startswith("event: ")) == "event: document"
        assert httpx.post(
            f"{browser.base_url}/logout",
            headers={"origin": browser.headers["origin"]},
            cookies=dict(browser.cookies),
        ).is_redirect
        for _ in lines:
            pass  # until the stream ends


def test_client_that_leaves_is_not_logged(server: ServerProcess, browser: httpx.Client) -> None:
    url = browser.base_url
    with socket.create_connection((url.host, url.port or 0)) as client:
        head = f"POST /login HTTP/1.1\r\nhost: {url.host}:{url.port}\r\norigin: {server.status_url}"
        client.sendall(f"{head}\r\ncontent-length: 9\r\nexpect: 100-continue\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 100")  # it waits for the body
    assert log_in(browser).status_code == 303
    assert "Traceback" not in server.log_text


def test_body_of_a_form_is_limited(browser: httpx.Client) -> None:
    assert log_in(browser, "x" * 100_000).status_code == 400
