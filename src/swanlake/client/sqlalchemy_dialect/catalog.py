"""Queries for the schemas, relations, columns and constraints of a catalog."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import exc
from sqlalchemy.engine import Connection

from swanlake.client.sqlalchemy_dialect.types import parse_type

#: Objects of a schema, whose catalog is by default the session's; without a name, of the current
#: schema and the temporary ones, which hide others of the same name.
_IN_SCHEMA = """
    ((lower(database_name) = lower(coalesce($1, current_catalog()))
      AND lower(schema_name) = lower(coalesce($2, current_schema())))
     OR ($2 IS NULL AND database_name = 'temp'))
"""
#: Without the views that the server creates for bound parameters.
_RELATIONS = f"""
    SELECT table_name AS name, false AS is_view, database_name = 'temp' AS temporary, comment, sql
    FROM duckdb_tables() WHERE {_IN_SCHEMA}
    UNION ALL
    SELECT view_name, true, database_name = 'temp', comment, sql
    FROM duckdb_views()
    WHERE {_IN_SCHEMA} AND NOT internal AND NOT starts_with(view_name, '__swanlake_')
"""
_COLUMNS = f"""
    SELECT database_name = 'temp' AS temporary, lower(table_name) AS relation, column_name,
           data_type, is_nullable, nullif(column_default, 'NULL'), comment
    FROM duckdb_columns()
    WHERE {_IN_SCHEMA}
      AND ($3::VARCHAR[] IS NULL OR list_contains($3::VARCHAR[], lower(table_name)))
    ORDER BY temporary, relation, column_index
"""
_CONSTRAINTS = f"""
    SELECT lower(table_name), database_name = 'temp', constraint_type, constraint_name,
           constraint_column_names, expression, referenced_table, referenced_column_names
    FROM duckdb_constraints()
    WHERE {_IN_SCHEMA} AND constraint_type <> 'NOT NULL'
    ORDER BY constraint_name
"""
_SEQUENCES = f"SELECT sequence_name FROM duckdb_sequences() WHERE {_IN_SCHEMA} ORDER BY 1"
_SCHEMAS = """
    SELECT schema_name FROM duckdb_schemas()
    WHERE lower(database_name) = lower(coalesce($1, current_catalog()))
      AND schema_name NOT IN ('information_schema', 'pg_catalog')
    ORDER BY 1
"""
_PARTS = re.compile(r'("(?:[^"]|"")+"|[^."]+)(?:\.("(?:[^"]|"")+"|[^."]+))?')


@dataclass(frozen=True)
class SchemaName:
    """A schema; None stands for the session's catalog or its current schema."""

    catalog: str | None
    schema: str | None

    @classmethod
    def parse(cls, text: str | None) -> SchemaName:
        """Reads ``schema`` or ``catalog.schema``; double quotes protect dots.

        A ``quoted_name(…, quote=True)`` is one name.
        """
        if text is None or getattr(text, "quote", None):
            return cls(None, text)
        if (parts := _PARTS.fullmatch(text)) is None:
            return cls(None, text)
        first, second = (_unquoted(part) for part in parts.groups())
        return cls(None, first) if second is None else cls(first, second)

    @property
    def parts(self) -> list[str]:
        """The names that SQL joins with a dot."""
        return [part for part in (self.catalog, self.schema) if part is not None]


def _unquoted(part: str | None) -> str | None:
    if part is None or not part.startswith('"'):
        return part
    return part[1:-1].replace('""', '"')


@dataclass(frozen=True)
class Relation:
    """A table or a view."""

    name: str
    is_view: bool
    temporary: bool
    comment: str | None
    sql: str | None


@dataclass(frozen=True)
class Constraint:
    """A key or check; only temporary tables and attached databases have any."""

    relation: str
    temporary: bool
    kind: str
    name: str
    columns: list[str]
    expression: str | None
    referred_table: str | None
    referred_columns: list[str]


def schemas(connection: Connection, catalog: str | None = None) -> list[str]:
    """The schemas of a catalog, by default the session's."""
    if catalog is not None:
        _attach(connection, [catalog])
    return [row[0] for row in connection.exec_driver_sql(_SCHEMAS, (catalog,))]


def relations(connection: Connection, schema: str | None) -> list[Relation]:
    """The tables and views of a schema; without a name, of the current one and temporary ones."""
    return [Relation(*row) for row in _query(connection, f"{_RELATIONS} ORDER BY 1", schema)]


def relation(connection: Connection, schema: str | None, name: str) -> Relation | None:
    """The table or view of that name, ignoring case; temporary ones first."""
    sql = f"SELECT * FROM ({_RELATIONS}) WHERE lower(name) = lower($3) ORDER BY temporary DESC"
    row = _query(connection, sql, schema, name).first()
    return None if row is None else Relation(*row)


def columns(
    connection: Connection, schema: str | None, names: Iterable[str] | None = None
) -> dict[str, list[dict[str, Any]]]:
    """The columns of the named relations, or of all, by the relation's name in lower case."""
    relation_names = None if names is None else [name.lower() for name in names]
    columns: dict[tuple[bool, str], list[dict[str, Any]]] = {}
    rows = _query(connection, _COLUMNS, schema, relation_names)
    for temporary, relation, *column in rows:
        columns.setdefault((temporary, relation), []).append(_column(column))
    # Temporary relations come last and so hide others of the same name.
    return {relation: described for (_, relation), described in columns.items()}


def constraints(connection: Connection, schema: str | None) -> list[Constraint]:
    """The keys and checks of all tables of a schema."""
    return [Constraint(*row) for row in _query(connection, _CONSTRAINTS, schema)]


def sequences(connection: Connection, schema: str | None) -> list[str]:
    """The sequences of a schema: temporary ones, as DuckLake has none."""
    return [row[0] for row in _query(connection, _SEQUENCES, schema)]


def _query(connection: Connection, sql: str, schema: str | None, *parameters: Any) -> Any:
    name = SchemaName.parse(schema)
    if name.catalog is not None:
        _attach(connection, name.parts)
    return connection.exec_driver_sql(sql, (name.catalog, name.schema, *parameters))


def _attach(connection: Connection, parts: list[str]) -> None:
    """Makes a catalog visible: the server attaches it when a statement names it in its text."""
    quote = connection.dialect.identifier_preparer.quote_identifier
    with suppress(exc.ProgrammingError):  # of an unknown catalog or schema: nothing will be found
        connection.exec_driver_sql(f"SHOW TABLES FROM {'.'.join(map(quote, parts))}").close()


def _column(row: Iterable[Any]) -> dict[str, Any]:
    name, data_type, nullable, default, comment = row
    return {
        "name": name,
        "type": parse_type(data_type),
        "nullable": nullable,
        "default": default,
        "comment": comment,
    }
