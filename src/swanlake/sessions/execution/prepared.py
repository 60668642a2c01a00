"""What a statement will give and take, found without executing it."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa

from swanlake.sessions.prepared import EMPTY_SCHEMA, PreparedStatement
from swanlake.sessions.procedures import find_procedure
from swanlake.sessions.wire import WireFormat
from swanlake.sql.hints import parameter_hints
from swanlake.sql.statement import Kind, Statement, parse


def describe(
    connection: duckdb.DuckDBPyConnection,
    prepared: PreparedStatement,
    statement: Statement,
    target: Any = None,
) -> None:
    """Fills in the schemas of a prepared statement, from the form of it that DuckDB knows.

    ``target`` is the schema of what it inserts into, where that is known. What is a mistake today
    is reported today: an unknown table fails here.
    """
    procedure = find_procedure(statement)
    if procedure is not None:
        prepared.dataset_schema = procedure.schema
    elif statement.kind is Kind.QUERY:
        prepared.dataset_schema = dataset_schema(connection, statement)
    if statement.parameters:
        schema = _parameter_schema(connection, statement, prepared.dataset_schema, target)
        prepared.parameter_schema = schema


def dataset_schema(connection: duckdb.DuckDBPyConnection, statement: Statement) -> Any:
    """The columns of a query's result; empty where they cannot be known before it runs."""
    probe = statement.probe()
    if probe is None:
        return EMPTY_SCHEMA
    try:
        [probing] = parse(connection, probe)
        connection.execute(probing.parsed, dict.fromkeys(probing.parameters))
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


def _parameter_schema(
    connection: duckdb.DuckDBPyConnection, statement: Statement, result: Any, target: Any
) -> Any:
    """The parameters with the types of the columns they are for; text for those that say nothing.

    DuckDB turns text into whatever a parameter has to be, as far as the text allows.
    """
    hints = parameter_hints(statement)
    types: dict[str, Any] = {}
    if hints.by_place and statement.target:
        inserted = None if target is None else _known_types(target, hints.inserted)
        if inserted is None:
            listed = ", ".join(hints.inserted or ["*"])
            inserted = _types(connection, f"SELECT {listed} FROM {statement.target}")
        types = {name: inserted[i][1] for name, i in hints.by_place.items() if i < len(inserted)}
    if hints.by_name:
        wanted = {_plain(column) for column in hints.by_name.values()}
        found = _column_types(connection, statement, result, wanted)
        types |= {
            name: found[_plain(column)]
            for name, column in hints.by_name.items()
            if _plain(column) in found
        }
    return pa.schema(
        [pa.field(name, types.get(name, pa.string())) for name in statement.parameters]
    )


def _known_types(target: Any, listed: list[str] | None) -> list[tuple[str, Any]] | None:
    """The columns an INSERT lists, or all, of a known schema; None if one is not in it."""
    kinds = {field.name.lower(): field.type for field in WireFormat(target).schema}
    if listed is None:
        return list(kinds.items())
    names = [_plain(name) for name in listed]
    return [(name, kinds[name]) for name in names] if kinds.keys() >= set(names) else None


def _column_types(
    connection: duckdb.DuckDBPyConnection, statement: Statement, result: Any, wanted: set[str]
) -> dict[str, Any]:
    """The types of columns by their names: from the result, else from the tables that are read."""
    found = {field.name.lower(): field.type for field in result}
    if wanted <= found.keys():
        return found
    try:
        tables = {statement.target} if statement.target else _tables(connection, statement)
        for table in sorted(tables):
            found = dict(_types(connection, f"SELECT * FROM {table}")) | found
    except duckdb.Error:
        pass  # a table that only the statement itself knows how to read
    return found


def _tables(connection: duckdb.DuckDBPyConnection, statement: Statement) -> set[str]:
    """The tables a query reads, as it would write them; DuckDB tells only without parameters."""
    text = statement.with_parameters(lambda name: "NULL")
    return connection.get_table_names(text, qualified=True)


def _types(connection: duckdb.DuckDBPyConnection, query: str) -> list[tuple[str, Any]]:
    """The columns of a query by name with their types; text stands for what cannot travel."""
    columns = connection.execute(f"{query} LIMIT 0").description or []
    kinds = arrow_types(connection, [str(column[1]) for column in columns])
    return [
        (column[0].lower(), pa.string() if pa.types.is_null(kind) else kind)
        for column, kind in zip(columns, kinds, strict=True)
    ]


def _plain(name: str) -> str:
    return name.removeprefix('"').removesuffix('"').replace('""', '"').lower()
