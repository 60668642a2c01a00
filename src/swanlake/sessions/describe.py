"""What a statement will give and take, found without executing it."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa

from swanlake.sessions.prepared import EMPTY_SCHEMA, PreparedStatement
from swanlake.sessions.wire import WireFormat
from swanlake.sql.quoting import identifier, literal
from swanlake.sql.statement import Kind, Statement

_NAME = "__swanlake_describe"


def describe(connection: duckdb.DuckDBPyConnection, prepared: PreparedStatement) -> None:
    """Fills in the schemas of a prepared statement.

    A text of several statements may create what its last one reads, so only a single statement is
    looked into. What is a mistake today is reported today: an unknown table fails here.
    """
    prepared.dataset_schema = prepared.parameter_schema = EMPTY_SCHEMA
    if len(prepared.statements) > 1:
        return
    statement = prepared.last
    if statement.parameters:
        prepared.parameter_schema = _parameter_schema(connection, statement)
    if statement.kind is Kind.QUERY:
        prepared.dataset_schema = dataset_schema(connection, statement)


def dataset_schema(connection: duckdb.DuckDBPyConnection, statement: Statement) -> Any:
    """The columns of a query's result; empty where they cannot be known before it runs."""
    probe = statement.probe()
    if probe is None:
        return EMPTY_SCHEMA
    parameters = dict.fromkeys(statement.parameters)
    positional = all(name.isdigit() for name in parameters)
    try:
        connection.execute(probe, list(parameters.values()) if positional else parameters)
        return WireFormat(connection.to_arrow_reader(1).schema).schema
    except (duckdb.ParserException, duckdb.BinderException, duckdb.InvalidInputException):
        # Some statements cannot stand in a FROM, and some cannot be bound to NULLs.
        return EMPTY_SCHEMA


def arrow_types(connection: duckdb.DuckDBPyConnection, sql_types: list[str]) -> list[Any]:
    """The Arrow types in which values of these SQL types travel: one query for all of them.

    What cannot travel (VARIANT) is of the null type.
    """
    if not sql_types:
        return []
    columns = ", ".join(f"NULL::{sql_type}" for sql_type in sql_types)
    connection.execute(f"SELECT {columns} LIMIT 0")
    try:
        return list(WireFormat(connection.to_arrow_reader(1).schema).schema.types)
    except OSError:  # one of them has no Arrow type, so each is asked for by itself
        if len(sql_types) == 1:
            return [pa.null()]
        return [kind for sql_type in sql_types for kind in arrow_types(connection, [sql_type])]


def _parameter_schema(connection: duckdb.DuckDBPyConnection, statement: Statement) -> Any:
    connection.execute(f"PREPARE {_NAME} AS {statement.text}")
    try:
        found = connection.execute(
            f"SELECT parameter_types FROM duckdb_prepared_statements() WHERE name = {literal(_NAME)}"
        ).fetchone()
    finally:
        connection.execute(f"DEALLOCATE {identifier(_NAME)}")
    sql_types = list(found[0]) if found and found[0] else []
    known = [kind for kind in sql_types if kind != "UNKNOWN"]
    arrow = iter(arrow_types(connection, known))
    return pa.schema(
        [
            pa.field(name, next(arrow) if kind != "UNKNOWN" else pa.null())
            for name, kind in zip(statement.parameters, sql_types, strict=False)
        ]
    )
