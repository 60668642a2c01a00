"""Which requests a browser may make, and under which names."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from swanlake.status.site import REQUEST_HEADER, Site

LOCAL = Site("http://127.0.0.1:4215")
EXPOSED = Site("https://10.0.0.5:4215", has_authentication=True)
INSECURE = Site("http://0.0.0.0:4215")
PROXIED = Site("http://127.0.0.1:4215", public_url="https://lake.example.org")


@pytest.mark.parametrize(
    ("site", "host", "accepted"),
    [
        (LOCAL, "127.0.0.1:4215", True),
        (LOCAL, "127.0.0.1", True),
        (LOCAL, "LocalHost:4215", True),
        (LOCAL, "[::1]:4215", True),
        (LOCAL, "evil.example:4215", False),
        (LOCAL, "127.0.0.1.evil.example", False),
        (LOCAL, "localhost.evil.example:4215", False),
        (LOCAL, "192.168.1.7:4215", False),
        (LOCAL, "", False),
        (LOCAL, "[::1", False),
        (PROXIED, "lake.example.org", True),
        (PROXIED, "127.0.0.1:4215", True),
        (PROXIED, "evil.example", False),
        (EXPOSED, "any.example.org:4215", True),
        (INSECURE, "10.0.0.5:4215", True),
        (INSECURE, socket.gethostname(), True),
        (INSECURE, "evil.example:4215", False),
    ],
)
def test_only_names_of_this_server_are_accepted(site: Site, host: str, accepted: bool) -> None:
    assert site.accepts_host(host) is accepted


OWN_ORIGIN = {"host": "127.0.0.1:4215", "origin": "http://127.0.0.1:4215"}
PROGRAM = {"host": "127.0.0.1:4215"}


@pytest.mark.parametrize(
    ("path", "headers", "allowed"),
    [
        ("/api/flush", PROGRAM, False),
        ("/api/flush", PROGRAM | {REQUEST_HEADER: "1"}, True),
        ("/api/flush", OWN_ORIGIN, False),
        ("/api/flush", OWN_ORIGIN | {REQUEST_HEADER: "1"}, True),
        ("/api/flush", OWN_ORIGIN | {REQUEST_HEADER: "1", "origin": "http://evil.example"}, False),
        ("/api/flush", OWN_ORIGIN | {REQUEST_HEADER: "1", "origin": "null"}, False),
        ("/api/flush", OWN_ORIGIN | {REQUEST_HEADER: "1", "origin": "http://127.0.0.1:80"}, False),
        (
            "/api/flush",
            OWN_ORIGIN | {REQUEST_HEADER: "1", "origin": "https://127.0.0.1:4215"},
            False,
        ),
        ("/api/flush", PROGRAM | {REQUEST_HEADER: "1", "sec-fetch-site": "same-origin"}, True),
        ("/api/flush", PROGRAM | {REQUEST_HEADER: "1", "sec-fetch-site": "cross-site"}, False),
        ("/login", PROGRAM, False),
        ("/login", PROGRAM | {REQUEST_HEADER: "1"}, False),
        ("/login", OWN_ORIGIN, True),
        ("/login", OWN_ORIGIN | {"origin": "http://evil.example"}, False),
    ],
)
def test_pages_of_other_sites_cannot_change_anything(
    path: str, headers: dict[str, Any], allowed: bool
) -> None:
    assert LOCAL.may_change("POST", path, headers) is allowed
    assert LOCAL.may_change("DELETE", path, headers) is allowed
    assert LOCAL.may_change("GET", path, headers)


def test_pages_behind_a_proxy_are_own_pages() -> None:
    headers = {"host": "127.0.0.1:4215", "origin": "https://lake.example.org", REQUEST_HEADER: "1"}
    assert PROXIED.may_change("POST", "/api/flush", headers)
    assert not LOCAL.may_change("POST", "/api/flush", headers)


def test_cookies_are_secure_where_browsers_use_tls() -> None:
    assert EXPOSED.is_secure
    assert PROXIED.is_secure
    assert not LOCAL.is_secure
