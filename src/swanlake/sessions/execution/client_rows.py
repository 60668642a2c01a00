"""Rows that a client sent, for the statement that reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import duckdb

from swanlake.engine.errors import ENGINE_ERRORS
from swanlake.sessions.direct import BOUND


class ClientRows:
    """Arrow rows under one fixed name, visible to one connection alone, one statement at a time."""

    def __init__(
        self,
        connection: Callable[[], duckdb.DuckDBPyConnection],
        fail: Callable[[Exception], NoReturn],
    ) -> None:
        #: None between statements, and for those without rows. A reader can be read once only.
        self.rows: Any = None
        self._connection = connection
        self._fail = fail
        self._exposed = False

    @contextmanager
    def given(self, rows: Any) -> Iterator[None]:
        """Rows that a statement may read; DuckDB sees them when they are exposed."""
        self.rows, self._exposed = rows, False
        try:
            yield
        finally:
            if self._exposed:
                self._connection().unregister(BOUND)
            self.rows, self._exposed = None, False

    @contextmanager
    def registered(self, rows: Any) -> Iterator[None]:
        """Rows that DuckDB sees at once."""
        with self.given(rows):
            self.expose()
            yield

    def expose(self) -> None:
        """Shows DuckDB the rows, if there are any."""
        # DuckDB asks the lake for names whenever it makes a view: that takes milliseconds.
        if self.rows is not None and not self._exposed:
            try:
                self._connection().register(BOUND, self.rows)
            except ENGINE_ERRORS as error:
                self._fail(error)
            self._exposed = True
