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
        pragma = _PRAGMA.fullmatch(sql)
        text = f"CALL {QUEUE}_{pragma[1]}()" if pragma else safe_text(sql)
        return parse(self._session.connection, text)
