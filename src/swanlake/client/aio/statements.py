"""The statements of a pool and of its sessions, for tasks; the twin of statements.py."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from swanlake.client import requests
from swanlake.client.connection import Request, Statement
from swanlake.client.options import UNSET, QueryOptions
from swanlake.client.parameters import Parameters
from swanlake.client.requests import Mode
from swanlake.client.result import QueryResult, UpdateResult
from swanlake.client.statements import Timeout
from swanlake.errors import SwanLakeError

T = TypeVar("T")


class AsyncStatements(ABC):
    """Statements that one awaits."""

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
        """Runs a query; gives all its rows.

        ``params`` is a sequence for ``?`` and ``$1``, a dict for ``$name``, or rows of Arrow.
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
        """Runs a change, once for every row of ``params``, as one; never a second time."""
        return await self._run(requests.update(sql, params), options, timeout)

    async def execute(
        self,
        sql: str,
        params: Parameters = None,
        *,
        options: QueryOptions | None = None,
        timeout: Timeout = UNSET,
    ) -> QueryResult:
        """Runs any text, never a second time; gives rows or the count of affected ones."""
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
        """Sends rows into a table; how many it took. See ``Statements.ingest``."""
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
        return await self._run(request, options, timeout)

    async def catalogs(self) -> QueryResult:
        """The catalogs one can name."""
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
        """What the server says of itself: version, state, counts."""
        return await self._run(requests.status(), None, UNSET)


async def answer_to(statement: Statement[T]) -> T:
    """Awaits a statement. Who is cancelled meanwhile leaves it to whoever stops it.

    Cancelling the wrapped future cancels a call that has not begun, and does nothing to one that
    has: a thread cannot be interrupted. So the connection is busy until the statement is stopped.
    """
    try:
        async with asyncio.timeout(statement.patience):
            return await asyncio.wrap_future(statement.future)
    except SwanLakeError:
        raise  # QueryTimeout is a TimeoutError too
    except TimeoutError:
        raise statement.give_up() from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # Not the task was cancelled, but the statement, by somebody else.
        raise statement.never_begun() from None
