"""Connections to PostgreSQL: how a URL is read, and how soon a dead peer is noticed."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from swanlake.errors import ConfigError

_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 10,
    "application_name": "swanlake",
    # A peer that vanished is noticed in a minute, not in the kernel's two hours.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    # So is one that does not acknowledge what was sent: no keepalives go out meanwhile.
    "tcp_user_timeout": 60_000,
}


def parse_url(url: str) -> dict[str, Any]:
    """The parameters in a libpq URL or connection string; raises ConfigError."""
    try:
        return conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise ConfigError("metabase_url is not a PostgreSQL URL or connection string.") from None


def connection_parameters(url: str, **overrides: Any) -> dict[str, Any]:
    """The parameters for ``psycopg.connect``; overrides win over the URL."""
    return _DEFAULTS | parse_url(url) | overrides


def connect(url: str, **overrides: Any) -> psycopg.Connection[Any]:
    """A new connection."""
    return psycopg.connect(**connection_parameters(url, **overrides))
