"""The requests that a server answers, built without a connection."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from swanlake.client.api.options import UNSET, QueryOptions, Timeout, Unset
from swanlake.client.api.result import QueryResult, UpdateResult
from swanlake.client.transport.connection import Connection, Request
from swanlake.client.transport.deadline import Deadline
from swanlake.client.transport.driver import CallContext, PreparedHandle, ResultReader
from swanlake.client.transport.parameters import Parameters, parameter_table
from swanlake.errors import InvalidRequest, NotFound
from swanlake.protocol import Headers, messages
from swanlake.sql.quoting import qualified

Mode: TypeAlias = Literal["append", "create", "replace", "create_append"]
_Ingest = messages.CommandStatementIngest
_Definition = _Ingest.TableDefinitionOptions
_MODES: Mapping[str, tuple[Any, Any]] = {
    # if the table does not exist, if it exists
    "append": (_Definition.TABLE_NOT_EXIST_OPTION_FAIL, _Definition.TABLE_EXISTS_OPTION_APPEND),
    "create": (_Definition.TABLE_NOT_EXIST_OPTION_CREATE, _Definition.TABLE_EXISTS_OPTION_FAIL),
    "replace": (_Definition.TABLE_NOT_EXIST_OPTION_CREATE, _Definition.TABLE_EXISTS_OPTION_REPLACE),
    "create_append": (
        _Definition.TABLE_NOT_EXIST_OPTION_CREATE,
        _Definition.TABLE_EXISTS_OPTION_APPEND,
    ),
}
_QUEUE = "duckling_queue"
#: Not WITH: it may end in an INSERT.
_READ_ONLY = re.compile(r"\s*(?:SELECT|FROM|VALUES|SHOW|DESCRIBE|SUMMARIZE)\b[^;]*;?\s*\Z", re.I)
#: Functions with side effects, which a SELECT can call.
_SIDE_EFFECTS = re.compile(
    r"\b(?:nextval|setseed|query|write_log|(?:force_)?checkpoint|\w+_(?:execute|attach)"
    r"|(?:ducklake|swanlake|duckling_queue)_\w+)\s*\("
    # and quoted names or comments, which a regular expression cannot read
    r"|\"\s*\(|--|/\*",
    re.I,
)
#: Statements on tables, which leave the session as it is. Not DDL: its first words do not tell
#: whether a table is temporary.
_STATELESS = re.compile(
    r"\s*(?:SELECT|FROM|VALUES|SHOW|DESCRIBE|SUMMARIZE|WITH|INSERT|UPDATE|DELETE|MERGE|COPY)"
    r"\b[^;]*;?\s*\Z",
    re.I,
)


def is_read_only(sql: str) -> bool:
    """True only if the statement certainly writes nothing, so that it can be retried.

    >>> is_read_only("SELECT 1"), is_read_only("SELECT 1; DROP TABLE t")
    (True, False)
    """
    return _READ_ONLY.match(sql) is not None and _SIDE_EFFECTS.search(sql) is None


def leaves_no_session_state(sql: str) -> bool:
    """True only if the statement certainly leaves its session unchanged.

    >>> [leaves_no_session_state(sql) for sql in ("INSERT INTO t VALUES (1)", "SET threads = 1")]
    [True, False]
    """
    return _STATELESS.match(sql) is not None and _SIDE_EFFECTS.search(sql) is None


def deadline(
    options: QueryOptions | None, timeout: Timeout, default: float | None = None
) -> Deadline:
    """The deadline of a statement: from the call's timeout, else its options, else the default."""
    for choice in (timeout, options.timeout if options else UNSET):
        if not isinstance(choice, Unset):
            return Deadline(choice)
    return Deadline(default)


def call_context(options: QueryOptions | None, deadline: Deadline) -> CallContext:
    """The context of one call, with the query id of its options if they name one."""
    if options is not None and options.query_id:
        return CallContext(deadline, options.query_id)
    return CallContext(deadline)


