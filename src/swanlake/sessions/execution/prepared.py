"""Prepared statements: parsed once, described without being executed, bound and run many times."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa
from duckdb import StatementType

from swanlake.errors import InvalidRequest
from swanlake.sessions.ids import new_handle
from swanlake.sessions.procedures.base import Procedure
from swanlake.sessions.results.wire import WireFormat
from swanlake.sql.hints import parameter_hints
from swanlake.sql.parameter_types import infer_types
from swanlake.sql.quoting import unquoted
from swanlake.sql.statement import PROBE_LINE, Kind, Statement, parse

EMPTY_SCHEMA = pa.schema([])
_EXPLAIN_SCHEMA = pa.schema([("explain_key", pa.string()), ("explain_value", pa.string())])
_PLAN_ERROR = re.compile(r'{"error":true')
_MISSING_CATALOG = re.compile(r'Catalog \\?"[^"]*" does not exist')
_LINE = re.compile(r"\nLINE (\d+):")


@dataclass
class PreparedStatement:
    """A parsed text, its schemas, and the parameters that are bound to it."""

    sql: str
    statements: list[Statement]
    handle: bytes = field(default_factory=new_handle)
    dataset_schema: Any = EMPTY_SCHEMA
    parameter_schema: Any = EMPTY_SCHEMA
    bound: list[Any] | None = None

    def __post_init__(self) -> None:
        if any(statement.parameters for statement in self.statements[:-1]):
            raise InvalidRequest("Only the last statement of a text can take parameters.")

    @property
    def last(self) -> Statement:
        return self.statements[-1]

    @property
    def is_update(self) -> bool:
        return self.last.kind is not Kind.QUERY


def describe(
    connection: duckdb.DuckDBPyConnection,
    prepared: PreparedStatement,
    statement: Statement,
    procedure: Procedure | None = None,
    target: Any = None,
) -> None:
    """Fills in the schemas of a prepared statement, from the statement as DuckDB runs it.

    ``target`` is the schema of the table of an INSERT, where that is known. Raises DuckDB's error
    for a statement that cannot be bound, such as one with an unknown table.
    """
    if procedure is not None:
        prepared.dataset_schema = procedure.schema
    elif statement.kind is Kind.QUERY:
        prepared.dataset_schema = dataset_schema(connection, statement)
    if statement.parameters:
        prepared.parameter_schema = _parameter_schema(connection, statement, target)


def dataset_schema(connection: duckdb.DuckDBPyConnection, statement: Statement) -> Any:
    """The columns of a query's result; empty where they cannot be known before it runs."""
    if statement.type == StatementType.EXPLAIN:
        return _EXPLAIN_SCHEMA
    probe = statement.probe()
    if probe is None or statement.is_expanded:
        return EMPTY_SCHEMA
    try:
        [probing] = parse(connection, probe)
        connection.execute(probing.parsed, dict.fromkeys(probing.parameters))
        return WireFormat(connection.to_arrow_reader(1).schema).schema
    except (duckdb.ParserException, duckdb.InvalidInputException):
        # Some statements are not allowed in a FROM, and some cannot be bound to NULLs.
        return EMPTY_SCHEMA
    except duckdb.BinderException as error:
        # Some functions cannot be chosen for NULLs, and a RETURNING may name more than its table.
        is_exact = probe.startswith(PROBE_LINE) and not statement.parameters
        if not is_exact and not _MISSING_CATALOG.search(str(error)):
            return EMPTY_SCHEMA
        raise _for_client(error, probe) from None
    except duckdb.Error as error:
        raise _for_client(error, probe) from None


def _for_client(error: duckdb.Error, probe: str) -> duckdb.Error:
    """The error of a probe, pointing at the client's text or at none."""
    if not probe.startswith(PROBE_LINE):
        return type(error)(_LINE.split(str(error))[0].rstrip())
    return type(error)(_LINE.sub(lambda match: f"\nLINE {int(match[1]) - 1}:", str(error)))


def arrow_types(connection: duckdb.DuckDBPyConnection, sql_types: list[str]) -> list[Any]:
    """The Arrow types on the wire of these SQL types, by one query.

    A type without an Arrow type (VARIANT) has the null type.
    """
    if not sql_types:
        return []
    columns = ", ".join(f"NULL::{sql_type}" for sql_type in sql_types)
    connection.execute(f"SELECT {columns} LIMIT 0")
    try:
        return list(WireFormat(connection.to_arrow_reader(1).schema).schema.types)
    except OSError:  # one of them has no Arrow type, so each is tried alone
        if len(sql_types) == 1:
            return [pa.null()]
        return [kind for sql_type in sql_types for kind in arrow_types(connection, [sql_type])]


def _parameter_schema(
    connection: duckdb.DuckDBPyConnection, statement: Statement, target: Any
) -> Any:
    """The parameters with the types that DuckDB infers; text where it infers none.

    DuckDB casts text to the type that a parameter needs.
    """
    types = _inserted_types(connection, statement, target)
    if not types.keys() >= set(statement.parameters):
        inferred = infer_types(statement, partial(_plan, connection))
        kinds = arrow_types(connection, list(inferred.values()))
        types = dict(zip(inferred, kinds, strict=True)) | types
    return pa.schema(
        [pa.field(name, types.get(name, pa.string())) for name in statement.parameters]
    )


def _inserted_types(
    connection: duckdb.DuckDBPyConnection, statement: Statement, target: Any
) -> dict[str, Any]:
    """The types of those parameters that are whole values of an INSERT."""
    hints = parameter_hints(statement)
    if not hints.by_place or statement.target is None:
        return {}
    if target is None:
        columns = _columns(connection, f"FROM {statement.target} LIMIT 0")
    else:
        columns = WireFormat(target).schema
    kinds = {field.name.lower(): field.type for field in columns}
    names = list(kinds) if hints.inserted is None else [_plain(name) for name in hints.inserted]
    return {
        name: kinds[names[place]]
        for name, place in hints.by_place.items()
        if place < len(names) and names[place] in kinds
    }


def _plan(connection: duckdb.DuckDBPyConnection, text: str) -> str:
    """DuckDB's plan of a text, or its error, as JSON; raises if a catalog is not attached."""
    # Without its full name, the function would be looked for in the lake.
    query = "SELECT system.main.json_serialize_plan(?)"
    [(plan,)] = connection.execute(query, [text]).fetchall()
    if _PLAN_ERROR.match(plan) and _MISSING_CATALOG.search(plan):
        raise duckdb.BinderException(f"Binder Error: {json.loads(plan)['error_message']}")
    return str(plan)


def _columns(connection: duckdb.DuckDBPyConnection, query: str) -> Any:
    """The columns of a query; text for those without an Arrow type."""
    try:
        columns = connection.execute(query).description or []
    except duckdb.Error as error:
        raise _for_client(error, query) from None
    kinds = arrow_types(connection, [str(column[1]) for column in columns])
    return pa.schema(
        [
            pa.field(column[0], pa.string() if pa.types.is_null(kind) else kind)
            for column, kind in zip(columns, kinds, strict=True)
        ]
    )


def _plain(name: str) -> str:
    return unquoted(name).lower()
