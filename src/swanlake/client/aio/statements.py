"""Statements that clients, pools and sessions have in common, for tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from swanlake.client.api import requests
from swanlake.client.api.options import UNSET, QueryOptions, Timeout
from swanlake.client.api.requests import Mode
from swanlake.client.api.result import QueryResult, UpdateResult
from swanlake.client.transport.connection import Request
from swanlake.client.transport.parameters import Parameters

T = TypeVar("T")


class AsyncStatements(ABC):
    """Methods that send one request to the server and await its answer."""

    @abstractmethod
    async def _run(self, request: Request[T], options: QueryOptions | None, timeout: Timeout) -> T:
        """The answer to a request."""

    async def query(
        self,
        sql: str,
        params: Parameters = None,
        *,
        options: QueryOptions | None = None,
        timeout: Timeout = UNSET,
    ) -> QueryResult:
        """Runs a query and returns all its rows.

        ``params`` is a sequence for ``?`` and ``$1``, a dict for ``$name``, or Arrow rows.
        """
        return await self._run(requests.query(sql, params), options, timeout)

    async def update(
        self,
        sql: str,
        params: Parameters = None,
        *,
        options: QueryOptions | None = None,
        timeout: Timeout = UNSET,
    ) -> UpdateResult:
        """Runs a change, atomically for every row of ``params``; never retried."""
        return await self._run(requests.update(sql, params), options, timeout)

    async def execute(
        self,
        sql: str,
        params: Parameters = None,
        *,
        options: QueryOptions | None = None,
        timeout: Timeout = UNSET,
    ) -> QueryResult:
        """Runs any SQL and returns its rows or the count of affected rows; never retried."""
        return await self._run(requests.execute(sql, params), options, timeout)

    async def ingest(
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
        """Sends Arrow rows, a data frame or a list of dicts to a table; returns the row count.

        With ``queue`` the rows go through the Duckling Queue. A ``batch_name``, the name of a
        producer and a sequence number, makes the call safe to repeat: the queue takes a batch once.
        """
        request = requests.ingest(table, rows, mode, queue, catalog, schema, temporary, batch_name)
        return await self._run(request, options, timeout)

    async def catalogs(self) -> QueryResult:
        """The catalogs that statements can name."""
        return await self._run(requests.catalogs(), None, UNSET)

    async def schemas(
        self, catalog: str | None = None, schema_pattern: str | None = None
    ) -> QueryResult:
        """The schemas of a catalog, or of all; patterns are those of LIKE."""
        return await self._run(requests.schemas(catalog, schema_pattern), None, UNSET)

    async def tables(
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
        return await self._run(request, None, UNSET)

    async def status(self) -> Mapping[str, Any]:
        """The server's version, state and counters."""
        return await self._run(requests.status(), None, UNSET)
