"""Plain queries: they give the same rows on any connection that has the rows of their tables.

A query is plain if it has only nodes, types and functions that are listed here and that depend on
nothing but their arguments. Any other query is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import duckdb

from swanlake.sql.filters import TableFilters
from swanlake.sql.quoting import identifier, unquoted
from swanlake.sql.syntax_tree import SyntaxTree, TableNode, read_syntax_tree
from swanlake.sql.tokens import tokenize

_NODES = frozenset(
    "BASE_TABLE DISTINCT_MODIFIER EMPTY JOIN LIMIT_MODIFIER ORDER_DEFAULT ORDER_MODIFIER ASCENDING "
    "DESCENDING NULLS_FIRST NULLS_LAST SELECT_NODE SET_OPERATION_NODE SUBQUERY".split()
)
#: Not SUBQUERY: DuckDB names a column by the text of a query inside an expression.
_EXPRESSIONS = frozenset(
    "BETWEEN CASE CAST COLUMNS COLUMN_REF COMPARISON CONJUNCTION CONSTANT FUNCTION OPERATOR "
    "PARAMETER STAR WINDOW".split()
)
#: A SELECT takes these, and an UPDATE does not.
_NOT_ROW_WISE = frozenset({"COLUMNS", "STAR", "WINDOW"})
#: Functions that depend on nothing but their arguments, not even on the session or its settings.
#: Not ``first`` and ``last``: of several files, DuckDB takes the row of any of them.
_FUNCTIONS = frozenset(
    "% & * ** + - / // << >> ^ | || !~~ !~~* ~~ ~~* abs any_value avg bool_and bool_or ceil "
    "ceiling concat contains count count_if count_star countif dense_rank ends_with first_value "
    "floor greatest if lag last_value lcase lead least left len length lower "
    "ltrim main.list_value max md5 median min mod nullif pow power product rank replace reverse "
    "right round row_number rtrim sign sqrt starts_with stddev strlen substr sum to_days to_hours "
    "to_minutes to_months to_seconds to_weeks to_years trunc ucase upper variance".split()
)
#: Columns that DuckLake adds to a table; rows that stand in for the table do not have them.
VIRTUAL_COLUMNS = frozenset({"rowid", "filename", "file_row_number", "file_index", "snapshot_id"})


@dataclass(frozen=True)
class PlainQuery:
    """A query that gives the same rows wherever the rows of its tables are."""

    text: str
    #: In the order in which they are named.
    tables: tuple[TableNode, ...]
    #: Where the name of each table ends.
    name_ends: tuple[int, ...]
    #: Names that stand for columns and tables, in lower case.
    names: frozenset[str]
    aliases: frozenset[str]
    #: False if a value may depend on other rows, or stand for several columns.
    is_row_wise: bool
    #: True if it calls functions, operators included, which macros of a catalog can hide.
    calls_functions: bool
    #: Conditions on the columns of its tables.
    filters: tuple[TableFilters, ...] = ()

    def names_only(self, columns: Iterable[str]) -> bool:
        """True if each name is one of these columns, a table of the query, or an alias.

        DuckDB takes other names for virtual columns, or for functions such as ``current_date``.
        """
        tables = {table.parts[-1].lower() for table in self.tables}
        return self.names <= self.aliases | tables | {column.lower() for column in columns}

    def replace_tables(self, queries: Sequence[str]) -> str:
        """The text with a query in place of each table."""
        content = self.text.encode()
        reads = list(zip(self.tables, self.name_ends, queries, strict=True))
        for table, end, query in reversed(reads):
            alias = "" if table.has_alias else f" AS {identifier(table.parts[-1])}"
            content = content[: table.start] + f"({query}){alias}".encode() + content[end:]
        return content.decode()


def plain_query(connection: duckdb.DuckDBPyConnection, text: str) -> PlainQuery | None:
    """What a query reads, if anything; None if it is not plain."""
    tree = read_syntax_tree(connection, text)
    if tree is None or not _is_plain(tree):
        return None
    located = (_name_end(text.encode(), table) for table in tree.tables)
    ends = tuple(end for end in located if end is not None)
    if len(ends) < len(tree.tables) or any(len(names) > 2 for names in tree.columns):
        return None
    names = frozenset(chain.from_iterable(tree.columns))
    is_row_wise = not tree.expressions & _NOT_ROW_WISE
    calls = bool(tree.functions)
    return PlainQuery(
        text, tree.tables, ends, names, tree.aliases, is_row_wise, calls, tree.filters
    )


def _is_plain(tree: SyntaxTree) -> bool:
    return (
        tree.nodes <= _NODES
        and tree.expressions <= _EXPRESSIONS
        and tree.functions <= _FUNCTIONS
        and "UNBOUND" not in tree.types
        and not tree.aliases & VIRTUAL_COLUMNS
    )


def _name_end(text: bytes, table: TableNode) -> int | None:
    """Where the name of a table ends; None if a query cannot take its place."""
    if text[: table.start].rstrip().lower().endswith(b"table"):
        return None  # ``TABLE t`` takes no query in place of the name
    tokens = tokenize(text[table.start :].decode())[: 2 * len(table.parts) - 1]
    if tuple(unquoted(token.text) for token in tokens[::2]) != table.parts:
        return None
    last = tokens[-1].text
    # The lexer leaves a comment behind a name.
    written = identifier(unquoted(last)) if last.startswith('"') else unquoted(last)
    return table.start + tokens[-1].start + len(written.encode())
