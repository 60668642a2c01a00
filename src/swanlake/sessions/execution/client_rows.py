"""Arrow rows that a client sent with its statement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import duckdb

#: The view through which statements read the rows that a client sent.
CLIENT_ROWS = "__swanlake_bound"


class ClientRows:
    """The Arrow rows of one statement, visible to the session's connection alone."""

    def __init__(self) -> None:
        #: None between statements, and for those without rows. A reader can be read once only.
        self.rows: Any = None
        self._registered_on: duckdb.DuckDBPyConnection | None = None

    @contextmanager
    def provide(self, rows: Any) -> Iterator[None]:
        """Has rows for the statement of the block; DuckDB sees them once they are exposed."""
        self.rows, self._registered_on = rows, None
        try:
            yield
        finally:
            if self._registered_on is not None:
                self._registered_on.unregister(CLIENT_ROWS)
            self.rows = self._registered_on = None

    def expose(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Shows the rows to DuckDB, if there are any."""
        # Registered late: DuckDB looks names up in the lake for every view, which takes
        # milliseconds, and many statements pass the rows on without DuckDB.
        if self.rows is not None and self._registered_on is None:
            connection.register(CLIENT_ROWS, self.rows)
            self._registered_on = connection
