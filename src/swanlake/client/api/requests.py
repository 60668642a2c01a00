"""Everything that can be asked of a server, as requests for whoever has a connection."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from swanlake.client.connection import Connection, Request
from swanlake.client.driver import Call, Prepared, Rows
from swanlake.client.parameters import Parameters, bound_rows
from swanlake.client.result import QueryResult, UpdateResult
from swanlake.errors import InvalidRequest, NotFound
from swanlake.protocol import Headers, messages
from swanlake.sql.quoting import qualified

Mode: TypeAlias = Literal["append", "create", "replace", "create_append"]
_Ingest = messages.CommandStatementIngest
_Definition = _Ingest.TableDefinitionOptions
_MODES: Mapping[str, tuple[Any, Any]] = {
    # what to do if the table is not there, and if it is
    "append": (_Definition.TABLE_NOT_EXIST_OPTION_FAIL, _Definition.TABLE_EXISTS_OPTION_APPEND),
    "create": (_Definition.TABLE_NOT_EXIST_OPTION_CREATE, _Definition.TABLE_EXISTS_OPTION_FAIL),
    "replace": (_Definition.TABLE_NOT_EXIST_OPTION_CREATE, _Definition.TABLE_EXISTS_OPTION_REPLACE),
    "create_append": (
        _Definition.TABLE_NOT_EXIST_OPTION_CREATE,
        _Definition.TABLE_EXISTS_OPTION_APPEND,
    ),
}
_QUEUE = "duckling_queue"
#: WITH is not among them: it may end in an INSERT.
_READS = re.compile(r"\s*(?:SELECT|FROM|VALUES|SHOW|DESCRIBE|SUMMARIZE)\b[^;]*;?\s*\Z", re.I)
#: Functions that change something although they stand in a SELECT.
_CHANGES = re.compile(
    r"\b(?:nextval|setseed|query|write_log|(?:force_)?checkpoint|\w+_(?:execute|attach)"
    r"|(?:ducklake|swanlake|duckling_queue)_\w+)\s*\("
    # or whose names one would have to read more closely than this
    r"|\"\s*\(|--|/\*",
    re.I,
)
#: Statements that work on tables and leave the session as it is. DDL is not among them: nobody can
#: tell a temporary table by its first words.
_TRACELESS = re.compile(
    r"\s*(?:SELECT|FROM|VALUES|SHOW|DESCRIBE|SUMMARIZE|WITH|INSERT|UPDATE|DELETE|MERGE|COPY)"
    r"\b[^;]*;?\s*\Z",
    re.I,
)


def certainly_reads(sql: str) -> bool:
    """True only if running the text twice can do no harm; a doubt is a no.

    >>> certainly_reads("SELECT 1"), certainly_reads("SELECT 1; DROP TABLE t")
    (True, False)
    """
    return _READS.match(sql) is not None and _CHANGES.search(sql) is None


def certainly_traceless(sql: str) -> bool:
    """True only if the text leaves its session as it was; a doubt is a no.

    >>> certainly_traceless("INSERT INTO t VALUES (1)"), certainly_traceless("SET threads = 1")
    (True, False)
    """
    return _TRACELESS.match(sql) is not None and _CHANGES.search(sql) is None


# ---- statements ----------------------------------------------------------------------------------


def query(sql: str, params: Parameters = None) -> Request[QueryResult]:
    """A statement and all rows of its result."""
    begin = stream(sql, params)

    def ask(connection: Connection, call: Call) -> QueryResult:
        return _collect(begin.ask(connection, call), call)

    return Request(ask, begin.repeatable, traceless=begin.traceless)


def execute(sql: str, params: Parameters = None) -> Request[QueryResult]:
    """Any statement and all rows of its result; never to be asked twice."""
    return replace(query(sql, params), repeatable=False)


def stream(sql: str, params: Parameters = None) -> Request[Rows]:
    """A statement and the beginning of its result."""
    bound = bound_rows(params)

    def ask(connection: Connection, call: Call) -> Rows:
        transaction = connection.transaction
        return connection.driver.query(sql, call, parameters=bound, transaction=transaction)

    return Request(ask, certainly_reads(sql), traceless=certainly_traceless(sql))


def update(sql: str, params: Parameters = None) -> Request[UpdateResult]:
    """A change, once for every row of the parameters."""
    bound = bound_rows(params)

    def ask(connection: Connection, call: Call) -> UpdateResult:
        transaction = connection.transaction
        affected = connection.driver.update(sql, call, parameters=bound, transaction=transaction)
        return UpdateResult(affected, call.query_id)

    return Request(ask, traceless=certainly_traceless(sql))


def read(rows: Rows) -> Request[Any | None]:
    """The next batch of a result; None after the last."""
    return Request(lambda connection, call: rows.read(), traceless=True)


# ---- prepared statements -------------------------------------------------------------------------


def prepare(sql: str) -> Request[Prepared]:
    """A statement that will be run often."""
    return Request(
        lambda connection, call: connection.driver.prepare(sql, call, connection.transaction)
    )


def query_prepared(prepared: Prepared, params: Parameters = None) -> Request[QueryResult]:
    """A prepared statement and all rows of its result."""
    bound = bound_rows(params)
    return Request(
        lambda connection, call: _collect(
            connection.driver.query_prepared(prepared, call, bound), call
        )
    )


def update_prepared(prepared: Prepared, params: Parameters = None) -> Request[UpdateResult]:
    """A prepared change, once for every row of the parameters."""
    bound = bound_rows(params)
    return Request(
        lambda connection, call: UpdateResult(
            connection.driver.update_prepared(prepared, call, bound), call.query_id
        )
    )


def close_prepared(prepared: Prepared) -> Request[None]:
    """The server forgets a prepared statement."""
    return Request(
        lambda connection, call: connection.driver.close_prepared(prepared, call), traceless=True
    )


# ---- transactions --------------------------------------------------------------------------------


def begin_transaction() -> Request[None]:
    """From now on statements of the connection belong to one transaction."""

    def ask(connection: Connection, call: Call) -> None:
        if connection.transaction is not None:
            raise InvalidRequest(
                "A transaction is open already; commit it or roll it back first.",
                identifier="TRANSACTION_ACTIVE",
            )
        connection.transaction = connection.driver.begin(call)

    return Request(ask, traceless=True)


def end_transaction(*, commit: bool) -> Request[None]:
    """Commits the open transaction, or rolls it back."""

    def ask(connection: Connection, call: Call) -> None:
        if connection.transaction is None:
            raise InvalidRequest("No transaction is open.", identifier="NO_TRANSACTION")
        try:
            connection.driver.end(connection.transaction, call, commit=commit)
        except NotFound:  # a commit that fails has ended it, and so has a ROLLBACK in SQL
            if commit:
                raise
        connection.transaction = None

    return Request(ask, traceless=True)


# ---- rows into tables ----------------------------------------------------------------------------


def ingest(
    table: str,
    rows: Any,
    *,
    mode: Mode = "append",
    queue: bool = False,
    catalog: str | None = None,
    schema: str | None = None,
    temporary: bool = False,
    batch_name: tuple[str, int] | None = None,
) -> Request[int]:
    """Rows of Arrow into a table of the lake, at once or through the Duckling Queue."""
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

    def ask(connection: Connection, call: Call) -> int:
        if connection.transaction is not None:
            command.transaction_id = connection.transaction
        return connection.driver.ingest(command, source, call)

    return Request(ask, traceless=not temporary, headers=headers)


def arrow_rows(rows: Any) -> Any:
    """What can be sent: a table or a reader, from anything that speaks Arrow."""
    if isinstance(rows, pa.Table | pa.RecordBatchReader):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if hasattr(rows, "__arrow_c_stream__"):  # Polars, DuckDB, pandas 2.2
        return pa.RecordBatchReader.from_stream(rows)
    if hasattr(rows, "to_arrow_table"):
        return rows.to_arrow_table()
    try:
        if isinstance(rows, list) and rows and all(isinstance(one, pa.RecordBatch) for one in rows):
            return pa.Table.from_batches(rows)
        if isinstance(rows, list) and all(isinstance(one, Mapping) for one in rows):
            return pa.Table.from_pylist(rows)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as unfit:
        raise InvalidRequest(f"The rows have no common form in Arrow: {unfit}") from None
    raise InvalidRequest(
        f"Rows are Arrow (a table, batches, a data frame) or a list of dicts, not "
        f"{type(rows).__name__}."
    )


# ---- metadata ------------------------------------------------------------------------------------


def catalogs() -> Request[QueryResult]:
    """The catalogs one can name."""
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
    """Tables and views, with their columns if asked for."""
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
    """The columns of a table: as an Arrow schema, and as DESCRIBE tells of them."""
    name = qualified(schema, table)
    describe = query(f"DESCRIBE {name}")

    def ask(connection: Connection, call: Call) -> tuple[Any, list[dict[str, Any]]]:
        prepared = connection.driver.prepare(f"FROM {name}", call, connection.transaction)
        connection.driver.close_prepared(prepared, call)
        return prepared.columns, describe.ask(connection, call).to_pylist()

    return Request(ask, repeatable=True, traceless=True)


def _metadata(command: Any) -> Request[QueryResult]:
    def ask(connection: Connection, call: Call) -> QueryResult:
        return _collect(connection.driver.metadata(command, call), call)

    return Request(ask, repeatable=True, traceless=True)


# ---- the server ----------------------------------------------------------------------------------


def status() -> Request[dict[str, Any]]:
    """What the server says of itself."""
    return Request(
        lambda connection, call: connection.driver.status(call.deadline),
        repeatable=True,
        traceless=True,
    )


def _collect(rows: Rows, call: Call) -> QueryResult:
    batches = []
    while (batch := rows.read()) is not None:
        batches.append(batch)
    # The count of affected rows has been read; as metadata it would follow the table around.
    schema = rows.schema if rows.affected < 0 else rows.schema.remove_metadata()
    table = pa.Table.from_batches(batches, schema)
    return QueryResult(table, call.query_id, rows.affected)
