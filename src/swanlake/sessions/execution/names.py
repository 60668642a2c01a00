"""Resolves names as a session means them: its location, its tables, the catalogs it writes."""

from __future__ import annotations

import duckdb
from duckdb import StatementType

from swanlake.engine.host import EngineConnection
from swanlake.lake.metastore.location import LakeLocation
from swanlake.sql.quoting import identifier
from swanlake.sql.statement import Statement

#: Catalog, schema and table.
TableName = tuple[str, str, str]
#: Databases that every DuckDB instance has.
_BUILTIN_DATABASES = ("temp", "system", "memory")


class NameResolver:
    """Resolves names on one connection of a session."""

    def __init__(self, lease: EngineConnection) -> None:
        self._lease = lease
        self._location: tuple[str, str] | None = None
        self._time_zone = ""
        #: True if the search path has more than one entry.
        self._has_search_path = False
        #: True if the connection may have temporary tables.
        self.has_temporary = False
        #: True if these may include macros.
        self.has_session_macros = False

    def invalidate_location(self) -> None:
        """The location may have changed, as by every SET and USE."""
        self._location = None

    def location(self) -> tuple[str, str] | None:
        """The current catalog and schema; None if that is not a catalog of the lake."""
        if self._location is None:
            # All rows are fetched: an open result would keep its transaction on the metadata open.
            [row] = self._lease.connection.execute(
                "SELECT current_catalog(), current_schema(), current_setting('search_path'), "
                "current_setting('TimeZone')"
            ).fetchall()
            self._location = (row[0], row[1])
            self._time_zone = row[3]
            self._has_search_path = "," in row[2]
        catalog = self._attached(self._location[0])
        return None if catalog is None else (catalog.catalog, self._location[1])

    @property
    def known_catalog(self) -> str | None:
        """The current catalog, as far as it is known without a query."""
        location = self._location
        return None if location is None else location[0]

    @property
    def time_zone(self) -> str:
        """The time zone of the connection, known without a query once a table was resolved."""
        self.location()
        return self._time_zone

    def resolve_table(self, parts: tuple[str, ...]) -> TableName | None:
        """Catalog, schema and table of a name; None unless it can only mean a table of the lake."""
        if len(parts) == 3:  # the first may also be a database that a client attached
            is_lake = self._attached(parts[0]) is not None
            return (parts[0].lower(), parts[1], parts[2]) if is_lake else None
        if len(parts) == 2 and parts[0].lower() in _BUILTIN_DATABASES:
            return None
        location = self._location_if_exists()
        if location is None or self._has_search_path:
            return None
        catalog, schema = location
        if len(parts) == 1:
            is_temporary = self._is_temporary(identifier(parts[0]))
            return None if is_temporary else (catalog, schema, parts[0])
        if self._attached(parts[0]) is None:
            # The schema of temporary tables is called main too, and DuckDB looks there first.
            if parts[0].lower() == "main" and self._is_temporary(identifier(parts[1])):
                return None
            return catalog, parts[0], parts[1]
        if parts[0].lower() == catalog and schema != "main":
            return None  # DuckDB looks in the current schema, then in main
        return parts[0].lower(), "main", parts[1]

    def catalog_location(self, qualifiers: tuple[str, ...]) -> LakeLocation | None:
        """The catalog of the lake in which an object with these qualifiers is; None if in none."""
        named = self._attached(qualifiers[0]) if qualifiers else None
        if named is not None or len(qualifiers) > 1:
            return named
        location = self._location_if_exists()
        return None if location is None else self._attached(location[0])

    def macro_catalog(self) -> str | None:
        """The only catalog whose macros can hide DuckDB's functions; None if there may be more."""
        location = self._location_if_exists()
        if location is None or self._has_search_path or self.has_session_macros:
            return None
        return location[0]

    def may_reference(self, statement: Statement, catalog: str) -> bool:
        """True if a statement may use tables of a catalog."""
        location = self._location_if_exists()
        return (location is not None and location[0] == catalog) or catalog in statement.names

    def written_catalogs(self, statement: Statement) -> set[LakeLocation]:
        """The catalogs to which a statement may write: those it names, and the current one."""
        if not statement.may_write:
            return set()
        if self.has_temporary and statement.target and self._is_temporary(statement.target):
            return set()
        # Only the head of an INSERT is read: its rows may be megabytes.
        head = statement.insert_head if statement.type == StatementType.INSERT else None
        names = statement.names if head is None else {part.lower() for part in head.target}
        current = self._location_if_exists()
        catalogs = names if current is None else names | {current[0]}
        attached = map(self._attached, catalogs)
        return {location for location in attached if location is not None}

    def _attached(self, name: str) -> LakeLocation | None:
        return self._lease.engine.attached_location(name)

    def _location_if_exists(self) -> tuple[str, str] | None:
        """The location; None if its catalog was dropped, which the statement itself reports."""
        try:
            return self.location()
        except duckdb.Error:
            return None

    def _is_temporary(self, target: str) -> bool:
        """True if a name, as it is written, is that of a temporary table."""
        if not self.has_temporary:
            return False
        match target.lower().partition("."):
            case "temp", ".", _:
                table = target
            case "main", ".", _:
                table = f"temp.{target}"
            case _:
                table = f"temp.main.{target}"
        try:
            self._lease.connection.execute(f"SELECT 1 FROM {table} LIMIT 0")
        except duckdb.Error:
            return False
        return True
