"""The address of the status server as browsers know it, and which requests come from its pages.

A web page of another site can make a browser send requests to this server, even to one that only
this machine reaches. Such requests are recognized by their Host and Origin headers: a page can
forge neither.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from swanlake._internal.addresses import is_loopback

#: Requests that change something carry this header. A page of another site cannot add it.
REQUEST_HEADER = "x-swanlake-request"
#: Forms, which work without scripts and therefore without that header.
FORM_PATHS = frozenset({"/login", "/logout"})
#: The methods that change nothing.
SAFE_METHODS = frozenset({"GET", "HEAD"})


@dataclass(frozen=True)
class Site:
    """Where the status server is reached."""

    #: The URL of its own address, such as ``http://127.0.0.1:4215``.
    url: str
    #: The URL at which browsers reach it through a proxy; empty without one.
    public_url: str = ""
    #: True if callers prove who they are.
    has_authentication: bool = False

    @property
    def is_secure(self) -> bool:
        """True if browsers only use TLS."""
        return (self.public_url or self.url).startswith("https:")

    def accepts_host(self, header: str) -> bool:
        """True if the Host header names this server.

        Another name may belong to an attacker that lets it point to this machine (DNS rebinding).
        A server with authentication on a public address accepts any name: browsers send no cookie
        to a foreign one.
        """
        name = _host_name(header)
        if name is None:
            return False
        if is_loopback(name) or name == urlsplit(self.public_url).hostname:
            return True
        if is_loopback(urlsplit(self.url).hostname or ""):
            return False
        return self.has_authentication or _is_address(name) or name == socket.gethostname().lower()

    def comes_from_own_page(self, headers: Mapping[str, str]) -> bool:
        """True if a browser says that a page of this server made the request."""
        if headers.get("sec-fetch-site", "") == "same-origin":
            return True
        origin = headers.get("origin", "").lower()
        return origin in {_origin(self.public_url), f"{_scheme(self.url)}://{_host(headers)}"} - {
            ""
        }

    def may_change(self, method: str, path: str, headers: Mapping[str, str]) -> bool:
        """True if the request changes nothing, or no page of another site can have made it."""
        if method in SAFE_METHODS:
            return True
        is_own = self.comes_from_own_page(headers)
        is_browser = "origin" in headers or "sec-fetch-site" in headers
        if path in FORM_PATHS:
            return is_own
        return REQUEST_HEADER in headers and (is_own or not is_browser)


def _scheme(url: str) -> str:
    return urlsplit(url).scheme


def _origin(url: str) -> str:
    parts = urlsplit(url.lower())
    return f"{parts.scheme}://{parts.netloc}" if parts.netloc else ""


def _host(headers: Mapping[str, str]) -> str:
    return headers.get("host", "").lower()


def _host_name(header: str) -> str | None:
    """The name or address of a Host header, without its port; None if it is malformed."""
    try:
        return urlsplit(f"//{header}").hostname
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
