"""What names mean in a session: where it is, which tables of the lake it means, where it writes."""

from __future__ import annotations

from collections.abc import Callable

import duckdb
from duckdb import StatementType

from swanlake.engine.host import Lease
from swanlake.lake.location import LakeLocation
from swanlake.sessions.shadows import Name
from swanlake.sql.insert import insert_head
from swanlake.sql.quoting import identifier
from swanlake.sql.statement import Statement

#: What every DuckDB has beside the catalogs of the lake.
_OWN_DATABASES = ("temp", "system", "memory")


class LakeNames:
    """The names of one session, on whatever connection it has."""

    def __init__(self, lease: Callable[[], Lease]) -> None:
        self._lease = lease
        self._location: tuple[str, str] | None = None
        #: True if the search path has more than one entry.
        self._looks_in_many_places = False
        #: True if the connection may have tables of the session's own.
        self.has_temporary = False

    def moved(self) -> None:
        """The session may be in another place now, as after every SET and USE."""
        self._location = None

    def where(self) -> tuple[str, str] | None:
        """The catalog of the lake and the schema in which the session is, if it is in one."""
        if self._location is None:
            # All rows: a result with a rest would keep its transaction on the metadata open.
            [row] = (
                self._lease()
                .connection.execute(
                    "SELECT current_catalog(), current_schema(), current_setting('search_path')"
                )
                .fetchall()
            )
            self._location = (row[0], row[1])
            self._looks_in_many_places = "," in row[2]
        catalog = self._attached(self._location[0])
        return None if catalog is None else (catalog.catalog, self._location[1])

    def table(self, parts: tuple[str, ...]) -> Name | None:
        """Catalog, schema and table that a name means, if it can mean nothing but the lake's."""
        if len(parts) == 3:  # what is not attached may be a database of the session's own
            is_lake = self._attached(parts[0]) is not None
            return (parts[0].lower(), parts[1], parts[2]) if is_lake else None
        if len(parts) == 2 and parts[0].lower() in _OWN_DATABASES:
            return None
        where = self._where_now()
        if where is None or self._looks_in_many_places:
            return None
        catalog, schema = where
        if len(parts) == 1:
            is_temporary = self._is_temporary(identifier(parts[0]))
            return None if is_temporary else (catalog, schema, parts[0])
        if self._attached(parts[0]) is None:
            return catalog, parts[0], parts[1]
        if parts[0].lower() == catalog and schema != "main":
            return None  # it is looked for in the schema in use, then in main
        return parts[0].lower(), "main", parts[1]

    def is_catalog(self, name: str) -> bool:
        """True for the name of a catalog of the lake that the engine knows."""
        return self._attached(name) is not None

    def may_mean(self, statement: Statement, catalog: str) -> bool:
        """True if tables of a catalog may be what a statement is about."""
        where = self._where_now()
        return (where is not None and where[0] == catalog) or catalog in statement.names

    def written_catalogs(self, statement: Statement) -> set[LakeLocation]:
        """The catalogs to which a statement may write: those it names, and the one in use."""
        if not statement.may_write:
            return set()
        target = statement.target
        if target is not None and self._is_temporary(target):
            return set()
        # Of an INSERT of megabytes only the head is looked at.
        head = insert_head(statement.text) if statement.type == StatementType.INSERT else None
        names = statement.names if head is None else {part.lower() for part in head.target}
        where = self._where_now()
        in_use = set() if where is None else {where[0]}
        found = map(self._attached, names | in_use)
        return {location for location in found if location is not None}

    def _attached(self, name: str) -> LakeLocation | None:
        return self._lease().engine.attached(name)

    def _where_now(self) -> tuple[str, str] | None:
        """Where it is, but for a catalog that is gone: the statement itself will say so."""
        try:
            return self.where()
        except duckdb.Error:
            return None

    def _is_temporary(self, target: str) -> bool:
        """True if a name, as it is written, is that of a table of this session alone."""
        if not self.has_temporary:
            return False
        table = target if target.lower().startswith("temp.") else f"temp.main.{target}"
        try:
            self._lease().connection.execute(f"SELECT 1 FROM {table} LIMIT 0")
        except duckdb.Error:
            return False
        return True
