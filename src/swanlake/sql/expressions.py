"""What the expressions of a statement may depend on, by their syntax tree.

Each question has a list of what is known. The answer for anything else is the one that sends the
statement to the extension, or has its commit checked for conflicts.
"""

from __future__ import annotations

import re
from functools import lru_cache

import duckdb

from swanlake.sql.builtins import ROW_FUNCTIONS
from swanlake.sql.syntax_tree import SyntaxTree

_ROW_EXPRESSIONS = frozenset(
    "BETWEEN CASE CAST COLUMN_REF COMPARISON CONJUNCTION CONSTANT FUNCTION LAMBDA OPERATOR "
    "PARAMETER".split()
)
_QUERY_NODES = frozenset("BASE_TABLE EMPTY EXPRESSION_LIST ORDER_MODIFIER SELECT_NODE".split())
#: Table functions that read no table.
_SOURCES = frozenset(
    "generate_series glob parquet_scan range read_blob read_csv read_csv_auto read_json "
    "read_json_auto read_parquet read_text unnest".split()
)
_SCHEMA = re.compile(r"^(?:system\.)?main\.")


def reads_only(tree: SyntaxTree, table: str) -> bool:
    """True if the rows of a query can depend on no table but this one."""
    known = builtin_functions("scalar", "CONSISTENT") | ROW_FUNCTIONS
    return (
        all(node.parts == (table,) for node in tree.tables)
        and tree.nodes <= _QUERY_NODES
        and tree.expressions <= _ROW_EXPRESSIONS | {"DEFAULT", "STAR"}
        and _called(tree) <= known
    )


def adds_no_collation(tree: SyntaxTree) -> bool:
    """True if columns of a query have a collation only if those of its tables have one."""
    known = builtin_functions("scalar") | builtin_functions("aggregate") | _SOURCES
    return "COLLATE" not in tree.expressions and _called(tree) <= known


def _called(tree: SyntaxTree) -> set[str]:
    """The functions of a tree, without the schema that the parser adds."""
    return {_SCHEMA.sub("", name) for name in tree.functions}


@lru_cache(maxsize=8)
def builtin_functions(type_: str, stability: str = "%") -> frozenset[str]:
    """DuckDB's own functions of a type, except those that are macros as well."""
    with duckdb.connect() as connection:
        rows = connection.execute(
            "SELECT function_name FROM duckdb_functions() WHERE database_name = 'system' "
            "GROUP BY ALL HAVING bool_and(function_type = $1 AND stability LIKE $2)",
            [type_, stability],
        ).fetchall()
    return frozenset(name for (name,) in rows)


@lru_cache(maxsize=1)
def all_builtin_functions() -> frozenset[str]:
    """The names of all of DuckDB's own functions, in lower case."""
    with duckdb.connect() as connection:
        rows = connection.execute(
            "SELECT DISTINCT lower(function_name) FROM duckdb_functions() "
            "WHERE database_name = 'system'"
        ).fetchall()
    return frozenset(name for (name,) in rows)


@lru_cache(maxsize=1)
def builtin_views() -> frozenset[str]:
    """The names of DuckDB's own views that need no schema; SHOW reads some of them."""
    with duckdb.connect() as connection:
        rows = connection.execute(
            "SELECT view_name FROM duckdb_views() WHERE internal AND schema_name = 'main'"
        ).fetchall()
    return frozenset(name for (name,) in rows)
