"""A server whose callers choose their role, with three catalogs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import AdbcConnections
from tests.flight import FlightSql
from tests.server_process import ServerProcess

#: ``hr`` is the catalog of which most callers know nothing; the view and the macro read it.
SETUP = """
    CREATE TABLE t AS SELECT range AS i FROM range(3)
    CALL swanlake_create_catalog('sales')
    CALL swanlake_create_catalog('hr')
    CREATE TABLE sales.main.s (i INTEGER)
    INSERT INTO sales.main.s VALUES (1)
    CREATE TABLE hr.main.h AS SELECT 42 AS pay
    CREATE VIEW swanlake.main.leak AS FROM hr.main.h
    CREATE MACRO swanlake.main.peek() AS TABLE FROM hr.main.h
    CREATE MACRO swanlake.main.pay() AS (SELECT max(pay) FROM hr.main.h)
    CREATE VIEW swanlake.main.file AS SELECT content FROM read_text('{home}/../secret.txt')
"""


def as_caller(caller: str) -> dict[str, Any]:
    """The options of an ADBC connection in a role."""
    return {"adbc.flight.sql.authorization_header": f"Bearer {caller}"}


class RoleServer(ServerProcess):
    """A server that believes callers what their role is."""

    _program = (str(Path(__file__).with_name("role_server.py")),)


@pytest.fixture(scope="module", params=["shared", pytest.param("instance", marks=pytest.mark.slow)])
def role_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RoleServer]:
    """One server for the tests of a module, on shared and on isolated engines."""
    home = tmp_path_factory.mktemp("roles") / "home"
    (home.parent / "secret.txt").write_text("secret")
    server = RoleServer(home, "--session-isolation", request.param)
    with server:
        with AdbcConnections(server.url) as connections:
            cursor = connections.open(**as_caller("admin")).cursor()
            for statement in filter(None, map(str.strip, SETUP.splitlines())):
                cursor.execute(statement.format(home=home))
            cursor.close()
        yield server
        assert server.is_alive, server.log_text


@pytest.fixture(scope="module")
def connect_as(role_server: RoleServer) -> Iterator[Callable[[str], Any]]:
    """Opens a stock ADBC connection for each caller, which the tests of a module share."""
    with AdbcConnections(role_server.url) as connections:
        yield cache(lambda caller: connections.open(**as_caller(caller)))


@pytest.fixture(scope="module")
def flight_as(role_server: RoleServer) -> Iterator[Callable[..., FlightSql]]:
    """Opens a plain Flight connection for each caller; keywords are headers."""
    with ExitStack() as stack:

        @cache
        def open_flight(caller: str, **headers: str) -> FlightSql:
            bearer = f"Bearer {caller}"
            connection = FlightSql(role_server.url, authorization=bearer, **headers)
            stack.callback(connection.close)
            return connection

        yield open_flight
