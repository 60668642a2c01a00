"""The SQL page: runs statements in sessions of the caller, and keeps their results for a while.

A result is shown up to a number of rows. The rest waits in its session, as it does for any client
that fetches slowly: so a download gets all rows, and the statement runs once.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from swanlake._internal.lru_cache import LruCache
from swanlake.access.identity import Identity
from swanlake.errors import InvalidRequest, NotFound, ServerUnavailable, SwanLakeError
from swanlake.sessions.ids import SessionKey
from swanlake.sessions.results.stream import Outcome, ResultStream
from swanlake.status.blocking import BlockingCalls
from swanlake.status.console.downloads import FORMATS, download
from swanlake.status.console.requests import client_address, open_run, read_json, text_of
from swanlake.status.console.values import column_facts, row_values
from swanlake.status.context import StatusContext
from swanlake.status.guard import caller

#: Statements of all pages that run at a time; more are refused.
_MAX_RUNNING = 16
#: A statement that takes longer is stopped, unless query_timeout_seconds stops it earlier.
_RUN_SECONDS = 3600.0
_MAX_ROWS = 10_000
#: Rows that are shown take about that much: values can be large.
_MAX_BYTES = 8 * 1024 * 1024
_MAX_RESULTS = 64
#: Of the rows of all results that were shown. Beyond it, the oldest results are forgotten.
_MAX_KEPT_BYTES = 64 * 1024 * 1024
_ID = re.compile(r"[A-Za-z0-9-]{1,64}")


@dataclass
class KeptResult:
    """The result of the last statement of a page: its first rows, and where the others are."""

    owner: str
    schema: Any
    #: Whole batches; they may have more rows than were shown.
    first: list[Any]
    #: None if all rows are in ``first``, or once they are being downloaded.
    rest: ResultStream | None
    is_whole: bool
    bytes: int
    lock: threading.Lock = field(default_factory=threading.Lock)


class SqlPage:
    """Runs the statements of the SQL page."""

    def __init__(self, context: StatusContext) -> None:
        self._view = context.view
        self._calls = BlockingCalls("swanlake-status-sql", _MAX_RUNNING)
        self._running = 0
        #: The ids of the latest statements; used by the event loop only.
        self._sent: LruCache[bool] = LruCache()
        #: By session: a page keeps the result of its last statement.
        self._results: OrderedDict[SessionKey, tuple[str, KeptResult]] = OrderedDict()
        self._lock = threading.Lock()

    async def run(self, request: Request) -> Response:
        """``{"sql": …, "session": …, "query_id": …, "limit": …}``: the first rows of the result."""
        body = await read_json(request, self._view.settings.max_statement_bytes)
        sql, session, query_id = (text_of(body, name) for name in ("sql", "session", "query_id"))
        limit = body.get("limit")
        if not isinstance(limit, int) or not 0 < limit <= _MAX_ROWS:
            raise InvalidRequest(f"The limit is not a number from 1 to {_MAX_ROWS}.")
        if not _ID.fullmatch(session) or not _ID.fullmatch(query_id):
            raise InvalidRequest("An id has other characters than A-Z, a-z, 0-9 and -.")
        if self._running >= _MAX_RUNNING:
            raise ServerUnavailable(f"{_MAX_RUNNING} statements of the console run already.")
        identity, address = caller(request), client_address(request)
        # A browser repeats a request whose connection broke, although it may have been received.
        sent = f"{identity.name} {query_id}"
        if self._sent.get(sent):
            raise InvalidRequest("This statement was received before; it is not run a second time.")
        self._sent.put(sent, True)
        key = SessionKey(identity.name, f"console-{session}")
        is_gone = threading.Event()
        watching = asyncio.create_task(_watch(request, is_gone))
        self._running += 1
        try:
            answer = await self._calls.run(
                lambda: self._execute(identity, key, address, sql, query_id, limit, is_gone),
                _RUN_SECONDS + 15,
            )
        finally:
            self._running -= 1
            watching.cancel()
        return JSONResponse(answer)

    async def download(self, request: Request) -> Response:
        """All rows of a result, as CSV or Parquet; they are never in memory at once."""
        parameters = request.query_params
        name, identity = parameters.get("format", ""), caller(request)
        if name not in FORMATS:
            raise InvalidRequest(f"There is no format {name!r}; there are {', '.join(FORMATS)}.")
        result = self._find(identity, parameters.get("result", ""))
        with result.lock:
            rest, result.rest = result.rest, None
            if rest is None and not result.is_whole:
                raise _no_result()
        batches = _Batches(result, rest, self._view.registry)
        return StreamingResponse(
            download(batches, result.schema, name, self._calls),
            media_type=FORMATS[name],
            headers={"content-disposition": f'attachment; filename="result.{name}"'},
        )

    def _execute(
        self,
        identity: Identity,
        key: SessionKey,
        address: str,
        sql: str,
        query_id: str,
        limit: int,
        is_gone: threading.Event,
    ) -> dict[str, Any]:
        started = time.monotonic()
        self._drop(key)
        with open_run(
            self._view,
            identity,
            key,
            address=address,
            timeout=_RUN_SECONDS,
            query_id=query_id,
            is_gone=is_gone.is_set,
        ) as (session, run):
            outcome = session.execute(run, sql)
            answer = self._first_rows(key, identity, outcome, limit)
            answer["in_transaction"] = session.transaction.open
        return answer | {"seconds": time.monotonic() - started}

    def _first_rows(
        self, key: SessionKey, identity: Identity, outcome: Outcome, limit: int
    ) -> dict[str, Any]:
        stream = outcome.stream
        if stream is None:
            return _answer([], [], affected=outcome.affected)
        try:
            return self._read_first(key, identity, outcome, stream, limit)
        except BaseException:
            stream.close()  # its session may go on
            raise

    def _read_first(
        self,
        key: SessionKey,
        identity: Identity,
        outcome: Outcome,
        stream: ResultStream,
        limit: int,
    ) -> dict[str, Any]:
        schema = stream.described_schema
        first: list[Any] = []
        rows: list[list[Any]] = []
        is_complete, size = False, 0
        while not is_complete and len(rows) < limit and size < _MAX_BYTES:
            batch = stream.read()
            if batch is None:
                is_complete = True
            else:
                shown = min(limit - len(rows), _fitting_rows(batch, _MAX_BYTES - size))
                rows += row_values(batch.slice(0, shown))
                first.append(batch)
                size += batch.nbytes
        read = sum(batch.num_rows for batch in first)
        if not is_complete and not stream.live and stream.total_rows == read:
            is_complete = True
        if is_complete:
            stream.close()
        else:
            self._view.registry.add_result(stream)
        result = KeptResult(
            identity.name, schema, first, None if is_complete else stream, is_complete, size
        )
        result_id = self._keep(key, result) if len(schema) else None
        return _answer(
            column_facts(schema),
            rows,
            affected=outcome.affected,
            is_complete=is_complete and read == len(rows),
            result_id=result_id,
        )

    # ---- results that are kept -------------------------------------------------------------------

    def _keep(self, key: SessionKey, result: KeptResult) -> str:
        result_id = f"{key.id}.{time.monotonic_ns():x}"
        with self._lock:
            self._results[key] = result_id, result
            surplus = self._surplus()
        for oldest in surplus:
            self._drop(oldest)
        return result_id

    def _surplus(self) -> list[SessionKey]:
        """The oldest results, as many as have to go; never the newest."""
        size, number = sum(each.bytes for _, each in self._results.values()), len(self._results)
        surplus = []
        for key, (_, result) in list(self._results.items())[:-1]:
            if number <= _MAX_RESULTS and size <= _MAX_KEPT_BYTES:
                break
            surplus.append(key)
            size, number = size - result.bytes, number - 1
        return surplus

    def _find(self, identity: Identity, result_id: str) -> KeptResult:
        with self._lock:
            for kept_id, result in self._results.values():
                if kept_id == result_id and result.owner == identity.name:
                    return result
        raise _no_result()

    def _drop(self, key: SessionKey) -> None:
        """Forgets the result of a page; its session would have to move the rest aside otherwise."""
        with self._lock:
            _, result = self._results.pop(key, ("", None))
        if result is None:
            return
        with result.lock:
            rest, result.rest = result.rest, None
        if rest is not None:
            _Batches(result, rest, self._view.registry).close()


class _Batches:
    """All batches of a result: the first ones, and those that its session still has."""

    def __init__(self, result: KeptResult, rest: ResultStream | None, registry: Any) -> None:
        self._first = list(result.first)
        self._owner = result.owner
        self._rest = rest
        self._registry = registry
        self._taken: ResultStream | None = None

    def read(self) -> Any | None:
        """The next batch, or None at the end; raises if the statement fails."""
        if self._first:
            return self._first.pop(0)
        if self._rest is None:
            return None
        if self._taken is None:
            self._taken = self._registry.take_result(self._rest.handle, self._owner)
        return self._taken.read()

    def close(self) -> None:
        """Frees the session of the rows that were not read."""
        if self._rest is None:
            return
        try:
            taken = self._taken or self._registry.take_result(self._rest.handle, self._owner)
        except NotFound:
            return  # it expired, or its session was closed
        self._registry.release_result(taken)


def _fitting_rows(batch: Any, size: int) -> int:
    """How many rows of a batch take that many bytes, if all are of one size; at least one."""
    return max(int(batch.num_rows * min(size / max(batch.nbytes, 1), 1.0)), 1)


def _answer(
    columns: list[dict[str, Any]],
    rows: list[list[Any]],
    *,
    affected: int | None,
    is_complete: bool = True,
    result_id: str | None = None,
) -> dict[str, Any]:
    return {
        "columns": columns,
        "rows": rows,
        "affected": affected,
        "is_complete": is_complete,
        "result_id": result_id,
    }


def _no_result() -> SwanLakeError:
    return NotFound(
        "The result is no longer there: it was downloaded, replaced by a later one, or expired. "
        "Run the statement again.",
        identifier="RESULT_NOT_FOUND",
    )


async def _watch(request: Request, is_gone: threading.Event) -> None:
    """Sets the event when the browser closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    is_gone.set()
