"""What the expressions of a session's statements may depend on, with the session's names."""

from __future__ import annotations

from swanlake._internal.lru_cache import LruCache
from swanlake.errors import NotFound
from swanlake.lake.model.layout import DefaultKind, Table
from swanlake.sessions.execution.client_rows import CLIENT_ROWS
from swanlake.sessions.execution.engine_session import EngineSession
from swanlake.sql.builtins import with_builtins
from swanlake.sql.expressions import adds_no_collation, reads_only
from swanlake.sql.reads import PlainQuery, plain_query
from swanlake.sql.syntax_tree import MAX_LENGTH, SyntaxTree, read_syntax_tree

#: Queries of CREATE TABLE AS are long, and have few literals.
_MAX_QUERY_LENGTH = 64 * 1024


class StatementAnalysis:
    """Answers questions about expressions; whatever is unknown gets the answer of the worst case.

    A question about names is answered for the session as it is now.
    """

    def __init__(self, session: EngineSession) -> None:
        self._session = session
        self._table_cache = session.services.queue.table_cache
        self._trees: LruCache[SyntaxTree | None] = LruCache()
        self._plain_queries: LruCache[PlainQuery | None] = LruCache()

    def plain_query(self, text: str) -> PlainQuery | None:
        """What a plain query reads; None if the query is not plain."""
        return self._plain_queries.get_or_compute(text, self._parse_plain_query)

    def reads_no_table(self, query: str, table: Table) -> bool:
        """True if the rows of an INSERT into the table depend on nothing that the lake holds."""
        tree = self._tree(query)
        if tree is None or not reads_only(tree, CLIENT_ROWS):
            return False
        return self._calls_only_builtins(tree) and self.has_builtin_defaults(table)

    def has_no_collation(self, query: str) -> bool:
        """True if no column of a query has a collation; the tables of the lake have none."""
        tree = self._tree(query, _MAX_QUERY_LENGTH)
        if tree is None or not adds_no_collation(tree) or not self._calls_only_builtins(tree):
            return False
        return all(
            node.parts == (CLIENT_ROWS,)
            or (len(node.parts) == 1 and node.parts[0].lower() in tree.ctes)
            or self._is_lake_table(node.parts)
            for node in tree.tables
        )

    def has_builtin_defaults(self, table: Table) -> bool:
        """True if the defaults of a table call no macro."""
        return not computes_defaults(table) or not self.macros_may_hide_functions()

    def macros_may_hide_functions(self) -> bool:
        """True if the name of a function of DuckDB may mean a macro; raises NotFound."""
        catalog = self._session.names.macro_catalog()
        return catalog is None or self._table_cache.has_macros(catalog)

    def qualify_builtins(self, sql: str) -> str:
        """The text with common functions in their full names, which DuckDB finds at once."""
        qualified = with_builtins(sql)
        return sql if qualified != sql and self.macros_may_hide_functions() else qualified

    def _tree(self, query: str, max_length: int = MAX_LENGTH) -> SyntaxTree | None:
        def parse(query: str) -> SyntaxTree | None:
            with self._session.engine.scratch_connection() as connection:
                return read_syntax_tree(connection, query, max_length)

        return self._trees.get_or_compute(query, parse)

    def _parse_plain_query(self, text: str) -> PlainQuery | None:
        with self._session.engine.scratch_connection() as connection:
            return plain_query(connection, text)

    def _calls_only_builtins(self, tree: SyntaxTree) -> bool:
        return not tree.functions or not self.macros_may_hide_functions()

    def _is_lake_table(self, parts: tuple[str, ...]) -> bool:
        name = self._session.names.resolve_table(parts)
        try:
            return name is not None and self._table_cache.find(*name) is not None
        except NotFound:
            return False


def computes_defaults(table: Table) -> bool:
    """True if a default of a table may depend on the session or its catalog."""
    defaults = (column.default for column in table.columns)
    return any(
        default is not None and default.kind is DefaultKind.EXPRESSION for default in defaults
    )
