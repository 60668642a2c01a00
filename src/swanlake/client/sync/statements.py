"""What everything that runs statements offers: a client, a pool, and a session of a pool."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from swanlake.client import requests
from swanlake.client.connection import Request
from swanlake.client.deadline import Deadline
from swanlake.client.driver import Call
from swanlake.client.options import UNSET, QueryOptions, Unset
from swanlake.client.parameters import Parameters
from swanlake.client.requests import Mode
from swanlake.client.result import QueryResult, UpdateResult

T = TypeVar("T")

Timeout = float | None | Unset


class Statements(ABC):
    """Statements that one waits for."""

    @abstractmethod
    def _run(self, request: Request[T], options: QueryOptions | None, timeout: Timeout) -> T:
        """The answer to a request."""

    def query(
        self,
        sql: str,
        params: Parameters = None,
        *,
        options: QueryOptions | None = None,
        timeout: Timeout = UNSET,
    ) -> QueryResult:
        """Runs a query; gives all its rows.

        ``params`` is a sequence for ``?`` and ``$1``, a dict for ``$name``, or rows of Arrow.
        """
        return self._run(requests.query(sql, params), options, timeout)

    def update(
        self,
        sql: str,
        params: Parameters = None,
        *,
        options: QueryOptions | None = None,
        timeout: Timeout = UNSET,
    ) -> UpdateResult:
        """Runs a change, once for every row of ``params``, as one; never a second time."""
        return self._run(requests.update(sql, params), options, timeout)

    def execute(
        self,
        sql: str,
        params: Parameters = None,
        *,
        options: QueryOptions | None = None,
        timeout: Timeout = UNSET,
    ) -> QueryResult:
        """Runs any text, never a second time; gives rows or the count of affected ones."""
        return self._run(requests.execute(sql, params), options, timeout)

    def ingest(
        self,
        table: str,
        rows: Any,
        *,
        mode: Mode = "append",
        queue: bool = False,
        catalog: str | None = None,
        schema: str | None = None,
        temporary: bool = False,
        batch_name: tuple[str, int] | None = None,
        options: QueryOptions | None = None,
        timeout: Timeout = UNSET,
    ) -> int:
        """Sends rows of Arrow, a data frame or a list of dicts into a table; how many it took.

        With ``queue`` they go into the Duckling Queue, and from there to the lake. ``batch_name``,
        a producer's name and a number, makes it safe to send them again: a batch that was taken is
        not taken twice.
        """
        request = requests.ingest(
            table,
            rows,
            mode=mode,
            queue=queue,
            catalog=catalog,
            schema=schema,
            temporary=temporary,
            batch_name=batch_name,
        )
        return self._run(request, options, timeout)

    def catalogs(self) -> QueryResult:
        """The catalogs one can name."""
        return self._run(requests.catalogs(), None, UNSET)

    def schemas(self, catalog: str | None = None, schema_pattern: str | None = None) -> QueryResult:
        """The schemas of a catalog, or of all; patterns are those of LIKE."""
        return self._run(requests.schemas(catalog, schema_pattern), None, UNSET)

    def tables(
        self,
        catalog: str | None = None,
        schema_pattern: str | None = None,
        table_pattern: str | None = None,
        *,
        types: Iterable[str] = (),
        include_schema: bool = False,
    ) -> QueryResult:
        """Tables and views; with ``include_schema`` their columns, as serialized Arrow schemas."""
        request = requests.tables(catalog, schema_pattern, table_pattern, types, include_schema)
        return self._run(request, None, UNSET)

    def status(self) -> Mapping[str, Any]:
        """What the server says of itself: version, state, counts."""
        return self._run(requests.status(), None, UNSET)


def limit(options: QueryOptions | None, timeout: Timeout, default: float | None) -> float | None:
    """The limit of a statement: as said in the call, else in its options, else the default."""
    for wish in (timeout, options.timeout if options else UNSET):
        if not isinstance(wish, Unset):
            return wish
    return default


def call_for(options: QueryOptions | None, deadline: Deadline) -> Call:
    """A statement's name, as the options have it, and its limit."""
    if options is not None and options.query_id:
        return Call(deadline, options.query_id)
    return Call(deadline)
