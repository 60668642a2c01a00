"""How a session writes to the Duckling Queue and reads from it.

An INSERT into the queue is run against the shadow of its table, and RETURNING gives the rows as
they are to be kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import duckdb
from duckdb import StatementType

from swanlake.errors import Code, InvalidRequest, NotFound, QueryError
from swanlake.lake.lake import Lake
from swanlake.lake.types import ColumnSpec
from swanlake.queue.flush import ledger_entry
from swanlake.queue.holdings import Reader
from swanlake.queue.names import QUEUE, Ingest
from swanlake.queue.runtime import DucklingQueue
from swanlake.queue.targets import Target
from swanlake.queue.work import segments_as_query
from swanlake.sessions.direct import BOUND, DirectRows
from swanlake.sessions.recent import Recent
from swanlake.sessions.shadows import Name, Shadow, Shadows
from swanlake.sql.builtins import with_builtins
from swanlake.sql.insert import InsertHead, insert_head, unquoted
from swanlake.sql.quoting import qualified
from swanlake.sql.references import Reference, Replacement, references, replaced
from swanlake.sql.statement import Kind, Statement, parse
from swanlake.sql.tokens import Token

_MENTIONED = re.compile(QUEUE, re.IGNORECASE)
_PRAGMA = re.compile(rf"\s*PRAGMA\s+{QUEUE}\s*\.\s*(\w+)\s*(\(\s*\))?\s*;?\s*", re.IGNORECASE)
_NEW_TABLE = re.compile(rf"CREATE TABLE (IF NOT EXISTS )?{QUEUE}\..* AS FROM {BOUND} WITH NO DATA$")
_INTO = re.compile(r"\bINSERT\s+INTO\s*$", re.IGNORECASE)
_SHADOW = "__duckling_queue_shadow_"
_ROWS = "__duckling_queue_rows_"
_ROWS_NAME = re.compile(rf"{_ROWS}\d+")
_BATCH_ROWS = 100_000
#: The words before the name of what a statement changes.
_BEFORE_TARGET = (
    "update into table truncate analyze vacuum exists view schema use on only copy".split()
)
_CHANGES = (
    StatementType.UPDATE,
    StatementType.DELETE,
    StatementType.MERGE_INTO,
    StatementType.DROP,
    StatementType.ALTER,
    StatementType.CREATE,
    StatementType.COPY,
    StatementType.SET,
    StatementType.ANALYZE,
    StatementType.VACUUM,
)

#: The catalog of the lake and the schema in which the session is; None if it is elsewhere.
Where = Callable[[], tuple[str, str] | None]


def pragma_as_call(sql: str) -> str:
    """``PRAGMA duckling_queue.flush``, which DuckDB cannot parse, as the CALL it stands for."""
    found = _PRAGMA.fullmatch(sql)
    return f"CALL {QUEUE}_{found[1]}()" if found else sql


class SessionQueue:
    """One session's way to the queue."""

    def __init__(
        self,
        queue: DucklingQueue,
        lake: Lake,
        expose: Callable[[], None],
        attach: Callable[[str], object],
    ) -> None:
        self._queue = queue
        self._lake = lake
        #: Makes the rows that a client sent visible to DuckDB.
        self._expose = expose
        #: Makes a catalog of the lake known to DuckDB.
        self._attach = attach
        self._shadows = Shadows(
            _SHADOW, lambda table: f"{QUEUE}.{table[1]}.{table[2]}", keeps_rows=True
        )
        self._views: dict[str, Name] = {}
        self._reader: Reader | None = None
        self._translated: Recent[Statement] = Recent()

    def begin(self) -> None:
        """A transaction begins: what it sees of the lake may soon be old."""
        self._reader = self._queue.reader()

    def end(self, *, undone: bool) -> None:
        """The transaction is over; if it was undone, so are the shadows that were made in it."""
        if self._reader is not None:
            self._queue.leave(self._reader)
            self._reader = None
        if undone:
            self._shadows.forget()

    # ---- names ---------------------------------------------------------------------------------

    def translate(
        self, connection: duckdb.DuckDBPyConnection, statement: Statement, where: Where
    ) -> Statement:
        """The statement with the queue's tables replaced by what DuckDB knows."""
        if not _MENTIONED.search(statement.text):
            return statement
        if statement.type == StatementType.INSERT:
            head = insert_head(statement.text)
            if head is not None and _is_queue(head.target):
                return self._translate_insert(connection, statement, head, where)
        if _NEW_TABLE.match(statement.text):
            return self._translate_create(connection, statement, where)
        if statement.type == StatementType.PREPARE:
            raise _refused("PREPARE would keep the rows that the queue holds now")
        if statement.type == StatementType.EXPLAIN and self.is_insert(statement.text):
            raise _refused("An INSERT into the queue has no plan to explain")
        self._refuse_changes(statement)
        return self._translate_reads(connection, statement, where)

    def _translate_insert(
        self,
        connection: duckdb.DuckDBPyConnection,
        statement: Statement,
        head: InsertHead,
        where: Where,
    ) -> Statement:
        if head.alternative is not None:
            raise _refused(f"INSERT OR {head.alternative} cannot go through the queue")
        text = statement.text.encode()
        start, end = text[: head.target_start].decode(), text[head.target_end :].decode()
        name = self._named(head.target[1:], where)
        try:
            target = self._queue.targets.find(*name)
        except NotFound:
            if not self._queue.settings.auto_create_tables:
                raise
            if statement.parameters:
                raise NotFound(
                    f"The table {'.'.join(name)} does not exist, and cannot be made from this "
                    "INSERT: give its rows as VALUES of parameters alone, or create it first.",
                    identifier="TABLE_NOT_FOUND",
                ) from None
            source = _INTO.sub("", start) + text[head.body :].decode()
            self._create(connection, name, head, self._replace_reads(connection, source, where))
            target = self._queue.targets.find(*name)
        shadow = self._shadows.of(connection, name, target)
        sql = f"{start}temp.main.{shadow.name}{end}"
        if _MENTIONED.search(start) or _MENTIONED.search(end):
            sql = self._replace_reads(connection, sql, where)
        return self._translated.of(sql, partial(_parsed, connection))

    def forget_texts(self) -> None:
        """Texts may be read in another way now."""
        self._translated.forget()

    def _translate_create(
        self, connection: duckdb.DuckDBPyConnection, statement: Statement, where: Where
    ) -> Statement:
        """The table of a bulk ingestion is made where its rows go."""
        [reference] = references(statement.text, QUEUE)
        text = statement.text.encode()
        start, end = text[: reference.start], text[reference.end_of(len(reference.parts)) :]
        name = qualified(*self._named(reference.parts[1:], where))
        return _parsed(connection, f"{start.decode()}{name}{end.decode()}")

    def _translate_reads(
        self, connection: duckdb.DuckDBPyConnection, statement: Statement, where: Where
    ) -> Statement:
        text = self._replace_reads(connection, statement.text, where)
        return _parsed(connection, text) if text != statement.text else statement

    def _replace_reads(self, connection: duckdb.DuckDBPyConnection, text: str, where: Where) -> str:
        replacements = [
            self._replacement(reference, where) for reference in references(text, QUEUE)
        ]
        return replaced(text, replacements, lambda sql: _is_sql(connection, sql))

    def _replacement(self, reference: Reference, where: Where) -> Replacement:
        parts = reference.parts[1:]
        name = self._named(parts[:1], where)
        taken = 2
        if len(parts) > 1:  # a schema and a table, or a table and a column
            in_schema = self._named(parts[:2], where)
            if self._exists(in_schema) or not self._exists(name):
                name, taken = in_schema, 3
        self._queue.targets.find(*name)  # says that there is no such table
        view = next((view for view, known in self._views.items() if known == name), None)
        if view is None:
            view = f"{_ROWS}{len(self._views)}"
            self._views[view] = name
        return Replacement(reference, taken, f"temp.main.{view}", name[2])

    def _named(self, parts: tuple[str, ...], where: Where) -> Name:
        """Catalog, schema and table of a name in the queue."""
        if not 1 <= len(parts) <= 2:
            raise InvalidRequest(
                f"{QUEUE}.{'.'.join(parts)} is no table of the queue: write {QUEUE}.table or "
                f"{QUEUE}.schema.table."
            )
        catalog, schema = where() or (self._queue.settings.target_catalog, "main")
        return (catalog, parts[0], parts[1]) if len(parts) == 2 else (catalog, schema, parts[0])

    def _exists(self, name: Name) -> bool:
        try:
            self._queue.targets.find(*name)
        except NotFound:
            return False
        return True

    def _refuse_changes(self, statement: Statement) -> None:
        if statement.attaches and QUEUE in statement.names:
            raise _refused(f"No database can be called {QUEUE}, the name of the queue")
        if statement.type not in _CHANGES:
            return
        if statement.type == StatementType.CREATE and any(
            token.is_word("view", "macro", "function") for token in statement.tokens[:6]
        ):
            raise _refused("A view or macro cannot read the queue: it would outlive its rows")
        if statement.type == StatementType.COPY and not statement.may_write:
            return
        if any(map(_is_target, *_neighbours(statement.tokens))):
            raise _refused(
                f"{statement.tokens[0].text.upper()} cannot be done on {QUEUE}: it takes INSERT "
                "and SELECT, and its tables are those of the lake. Do it on the table itself"
            )

    # ---- writing -------------------------------------------------------------------------------

    def shadow_of(self, statement: Statement) -> Shadow | None:
        """The shadow that an INSERT is for; None for every other statement."""
        if statement.type != StatementType.INSERT or _SHADOW not in statement.text:
            return None
        head = insert_head(statement.text)
        return self._shadows.named(head.target[-1]) if head is not None else None

    def is_insert(self, text: str) -> bool:
        """True for an INSERT into the queue."""
        if not _MENTIONED.search(text):
            return False
        head = insert_head(text)
        return head is not None and _is_queue(head.target)

    def makes_tables(self) -> bool:
        """True if an INSERT may name a table that is made when its rows come."""
        return self._queue.settings.auto_create_tables

    def takes_directly(self, statement: Statement, bound: Any) -> bool:
        """True if the rows of a client can go into the queue as they are."""
        shadow = self.shadow_of(statement)
        return shadow is not None and (
            DirectRows.of(statement.text, bound, shadow.schema, shadow.target.layout) is not None
        )

    def refuse_in_transaction(self) -> None:
        """Raises unless the settings allow to enqueue while a transaction is open."""
        if self._queue.settings.in_transaction == "refuse":
            raise InvalidRequest(
                f"{QUEUE} is no part of a transaction: its rows are kept at once and cannot be "
                "rolled back. Turn autocommit on, or COMMIT first; or set "
                "duckling_queue_in_transaction to immediate.",
                identifier="QUEUE_IN_TRANSACTION",
            )

    def rows_of(
        self,
        connection: duckdb.DuckDBPyConnection,
        statement: Statement,
        parameters: Any,
        shadow: Shadow,
        bound: Any,
    ) -> tuple[Target, Iterator[Any]]:
        """The table of an INSERT as it is now, and the rows that it would put there."""
        target = self._queue.targets.find(*shadow.table)
        shadow = self._shadows.of(connection, shadow.table, target)
        direct = DirectRows.of(statement.text, bound, shadow.schema, target.layout)
        if direct is not None:
            return target, iter(direct)
        return target, self._rows_of_shadow(connection, statement, parameters, shadow)

    def _rows_of_shadow(
        self,
        connection: duckdb.DuckDBPyConnection,
        statement: Statement,
        parameters: Any,
        shadow: Shadow,
    ) -> Iterator[Any]:
        for batch in self._run_on_shadow(connection, statement, parameters, shadow):
            shadow.bytes_seen += batch.nbytes
            yield batch
        if shadow.is_full:
            connection.execute(f"TRUNCATE temp.main.{shadow.name}")
            shadow.bytes_seen = 0

    def _run_on_shadow(
        self,
        connection: duckdb.DuckDBPyConnection,
        statement: Statement,
        parameters: Any,
        shadow: Shadow,
    ) -> Any:
        if statement.kind is Kind.QUERY:
            raise _refused("RETURNING gives nothing on the queue")
        self._expose()
        try:
            connection.execute(_returning(connection, statement), parameters)
            return connection.to_arrow_reader(_BATCH_ROWS)
        except duckdb.Error as error:
            if isinstance(error, duckdb.BinderException) and statement.has_conflict_clause:
                raise _refused("ON CONFLICT cannot go through the queue") from None
            raise shadow.explained(error) from None

    def keep(
        self, target: Target, rows: Iterator[Any], ingest: Ingest | None, check: Callable[[], None]
    ) -> int:
        """Puts rows into the queue; their number, once they are on disk."""
        return self._queue.enqueue(target, rows, ingest, check)

    def _create(
        self,
        connection: duckdb.DuckDBPyConnection,
        name: Name,
        head: InsertHead,
        source: str,
    ) -> None:
        """Makes the table that an INSERT is for, from the columns that it brings."""
        self._expose()
        described = _parsed(connection, f"DESCRIBE {source}")
        with self.buffered_rows(connection, described, lambda: None, describe=True):
            found = connection.execute(described.parsed).fetchall()
        names = head.columns or [row[0] for row in found]
        if len(names) != len(found):
            raise InvalidRequest(
                f"The INSERT names {len(names)} columns and brings {len(found)}: the table "
                f"{'.'.join(name)} cannot be made from it."
            )
        self._queue.targets.create(
            *name,
            [ColumnSpec(column, row[1]) for column, row in zip(names, found, strict=True)],
        )

    # ---- reading -------------------------------------------------------------------------------

    def reads(self, statement: Statement) -> bool:
        """True if a statement reads rows that are in the queue."""
        return bool(self._views_in(statement))

    def _views_in(self, statement: Statement) -> list[str]:
        if _ROWS not in statement.text:
            return []
        return sorted(set(_ROWS_NAME.findall(statement.text)) & self._views.keys())

    @contextmanager
    def buffered_rows(
        self,
        connection: duckdb.DuckDBPyConnection,
        statement: Statement,
        check: Callable[[], None],
        *,
        describe: bool = False,
    ) -> Iterator[None]:
        """Makes the rows in the queue visible to a statement, in a transaction that is open.

        What the lake shows to the transaction is fixed after the queue was looked at. A segment
        that came into the lake by then is not shown; any other is: each row is there once.
        """
        views = self._views_in(statement)
        targets = {view: self._queue.targets.find(*self._views[view]) for view in views}
        # All of the queue first: the first look at the lake fixes what is seen of it.
        buffered = {
            view: [] if describe else self._queue.buffered(target.table, check, self._reader)
            for view, target in targets.items()
        }
        with ExitStack() as stack:
            for view, target in targets.items():
                segments = buffered[view]
                if segments:
                    segments = self._not_in_the_lake(connection, target, segments)
                query = stack.enter_context(
                    segments_as_query(connection, segments, target.layout, f"{view}_")
                )
                connection.execute(f"CREATE OR REPLACE TEMP VIEW {view} AS {query}")
                stack.callback(_drop_view, connection, view)
            yield

    def _not_in_the_lake(
        self, connection: duckdb.DuckDBPyConnection, target: Target, segments: list[Any]
    ) -> list[Any]:
        catalog = self._lake.catalog(target.table.catalog)
        self._attach(catalog.name)
        row = connection.execute(
            "FROM ducklake_current_snapshot(?)", [target.table.catalog]
        ).fetchone()
        assert row is not None
        known = catalog.ledger([ledger_entry(one.header.id) for one in segments])
        return [
            one for one in segments if known.get(ledger_entry(one.header.id), row[0] + 1) > row[0]
        ]


