"""Fetches the names for completion in the background, on a connection of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from swanlake.cli.shell.completion import Names, Table
from swanlake.client import FlightSQLClient
from swanlake.errors import SwanLakeError

log = logging.getLogger("swanlake.shell")

_MAX_COLUMNS = 50_000
#: Seconds that a query for names, and the end of the thread, may take.
_TIMEOUT = 10.0
_SCHEMAS = """SELECT database_name, schema_name FROM duckdb_schemas()
WHERE schema_name NOT IN ('information_schema', 'pg_catalog') AND database_name NOT IN ('temp')"""
_COLUMNS = """SELECT database_name, schema_name, table_name, list(column_name ORDER BY column_index)
FROM (FROM duckdb_columns() WHERE NOT internal LIMIT {}) GROUP BY ALL ORDER BY ALL"""
_FUNCTIONS = """SELECT DISTINCT function_name, contains(function_type, 'table')
FROM duckdb_functions()
WHERE regexp_matches(function_name, '^[a-z_]\\w*$') AND function_name NOT LIKE '\\_\\_%' ESCAPE '\\'
ORDER BY ALL"""


class NamesSource:
    """The newest known names; ``refresh`` has them fetched and returns at once.

    Its session is not the user's: names must not begin a transaction's snapshot, nor wait for a
    running statement. ``set_temporary`` adds the temporary tables.
    """

    def __init__(self, open_client: Callable[[], FlightSQLClient]) -> None:
        self._open_client = open_client
        self._fetched = Names()
        self._temporary: tuple[Table, ...] = ()
        self._wanted = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="swanlake-names", daemon=True)
        self._thread.start()

    @property
    def names(self) -> Names:
        """The names as of the last answer; empty before the first."""
        fetched = self._fetched
        tables = (*self._temporary, *fetched.tables)
        return replace(fetched, tables=tables)

    def refresh(self) -> None:
        """Has the names fetched again."""
        self._wanted.set()

    def set_temporary(self, tables: tuple[Table, ...]) -> None:
        """Sets the temporary tables of the user's session."""
        self._temporary = tables

    def close(self) -> None:
        """Ends the thread and its connection."""
        self._stopped = True
        self._wanted.set()
        self._thread.join(_TIMEOUT)

    def _run(self) -> None:
        client: FlightSQLClient | None = None
        while self._wanted.wait() and not self._stopped:
            self._wanted.clear()
            try:
                client = client or self._open_client()
                self._fetched = _fetch(client)
            except SwanLakeError as error:  # completion is a convenience
                log.debug("names for completion: %s", error)
                _close(client)
                client = None
        _close(client)


def _close(client: FlightSQLClient | None) -> None:
    if client is not None:
        with suppress(SwanLakeError):
            client.close(timeout=1.0)


def _fetch(client: FlightSQLClient) -> Names:
    def rows(sql: str) -> list[tuple[Any, ...]]:
        return client.query(sql, timeout=_TIMEOUT).rows()

    functions = [(str(name), bool(is_table)) for name, is_table in rows(_FUNCTIONS)]
    return Names(
        catalogs=tuple(str(row[0]) for row in client.catalogs().rows()),
        schemas=tuple((str(catalog), str(schema)) for catalog, schema in rows(_SCHEMAS)),
        tables=tuple(
            Table(catalog, schema, name, tuple(columns))
            for catalog, schema, name, columns in rows(_COLUMNS.format(_MAX_COLUMNS))
        ),
        functions=tuple(name for name, is_table in functions if not is_table),
        table_functions=tuple(name for name, is_table in functions if is_table),
    )
