"""The queries behind ``\\d`` and similar commands."""

from __future__ import annotations

from collections.abc import Sequence

from swanlake.cli.shell.lexing import Kind, pieces
from swanlake.sql.quoting import literal, qualified, unquoted

_VISIBLE = "database_name IN (current_catalog(), 'temp')"
_NOT_INTERNAL = "NOT internal AND schema_name NOT LIKE '\\_\\_%' ESCAPE '\\'"


def tables(pattern: str = "") -> str:
    """Tables of the current catalog, and temporary ones."""
    return f"""SELECT schema_name AS "schema", table_name AS "table", estimated_size AS "rows",
        column_count AS "columns", comment
    FROM duckdb_tables() WHERE {_VISIBLE} AND NOT internal{_matching("table_name", pattern)}
    ORDER BY ALL"""


def views(pattern: str = "") -> str:
    """Views of the current catalog, and temporary ones."""
    return f"""SELECT schema_name AS "schema", view_name AS "view", comment
    FROM duckdb_views() WHERE {_VISIBLE} AND NOT internal{_matching("view_name", pattern)}
    ORDER BY ALL"""


def relations(pattern: str = "") -> str:
    """Tables and views of the current catalog, and temporary ones."""
    return f"""SELECT schema_name AS "schema", name, kind, "rows" FROM (
        SELECT *, table_name AS name, if(temporary, 'temporary table', 'table') AS kind,
            estimated_size AS "rows"
        FROM duckdb_tables()
        UNION ALL BY NAME
        SELECT *, view_name AS name, if(temporary, 'temporary view', 'view') AS kind
        FROM duckdb_views())
    WHERE {_VISIBLE} AND NOT internal{_matching("name", pattern)} ORDER BY ALL"""


def schemas(pattern: str = "") -> str:
    """Schemas of the attached catalogs."""
    return f"""SELECT database_name AS catalog, schema_name AS "schema", comment
    FROM duckdb_schemas() WHERE {_NOT_INTERNAL} AND database_name <> 'temp'
    {_matching("schema_name", pattern)} ORDER BY ALL"""


def functions(pattern: str = "") -> str:
    """Functions with their parameters."""
    return f"""SELECT function_name AS "function",
        '(' || list_aggregate(parameters, 'string_agg', ', ') || ')' AS parameters,
        coalesce(return_type, '') AS "returns", function_type AS kind,
        any_value(description) AS description
    FROM duckdb_functions()
    WHERE regexp_matches(function_name, '^\\w'){_matching("function_name", pattern)}
    GROUP BY ALL ORDER BY ALL"""


def definitions(name: str = "") -> str:
    """The SQL that creates tables and views."""
    return f"""SELECT sql FROM (
        SELECT *, table_name AS name FROM duckdb_tables()
        UNION ALL BY NAME SELECT *, view_name AS name FROM duckdb_views())
    WHERE {_VISIBLE} AND NOT internal{_matching("name", name)} ORDER BY schema_name, name"""


def columns(name: str) -> str:
    """The columns of a table or view; fails if there is none of the name."""
    return f"""SELECT column_name AS "column", column_type AS "type", "null", "default"
    FROM (DESCRIBE {qualified(*name_parts(name))})"""


def describe(name: str) -> str:
    """One row about a table or view: its kind, its size, and the SQL of a view."""
    *_, last = name_parts(name)
    return f"""SELECT kind, "rows", sql, comment FROM (
        SELECT *, table_name AS name, 'Table' AS kind, estimated_size AS "rows"
        FROM duckdb_tables()
        UNION ALL BY NAME SELECT *, view_name AS name, 'View' AS kind FROM duckdb_views())
    WHERE lower(name) = lower({literal(last)}){_qualifiers(name_parts(name)[:-1])}
    ORDER BY database_name = 'temp' DESC, schema_name = current_schema() DESC LIMIT 1"""


def has_wildcard(pattern: str) -> bool:
    """True if a name is a pattern."""
    return any(char in pattern for char in "*?%")


def name_parts(name: str) -> tuple[str, ...]:
    """The parts of a dotted name, without quotes."""
    kinds = (Kind.NAME, Kind.KEYWORD, Kind.QUOTED_NAME, Kind.NUMBER)
    parts = [unquoted(piece.text) for piece in pieces(name) if piece.kind in kinds]
    return tuple(parts) or (name,)


def _qualifiers(parts: Sequence[str]) -> str:
    match parts:
        case (catalog, schema):
            return f" AND database_name = {literal(catalog)} AND schema_name = {literal(schema)}"
        case (either,):
            return f" AND {literal(either)} IN (database_name, schema_name)"
    return f" AND {_VISIBLE}"


def _matching(column: str, pattern: str) -> str:
    """A condition for ``name``, ``schema.name``, ``*`` and ``?``."""
    if not pattern:
        return ""
    schema, dot, name = pattern.rpartition(".")
    condition = f" AND {column} ILIKE {_like(name)}"
    return f"{condition} AND schema_name ILIKE {_like(schema)}" if dot else condition


def _like(pattern: str) -> str:
    return literal(unquoted(pattern) if pattern.startswith('"') else _wildcards(pattern))


def _wildcards(pattern: str) -> str:
    return pattern.replace("*", "%").replace("?", "_")
