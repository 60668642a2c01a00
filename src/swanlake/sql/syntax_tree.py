"""What a query reads and calls, by DuckDB's own syntax tree.

``json_serialize_sql`` gives the tree of a SELECT, of ``VALUES …`` and of ``FROM …``. A caller lists
the kinds of nodes that it understands and treats a query with any other kind as unknown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import duckdb

from swanlake.sql.filters import TableFilters, find_filters

#: The tree of a longer text costs more than it brings: each literal is a hundred bytes of JSON.
MAX_LENGTH = 4096
#: Fields that are empty in a plain query, and the kind of node that they stand for.
_CLAUSES = {"sample": "SAMPLE", "at_clause": "AT", "qualified_exclude_list": "EXCLUDE"}


@dataclass(frozen=True)
class TableNode:
    """A table that a query names: its parts without quotes, and its first UTF-8 byte."""

    parts: tuple[str, ...]
    start: int
    has_alias: bool


@dataclass(frozen=True)
class SyntaxTree:
    """The names and the kinds of nodes in a query, at any depth."""

    #: Kinds of query nodes, table references and modifiers: ``SELECT_NODE``, ``BASE_TABLE``, ….
    nodes: frozenset[str]
    #: Classes of expressions: ``COLUMN_REF``, ``FUNCTION``, ``SUBQUERY``, ….  ``COLUMNS`` is also
    #: the ``ALL`` of ORDER BY.
    expressions: frozenset[str]
    #: Types that are named in casts; ``UNBOUND`` if only the catalog knows the type.
    types: frozenset[str]
    #: Functions, operators included, as the parser qualifies them: ``main.list_value``.
    functions: frozenset[str]
    #: Columns as they are named, in lower case and without quotes.
    columns: frozenset[tuple[str, ...]]
    #: Other names of tables and columns, in lower case.
    aliases: frozenset[str]
    #: Names of common table expressions, in lower case.
    ctes: frozenset[str]
    #: In the order of the text.
    tables: tuple[TableNode, ...]
    #: Conditions on the columns of tables.
    filters: tuple[TableFilters, ...] = ()


def read_syntax_tree(
    connection: duckdb.DuckDBPyConnection, query: str, max_length: int = MAX_LENGTH
) -> SyntaxTree | None:
    """The tree of a query; None if it is long, or no single query."""
    if len(query) > max_length:
        return None
    [(text,)] = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchall()
    serialized = json.loads(text)
    if serialized["error"] or len(serialized["statements"]) != 1:
        return None
    return _summarize(list(walk(serialized["statements"][0]["node"])))


def walk(value: Any) -> Iterator[dict[str, Any]]:
    """All objects of a serialized tree."""
    if isinstance(value, dict):
        yield value
        for child in value.values():
            yield from walk(child)
    elif isinstance(value, list):
        for child in value:
            yield from walk(child)


def _summarize(objects: list[dict[str, Any]]) -> SyntaxTree:
    nodes, types, expressions = set[str](), set[str](), set[str]()
    functions, aliases, ctes = set[str](), set[str](), set[str]()
    columns: set[tuple[str, ...]] = set()
    tables: list[TableNode] = []
    for item in objects:
        if item.get("alias"):
            aliases.add(item["alias"].lower())
        aliases.update(name.lower() for name in item.get("column_name_alias", ()))
        if "id" in item and "type_info" in item:
            types.add(item["id"])
        nodes.update(kind for field, kind in _CLAUSES.items() if item.get(field))
        for entry in item.get("map", ()):
            nodes.add("CTE")
            ctes.add(entry["key"].lower())
        if "class" in item:
            expressions.add("COLUMNS" if item.get("columns") is True else item["class"])
        elif isinstance(item.get("type"), str) and not item["type"].endswith("_TYPE_INFO"):
            nodes.add(item["type"])
        if "function_name" in item:
            names = (item.get(field) for field in ("catalog", "schema", "function_name"))
            functions.add(".".join(name for name in names if name).lower())
        if "column_names" in item:
            columns.add(tuple(name.lower() for name in item["column_names"]))
        if item.get("type") == "BASE_TABLE":
            fields = ("catalog_name", "schema_name", "table_name")
            parts = tuple(item[field] for field in fields if item[field])
            tables.append(TableNode(parts, item["query_location"], bool(item["alias"])))
    return SyntaxTree(
        frozenset(nodes),
        frozenset(expressions),
        frozenset(types),
        frozenset(functions),
        frozenset(columns),
        frozenset(aliases),
        frozenset(ctes),
        tuple(sorted(tables, key=lambda table: table.start)),
        find_filters(iter(objects)),
    )
