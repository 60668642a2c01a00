"""Parsing with a cache: clients send the same short texts again and again."""

from __future__ import annotations

import re

from swanlake._internal.lru_cache import LruCache
from swanlake.queue.names import QUEUE
from swanlake.sessions.execution.engine_session import EngineSession
from swanlake.sql.safe_text import check_size, safe_text
from swanlake.sql.statement import Statement, parse

#: ``PRAGMA duckling_queue.flush``, which DuckDB cannot parse; it stands for a CALL.
_PRAGMA = re.compile(
    rf"\s*+PRAGMA\s++{QUEUE}\s*+\.\s*+(\w+)\s*+(?:\(\s*+\)\s*+)?;?\s*+", re.IGNORECASE
)
#: Every text with an IMPORT DATABASE matches the first and then the second, and so do some others.
_IMPORT = re.compile(r"\bimport[_\s]", re.IGNORECASE)
_DATABASE = re.compile("database", re.IGNORECASE)


#: ``KILL QUERY 'id'``, which DuckDB cannot parse either.
_KILL = re.compile(
    r"\s*+KILL\s++(QUERY|SESSION)\s++('(?:[^']|'')*+'|\?|\$\w++)\s*+;?\s*+", re.IGNORECASE
)
#: ``SHOW TABLES FROM duckling_queue``: its tables are those of the lake that have queued rows.
_SHOW_QUEUE = re.compile(rf"\s*+SHOW\s++TABLES\s++FROM\s++{QUEUE}\s*+;?\s*+", re.IGNORECASE)
_QUEUE_TABLES = f"SELECT DISTINCT table_name AS name FROM {QUEUE}_status() ORDER BY name"


class StatementParser:
    """Parses SQL as the settings of a session say; a statement keeps what was derived from it."""

    def __init__(self, session: EngineSession) -> None:
        self._session = session
        self._max_bytes = session.services.max_statement_bytes
        self._cache: LruCache[list[Statement]] = LruCache()
        self._version = session.settings_version

    def parse(self, sql: str) -> list[Statement]:
        """The statements of a text; raises DuckDB's error if it is not SQL."""
        check_size(sql, self._max_bytes)
        if self._version != self._session.settings_version:
            self._version = self._session.settings_version
            self._cache.clear()
        imports = _IMPORT.search(sql)
        if imports and _DATABASE.search(sql, imports.end()):
            return self._parse(sql)  # the parser reads the files that it names
        return self._cache.get_or_compute(sql, self._parse)

    def parse_one(self, sql: str) -> Statement:
        """The only statement of a text."""
        [statement] = self.parse(sql)
        return statement

    def _parse(self, sql: str) -> list[Statement]:
        return parse(self._session.connection, _as_duckdb_sql(sql))


def _as_duckdb_sql(sql: str) -> str:
    """The text that stands for a statement of our own; any other one is made safe."""
    if pragma := _PRAGMA.fullmatch(sql):
        return f"CALL {QUEUE}_{pragma[1]}()"
    if kill := _KILL.fullmatch(sql):
        return f"CALL swanlake_kill_{kill[1].lower()}({kill[2]})"
    if _SHOW_QUEUE.fullmatch(sql):
        return _QUEUE_TABLES
    return safe_text(sql)