def _neighbours(tokens: list[Token]) -> tuple[list[Token | None], ...]:
    """Every token's second before it, the one before it, and itself."""
    padded = [None, None, *tokens]
    return padded[:-2], padded[1:-1], padded[2:]


def _is_target(second: Token | None, before: Token | None, token: Token | None) -> bool:
    """True for the name of the queue where a statement says what it changes."""
    if token is None or before is None or unquoted(token.text).lower() != QUEUE:
        return False
    if second is not None and second.is_word("as"):
        return False  # CREATE TABLE t AS TABLE …
    if before.is_word("from"):
        return second is not None and second.is_word("delete")
    return before.is_word(*_BEFORE_TARGET)


def _drop_view(connection: duckdb.DuckDBPyConnection, view: str) -> None:
    with suppress(duckdb.Error):  # in a transaction that was aborted, it goes with that
        connection.execute(f"DROP VIEW IF EXISTS temp.main.{view}")


def _is_queue(name: tuple[str, ...]) -> bool:
    return len(name) > 1 and name[0].lower() == QUEUE


def _parsed(connection: duckdb.DuckDBPyConnection, sql: str) -> Statement:
    [statement] = parse(connection, sql)
    return statement


def _returning(connection: duckdb.DuckDBPyConnection, statement: Statement) -> duckdb.Statement:
    """An INSERT that gives its rows."""
    text = statement.text.rstrip().removesuffix(";")
    try:
        [returning] = connection.extract_statements(f"{with_builtins(text)}\nRETURNING *")
    except duckdb.ParserException:  # a comment stands after the semicolon
        end = next(one.start for one in statement.tokens if one.depth == 0 and one.text == ";")
        text = statement.text.encode()[:end].decode()
        [returning] = connection.extract_statements(f"{text}\nRETURNING *")
    return returning


def _is_sql(connection: duckdb.DuckDBPyConnection, sql: str) -> bool:
    try:
        connection.extract_statements(sql)
    except duckdb.Error:
        return False
    return True


def _refused(why: str) -> QueryError:
    return QueryError(f"{why}.", identifier="QUEUE_REFUSED", code=Code.INVALID_ARGUMENT)
