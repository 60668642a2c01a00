"""Queries for the schemas, relations and columns of a catalog."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import Connection

from swanlake.client.sqlalchemy_dialect.types import parse_type

#: Relations of a schema of the session's catalog; without a name, of the current schema and the
#: temporary ones, which hide others of the same name.
_IN_SCHEMA = """
    ((database_name = current_catalog() AND schema_name = coalesce($1, current_schema()))
     OR ($1 IS NULL AND database_name = 'temp'))
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
      AND ($2::VARCHAR[] IS NULL OR list_contains($2::VARCHAR[], lower(table_name)))
    ORDER BY temporary, relation, column_index
"""
_SCHEMAS = """
    SELECT schema_name FROM duckdb_schemas()
    WHERE database_name = current_catalog()
      AND schema_name NOT IN ('information_schema', 'pg_catalog')
    ORDER BY 1
"""


@dataclass(frozen=True)
class Relation:
    """A table or a view."""

    name: str
    is_view: bool
    temporary: bool
    comment: str | None
    sql: str | None


def schemas(connection: Connection) -> list[str]:
    """The schemas of the session's catalog."""
    return [row[0] for row in connection.exec_driver_sql(_SCHEMAS)]


def relations(connection: Connection, schema: str | None) -> list[Relation]:
    """The tables and views of a schema; without a name, of the current one and temporary ones."""
    rows = connection.exec_driver_sql(f"{_RELATIONS} ORDER BY 1", (schema,))
    return [Relation(*row) for row in rows]


def relation(connection: Connection, schema: str | None, name: str) -> Relation | None:
    """The table or view of that name, ignoring case; temporary ones first."""
    sql = f"SELECT * FROM ({_RELATIONS}) WHERE lower(name) = lower($2) ORDER BY temporary DESC"
    row = connection.exec_driver_sql(sql, (schema, name)).first()
    return None if row is None else Relation(*row)


def columns(
    connection: Connection, schema: str | None, names: Iterable[str] | None = None
) -> dict[str, list[dict[str, Any]]]:
    """The columns of the named relations, or of all, by the relation's name in lower case."""
    relation_names = None if names is None else [name.lower() for name in names]
    columns: dict[tuple[bool, str], list[dict[str, Any]]] = {}
    rows = connection.exec_driver_sql(_COLUMNS, (schema, relation_names))
    for temporary, relation, *column in rows:
        columns.setdefault((temporary, relation), []).append(_column(column))
    # Temporary relations come last and so hide others of the same name.
    return {relation: described for (_, relation), described in columns.items()}


def _column(row: Iterable[Any]) -> dict[str, Any]:
    name, data_type, nullable, default, comment = row
    return {
        "name": name,
        "type": parse_type(data_type),
        "nullable": nullable,
        "default": default,
        "autoincrement": False,
        "comment": comment,
    }