def query(sql: str, params: Parameters = None) -> Request[QueryResult]:
    """A statement, answered with all its rows."""
    begin = stream(sql, params)

    def run(connection: Connection, call: CallContext) -> QueryResult:
        return _collect(begin.run(connection, call), call)

    return Request(run, begin.idempotent, stateless=begin.stateless)


def execute(sql: str, params: Parameters = None) -> Request[QueryResult]:
    """Any statement, answered with all its rows; never retried."""
    return replace(query(sql, params), idempotent=False)


def stream(sql: str, params: Parameters = None) -> Request[ResultReader]:
    """A statement, answered with a reader of its rows."""
    bound = parameter_table(params)

    def run(connection: Connection, call: CallContext) -> ResultReader:
        return connection.driver.query(sql, call, bound, connection.transaction)

    return Request(run, is_read_only(sql), stateless=leaves_no_session_state(sql))


def update(sql: str, params: Parameters = None) -> Request[UpdateResult]:
    """A change, run once for every row of the parameters."""
    bound = parameter_table(params)

    def run(connection: Connection, call: CallContext) -> UpdateResult:
        affected = connection.driver.update(sql, call, bound, connection.transaction)
        return UpdateResult(affected, call.query_id)

    return Request(run, stateless=leaves_no_session_state(sql))


def read(rows: ResultReader) -> Request[Any | None]:
    """The next batch of a result; None after the last."""
    return Request(lambda connection, call: rows.read(), stateless=True)


def prepare(sql: str) -> Request[PreparedHandle]:
    """A statement to be prepared."""
    return Request(
        lambda connection, call: connection.driver.prepare(sql, call, connection.transaction)
    )


def query_prepared(prepared: PreparedHandle, params: Parameters = None) -> Request[QueryResult]:
    """A prepared statement, answered with all its rows."""
    bound = parameter_table(params)
    return Request(
        lambda connection, call: _collect(
            connection.driver.query_prepared(prepared, call, bound), call
        )
    )


def update_prepared(prepared: PreparedHandle, params: Parameters = None) -> Request[UpdateResult]:
    """A prepared change, run once for every row of the parameters."""
    bound = parameter_table(params)
    return Request(
        lambda connection, call: UpdateResult(
            connection.driver.update_prepared(prepared, call, bound), call.query_id
        )
    )


def close_prepared(prepared: PreparedHandle) -> Request[None]:
    """Frees a prepared statement on the server."""
    return Request(
        lambda connection, call: connection.driver.close_prepared(prepared, call), stateless=True
    )


def begin_transaction() -> Request[None]:
    """Begins a transaction of all following statements on the connection."""

    def run(connection: Connection, call: CallContext) -> None:
        if connection.transaction is not None:
            raise InvalidRequest(
                "A transaction is open already; commit it or roll it back first.",
                identifier="TRANSACTION_ACTIVE",
            )
        connection.transaction = connection.driver.begin_transaction(call)

    return Request(run, stateless=True)


def end_transaction(*, commit: bool) -> Request[None]:
    """Commits the open transaction, or rolls it back."""

    def run(connection: Connection, call: CallContext) -> None:
        if connection.transaction is None:
            raise InvalidRequest("No transaction is open.", identifier="NO_TRANSACTION")
        try:
            connection.driver.end_transaction(connection.transaction, call, commit=commit)
        except NotFound:  # ended already, by a failed commit or a ROLLBACK in SQL
            if commit:
                raise
        connection.transaction = None

    return Request(run, stateless=True)


def ingest(
    table: str,
    rows: Any,
    mode: Mode = "append",
    queue: bool = False,
    catalog: str | None = None,
    schema: str | None = None,
    temporary: bool = False,
    batch_name: tuple[str, int] | None = None,
) -> Request[int]:
    """Arrow rows for a table of the lake, written directly or through the Duckling Queue."""
    if mode not in _MODES:
        raise InvalidRequest(f"The mode {mode!r} is not one of {', '.join(_MODES)}.")
    if queue and catalog is not None:
        raise InvalidRequest("The queue belongs to the session's catalog; name no other.")
    source = arrow_rows(rows)
    if_not_exist, if_exists = _MODES[mode]
    command = _Ingest(
        table_definition_options=_Definition(if_not_exist=if_not_exist, if_exists=if_exists),
        table=table,
        schema=schema,
        catalog=_QUEUE if queue else catalog,
        temporary=temporary,
    )
    headers = {}
    if batch_name is not None:
        headers = {Headers.INGEST_ID: batch_name[0], Headers.INGEST_SEQUENCE: str(batch_name[1])}

    def run(connection: Connection, call: CallContext) -> int:
        if connection.transaction is not None:
            command.transaction_id = connection.transaction
        return connection.driver.send_rows(command, source, call)

    return Request(run, stateless=not temporary, headers=headers)


