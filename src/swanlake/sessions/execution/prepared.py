"""Prepared statements: parsed once, described without being executed, bound and run many times."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa
from duckdb import StatementType

from swanlake.errors import InvalidRequest
from swanlake.sessions.execution import binding
from swanlake.sessions.ids import new_handle
from swanlake.sessions.procedures.base import Procedure
from swanlake.sessions.results.columns import with_column_metadata
from swanlake.sessions.results.wire import WireFormat
from swanlake.sessions.run import Run
from swanlake.sql.hints import ParameterHints, parameter_hints
from swanlake.sql.parameter_types import infer_types
from swanlake.sql.quoting import unquoted
from swanlake.sql.statement import PROBE_LINE, Kind, Statement, parse

EMPTY_SCHEMA = pa.schema([])
#: A client that prepares a statement to execute it once does so at once.
_RECENT_SECONDS = 1.0
_EXPLAIN_SCHEMA = pa.schema([("explain_key", pa.string()), ("explain_value", pa.string())])
_PLAN_ERROR = re.compile(r'{"error":true')
_MISSING_CATALOG = re.compile(r'Catalog \\?"[^"]*" does not exist')
#: What DuckDB appends to the name of a second column of that name.
_MAY_BE_RENAMED = re.compile(r"_\d+$")
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
    described_at: float = field(default_factory=time.monotonic)
    #: True for a query of nothing but tables and plain functions, whose description is cached.
    is_plain: bool = False
    #: The latest execution.
    last_run: Run | None = None

    def __post_init__(self) -> None:
        if any(statement.parameters for statement in self.statements[:-1]):
            raise InvalidRequest("Only the last statement of a text can take parameters.")

    @property
    def last(self) -> Statement:
        return self.statements[-1]

    @property
    def is_read(self) -> bool:
        """True for a single query that certainly changes nothing."""
        is_read = self.last.kind is Kind.QUERY and not self.last.may_write
        return is_read and len(self.statements) == 1

    @property
    def is_recently_described(self) -> bool:
        """True for the first execution right after the description; tables may change later."""
        return self.last_run is None and time.monotonic() < self.described_at + _RECENT_SECONDS

    def bound_values(self) -> dict[str, Any] | None:
        """The first row that is bound, by parameter; None if it has no exact Python values."""
        if not self.last.parameters:
            return {}
        if not self.bound or self.bound[0].num_rows == 0:
            return None
        order = binding.arrange(self.bound[0].schema, self.last.parameters)
        values = binding.plain_values(binding.bindable(self.bound[0], order), 0)
        return None if values is None else dict(zip(self.last.parameters, values, strict=True))

    @property
    def is_update(self) -> bool:
        return self.last.kind is not Kind.QUERY


def describe(
    connection: duckdb.DuckDBPyConnection,
    prepared: PreparedStatement,
    statement: Statement,
    procedure: Procedure | None = None,
    target: Any = None,
    values: dict[str, Any] | None = None,
) -> None:
    """Fills in the schemas of a prepared statement, from the statement as DuckDB runs it.

    ``target`` is the schema of the table of an INSERT, where that is known. With the ``values`` of
    an execution, only the result is described: its types may depend on them. Raises DuckDB's error
    for a statement that cannot be bound, such as one with an unknown table.
    """
    if procedure is not None:
        prepared.dataset_schema = procedure.schema
    elif statement.kind is Kind.QUERY:
        prepared.dataset_schema = dataset_schema(connection, statement, values)
    if statement.parameters and values is None:
        prepared.parameter_schema = _parameter_schema(connection, statement, target)


def dataset_schema(
    connection: duckdb.DuckDBPyConnection,
    statement: Statement,
    values: dict[str, Any] | None = None,
) -> Any:
    """The columns of a query's result; empty where they cannot be known before it runs."""
    if statement.type == StatementType.EXPLAIN:
        return _EXPLAIN_SCHEMA
    probe = statement.probe()
    if probe is None or statement.is_expanded:
        return EMPTY_SCHEMA
    try:
        [probing] = parse(connection, probe)
        bound = values or dict.fromkeys(probing.parameters)
        connection.execute(probing.parsed, bound)
        sql_types = [column[1] for column in connection.description or ()]
        schema = WireFormat(connection.to_arrow_reader(1).schema).schema
        if any(map(_MAY_BE_RENAMED.search, schema.names)):
            schema = _renamed(schema, _result_names(connection, statement, bound))
        return with_column_metadata(schema, sql_types)
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


def _result_names(
    connection: duckdb.DuckDBPyConnection, statement: Statement, bound: dict[str, Any]
) -> list[str]:
    """The names of a query's columns, of which several may be the same; none if it is no query.

    A probe has the query as a subquery, where DuckDB makes names differ.
    """
    try:
        described = connection.execute(f"DESCRIBE {statement.body}", bound).fetchall()
    except duckdb.Error:
        return []
    return [column[0] for column in described]


def _renamed(schema: Any, names: list[str]) -> Any:
    if len(names) != len(schema):
        return schema
    return pa.schema([field.with_name(name) for field, name in zip(schema, names, strict=True)])


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


def inserted_parameters(statement: Statement, target: Any) -> Any | None:
    """The parameters of an INSERT into a table of this schema; None if one has another type."""
    types = _types_by_place(parameter_hints(statement), WireFormat(target).schema)
    if not types.keys() >= set(statement.parameters):
        return None
    return pa.schema([pa.field(name, types[name]) for name in statement.parameters])


def _inserted_types(
    connection: duckdb.DuckDBPyConnection, statement: Statement, target: Any
) -> dict[str, Any]:
    """The types of those parameters that are whole values of an INSERT."""
    hints = parameter_hints(statement)
    if not hints.by_place or statement.target is None:
        return {}
    if target is None:
        return _types_by_place(hints, _columns(connection, f"FROM {statement.target} LIMIT 0"))
    return _types_by_place(hints, WireFormat(target).schema)


def _types_by_place(hints: ParameterHints, columns: Any) -> dict[str, Any]:
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
