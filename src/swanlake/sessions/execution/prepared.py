"""Prepared statements: parsed once, described without being executed, bound and run many times."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa

from swanlake.errors import InvalidRequest
from swanlake.sessions.ids import new_handle
from swanlake.sessions.procedures.base import Procedure
from swanlake.sessions.results.wire import WireFormat
from swanlake.sql.hints import parameter_hints
from swanlake.sql.quoting import unquoted
from swanlake.sql.statement import Kind, Statement, parse

EMPTY_SCHEMA = pa.schema([])


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
        schema = _parameter_schema(connection, statement, prepared.dataset_schema, target)
        prepared.parameter_schema = schema


def dataset_schema(connection: duckdb.DuckDBPyConnection, statement: Statement) -> Any:
    """The columns of a query's result; empty where they cannot be known before it runs."""
    probe = statement.probe()
    if probe is None or statement.is_expanded:
        return EMPTY_SCHEMA
    try:
        [probing] = parse(connection, probe)
        connection.execute(probing.parsed, dict.fromkeys(probing.parameters))
        return WireFormat(connection.to_arrow_reader(1).schema).schema
    except (duckdb.ParserException, duckdb.BinderException, duckdb.InvalidInputException):
        # Some statements are not allowed in a FROM, and some cannot be bound to NULLs.
        return EMPTY_SCHEMA


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
    connection: duckdb.DuckDBPyConnection, statement: Statement, result: Any, target: Any
) -> Any:
    """The parameters with the types of their columns; text where the column is not known.

    DuckDB casts text to the type that a parameter needs.
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
    """The columns that an INSERT lists, or all, of a schema; None if one is not in it."""
    kinds = {field.name.lower(): field.type for field in WireFormat(target).schema}
    if listed is None:
        return list(kinds.items())
    names = [_plain(name) for name in listed]
    return [(name, kinds[name]) for name in names] if kinds.keys() >= set(names) else None


def _column_types(
    connection: duckdb.DuckDBPyConnection, statement: Statement, result: Any, wanted: set[str]
) -> dict[str, Any]:
    """The types of columns by name: from the result, else from the tables that are read."""
    found = {field.name.lower(): field.type for field in result}
    if wanted <= found.keys():
        return found
    try:
        if statement.target:
            tables = {statement.target}
        else:  # DuckDB lists the tables of a query only without parameters
            text = statement.with_parameters(lambda name: "NULL")
            tables = connection.get_table_names(text, qualified=True)
        for table in sorted(tables):
            found = dict(_types(connection, f"SELECT * FROM {table}")) | found
    except duckdb.Error:
        pass  # such as a table function or a CTE
    return found


def _types(connection: duckdb.DuckDBPyConnection, query: str) -> list[tuple[str, Any]]:
    """The columns of a query by name with their types; text for those without an Arrow type."""
    columns = connection.execute(f"{query} LIMIT 0").description or []
    kinds = arrow_types(connection, [str(column[1]) for column in columns])
    return [
        (column[0].lower(), pa.string() if pa.types.is_null(kind) else kind)
        for column, kind in zip(columns, kinds, strict=True)
    ]


def _plain(name: str) -> str:
    return unquoted(name).lower()