def arrow_rows(rows: Any) -> Any:
    """A table or a reader of rows, from anything that supports Arrow."""
    if isinstance(rows, pa.Table | pa.RecordBatchReader):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if hasattr(rows, "__arrow_c_stream__"):  # Polars, DuckDB, pandas 2.2
        return pa.RecordBatchReader.from_stream(rows)
    if hasattr(rows, "to_arrow_table"):
        return rows.to_arrow_table()
    try:
        if isinstance(rows, list) and rows and all(isinstance(row, pa.RecordBatch) for row in rows):
            return pa.Table.from_batches(rows)
        if isinstance(rows, list) and all(isinstance(row, Mapping) for row in rows):
            return pa.Table.from_pylist(rows)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as unfit:
        raise InvalidRequest(f"The rows have no common form in Arrow: {unfit}") from None
    raise InvalidRequest(
        f"Rows are Arrow (a table, batches, a data frame) or a list of dicts, not "
        f"{type(rows).__name__}."
    )


def catalogs() -> Request[QueryResult]:
    """The catalogs that statements can name."""
    return _metadata(messages.CommandGetCatalogs())


def schemas(catalog: str | None, schema_pattern: str | None) -> Request[QueryResult]:
    """The schemas of one catalog, or of all."""
    return _metadata(
        messages.CommandGetDbSchemas(catalog=catalog, db_schema_filter_pattern=schema_pattern)
    )


def tables(
    catalog: str | None,
    schema_pattern: str | None,
    table_pattern: str | None,
    types: Iterable[str],
    include_schema: bool,
) -> Request[QueryResult]:
    """Tables and views, with their columns if ``include_schema``."""
    return _metadata(
        messages.CommandGetTables(
            catalog=catalog,
            db_schema_filter_pattern=schema_pattern,
            table_name_filter_pattern=table_pattern,
            table_types=list(types),
            include_schema=include_schema,
        )
    )


def columns(table: str, schema: str | None) -> Request[tuple[Any, list[dict[str, Any]]]]:
    """The columns of a table: as an Arrow schema, and as the rows of DESCRIBE."""
    name = qualified(schema, table)
    describe = query(f"DESCRIBE {name}")

    def run(connection: Connection, call: CallContext) -> tuple[Any, list[dict[str, Any]]]:
        prepared = connection.driver.prepare(f"FROM {name}", call, connection.transaction)
        connection.driver.close_prepared(prepared, call)
        return prepared.columns, describe.run(connection, call).to_pylist()

    return Request(run, idempotent=True, stateless=True)


def _metadata(command: Any) -> Request[QueryResult]:
    def run(connection: Connection, call: CallContext) -> QueryResult:
        return _collect(connection.driver.fetch(command, call), call)

    return Request(run, idempotent=True, stateless=True)


def status() -> Request[dict[str, Any]]:
    """The server's version, state and counters."""
    return Request(
        lambda connection, call: connection.driver.status(call.deadline),
        idempotent=True,
        stateless=True,
    )


def _collect(rows: ResultReader, call: CallContext) -> QueryResult:
    batches = []
    while (batch := rows.read()) is not None:
        batches.append(batch)
    # The count of affected rows is in the result; as metadata it would stay with the table.
    schema = rows.schema if rows.affected < 0 else rows.schema.remove_metadata()
    table = pa.Table.from_batches(batches, schema)
    return QueryResult(table, call.query_id, rows.affected)
