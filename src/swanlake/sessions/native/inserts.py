"""Writes to the lake that need no extension: files first, outside of any lock, then one commit.

An INSERT, a CREATE TABLE AS or a COPY FROM of its own, outside of a transaction, only adds rows.
Whoever writes their files himself holds the catalog's lock for a millisecond, however many rows
there are, and no writer of the lake can make him fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa
from duckdb import StatementType

from swanlake.engine.errors import is_interrupt, may_invalidate
from swanlake.errors import AlreadyExists, CommitConflict, NotFound, SwanLakeError, Unsupported
from swanlake.lake import datafile, inlining
from swanlake.lake.inlined_tables import can_inline
from swanlake.lake.lake import Catalog, Lake, new_table
from swanlake.lake.layout import DataFile, DefaultKind, DeleteFile, Table, folded
from swanlake.lake.operations import Commit, CreateTable, DropTable, Insert, Operation
from swanlake.lake.partitioning import partitions
from swanlake.lake.types import ColumnSpec, UnsupportedType
from swanlake.queue.targets import Target, Targets
from swanlake.sessions import lake_changes
from swanlake.sessions.arriving import ArrivingRows
from swanlake.sessions.counts import Counts
from swanlake.sessions.direct import BOUND
from swanlake.sessions.insert_rows import literal_table, placed
from swanlake.sessions.lake_changes import LakeChange, LeftToTheExtension
from swanlake.sessions.lake_reads import LakeReads
from swanlake.sessions.recent import Recent
from swanlake.sessions.results import Outcome
from swanlake.sessions.runs import Run
from swanlake.sessions.shadows import Name, Shadow, Shadows, default_of
from swanlake.sql.builtins import with_builtins
from swanlake.sql.changes import ChangeHead, change_head
from swanlake.sql.heads import CopyHead, CreateHead, copy_head, create_head
from swanlake.sql.insert import InsertHead, insert_head, unquoted
from swanlake.sql.quoting import identifier
from swanlake.sql.reads import is_alone
from swanlake.sql.statement import Kind, Statement, parse
from swanlake.sql.tokens import tokenize

#: How often a statement is begun anew because its table was changed meanwhile.
_ATTEMPTS = 3
_BATCH_ROWS = 100_000
_NOT_NULL = "NOT NULL constraint failed: "
_READS = re.compile(r"\b(select|from)\b", re.IGNORECASE)
_FROM = re.compile(r"\bfrom\b", re.IGNORECASE)
_FROM_BOUND = re.compile(rf"\bfrom\s+{BOUND}\s*;?\s*$", re.IGNORECASE)
_GIVEN = re.compile(r"\s*(VALUES\b|DEFAULT\s+VALUES\b)", re.IGNORECASE)
_ROWS = "__swanlake_inserted"
_COLUMNS = "__swanlake_columns"
_EXCERPT = "\n\nLINE "
_SOURCE = " when casting from source column "
#: What DuckDB says before it does anything.
_REFUSED = (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException)


Head = InsertHead | CreateHead | CopyHead | ChangeHead


@dataclass(frozen=True)
class LakeWrite:
    """A statement that changes rows of one table of the lake, or makes it."""

    statement: Statement
    table: Name
    head: Head


@dataclass(frozen=True)
class Workplace:
    """What a session lends to a write: its connection, and what it knows of the statement."""

    run: Run
    connection: duckdb.DuckDBPyConnection
    parameters: Any
    #: Rows of a client can be read once only.
    has_bound_rows: bool
    #: Makes the rows that a client sent visible to DuckDB.
    expose: Callable[[], None]
    #: Attaches the catalogs that the statement names; True if there was one to attach.
    attach: Callable[[], bool]
    #: The rows that the last statement gave, all of them taken off the connection.
    collect: Callable[[], Outcome]
    #: A connection for rows in memory: on the session's own, every name is looked for in the lake.
    beside: Callable[[], AbstractContextManager[duckdb.DuckDBPyConnection]]
    #: Waits until the session's own connection need not read all of a catalog.
    catch_up: Callable[[], None]
    #: Rows that are few and in the metadata.
    reads: LakeReads

    @contextmanager
    def elsewhere(self, parameters: Any) -> Iterator[Workplace]:
        """The same beside the lake, where a statement has all it needs."""
        with self.beside() as beside, self.run.engaged(beside):
            yield replace(
                self,
                connection=beside,
                parameters=parameters,
                attach=lambda: False,
                catch_up=lambda: None,
            )


@dataclass(frozen=True)
class _Made:
    """Files that wait for their commit."""

    catalog: Catalog
    operations: tuple[Operation, ...]
    base: int | None
    #: What was known of the table before; None if there was none.
    table: Table | None
    files: Sequence[DataFile | DeleteFile]
    outcome: Outcome

    def remove(self) -> None:
        if self.table is not None:
            datafile.remove_files(self.table, self.files)


class LakeWrites:
    """One session's way into the lake without the extension."""

    def __init__(self, lake: Lake, targets: Targets, counts: Counts) -> None:
        self._lake = lake
        self._targets = targets
        self._counts = counts
        self._shadows = Shadows("__swanlake_shadow_", lambda table: table[2], keeps_rows=False)
        self._parsed: Recent[duckdb.Statement] = Recent()
        #: Texts of columns mean the same on every connection beside the lake.
        self._columns: Recent[list[ColumnSpec]] = Recent()

    def forget(self) -> None:
        """The connection may have lost its temporary tables."""
        self._shadows.forget()

    def forget_texts(self) -> None:
        """Texts may be read in another way now."""
        self._parsed.forget()

    def find(
        self, statement: Statement, named: Callable[[tuple[str, ...]], Name | None]
    ) -> LakeWrite | None:
        """The write that a statement is; None for all others.

        ``named`` says which table of the lake a name means, if it can mean no other.
        """
        head = _head(statement)
        table = None if head is None else named(head.target)
        return None if head is None or table is None else LakeWrite(statement, table, head)

    def is_done(self, write: LakeWrite) -> bool:
        """True if a table that it makes unless it exists does."""
        head = write.head
        if not (isinstance(head, CreateHead) and head.if_not_exists):
            return False
        return self._there(write.table) is not None

    def run(self, write: LakeWrite, place: Workplace) -> Outcome | None:
        """Does it; None if it is left to the extension, and nothing was done."""
        attempt = 1
        while True:
            try:
                with place.run.engaged(place.connection):
                    made = self._make(write, place)
                self._commit(made, write, place)
            except LeftToTheExtension:
                self._targets.forget_one(*write.table)
                self._counts.count("extension")
                return None
            except (CommitConflict, AlreadyExists, NotFound) as conflict:
                # Its table was altered, dropped or made; of what it is now, it knows nothing yet.
                self._targets.forget()
                is_last = attempt == _ATTEMPTS
                if place.has_bound_rows or (is_last and write.statement.kind is Kind.QUERY):
                    raise
                if is_last or isinstance(conflict, AlreadyExists):
                    self._counts.count("extension")  # which does it while nobody else writes
                    return None
                attempt += 1
                self._counts.count("repeated")
                continue
            self._counts.count("native")
            return made.outcome

    def _commit(self, made: _Made, write: LakeWrite, place: Workplace) -> None:
        try:
            place.run.check()
            if made.operations:
                change = Commit(made.operations, base=made.base, by_name=True)
                done = made.catalog.commit(change, place.run.session.id, place.run.check)
                if made.table is not None:
                    self._targets.confirm(*write.table, made.table, done.snapshot_id)
        except SwanLakeError as error:
            if not error.in_doubt:
                made.remove()
            raise
        if isinstance(write.head, CreateHead):
            self._targets.forget_one(*write.table)

    def _make(self, write: LakeWrite, place: Workplace) -> _Made:
        try:
            if isinstance(write.head, CreateHead):
                return self._make_table(write, write.head, place)
            target = self._targets.find(*write.table, checked=True)
            if isinstance(write.head, ChangeHead):
                return self._made(target, self._change(write, write.head, place, target))
            if isinstance(write.head, InsertHead) and _brings_query(write, write.head):
                return self._insert_query(write, write.head, place, target)
            rows = None if place.parameters else _literals(write, target.layout)
            if rows is not None:
                return self._made(target, self._added(place, rows, target.layout, blind=True))
            return self._insert_by_shadow(write, write.head, place, target)
        except (NotFound, Unsupported, UnsupportedType):
            raise LeftToTheExtension from None
        except duckdb.Error as error:
            # DuckDB has lost what is wrong with the statement, and the extension will find it out.
            may_say = not place.has_bound_rows and write.statement.kind is not Kind.QUERY
            if is_interrupt(error) and may_say and not place.run.is_stopped:
                raise LeftToTheExtension from None
            raise

    # ---- UPDATE and DELETE -----------------------------------------------------------------------

    def _change(
        self, write: LakeWrite, head: ChangeHead, place: Workplace, target: Target
    ) -> LakeChange:
        catalog, table = self._opened(target), target.layout
        kept = place.reads.rows(write.table) if is_alone(write.statement.tokens) else None
        if kept is not None and kept.table == table:
            # If it is refused, what is wrong is said of the statement as it is.
            with suppress(LeftToTheExtension), place.elsewhere(place.parameters) as elsewhere:
                return lake_changes.prepare(head, write.table, elsewhere, catalog, table, kept)
        place.catch_up()
        return lake_changes.prepare(head, write.table, place, catalog, table)

    # ---- INSERT of a query -----------------------------------------------------------------------

    def _insert_query(
        self, write: LakeWrite, head: InsertHead, place: Workplace, target: Target
    ) -> _Made:
        body = _query(write.statement, head)
        kept = None
        if not place.has_bound_rows and not _computes_defaults(target.layout):
            kept = place.reads.query(body, place.parameters)
        if kept is not None:
            try:
                with place.elsewhere(kept.parameters) as elsewhere:
                    return self._insert_rows_of(kept.sql, head, elsewhere, target)
            except LeftToTheExtension:
                pass
            except duckdb.Error as error:
                if place.run.is_stopped or may_invalidate(error):
                    raise
                # What DuckDB says of it is said again, of the query as it is.
        return self._insert_rows_of(body, head, place, target)

    def _insert_rows_of(
        self, body: str, head: InsertHead, place: Workplace, target: Target
    ) -> _Made:
        place.expose()
        columns = [name for name, *_ in self._described(place, body)]
        places = placed(target.layout, head, columns)
        if places is None:
            raise LeftToTheExtension
        values = (
            default_of(column) if number is None else f"c{number}"
            for number, column in zip(places, target.layout.columns, strict=True)
        )
        names = ", ".join(f"c{number}" for number in range(len(columns)))
        query = f"SELECT {', '.join(values)} FROM ({body}\n) AS given({names})"
        is_blind = len(_FROM.findall(body)) == 1 and _FROM_BOUND.search(body) is not None
        return self._made(target, self._added_by(place, query, target.layout, blind=is_blind))

    def _described(self, place: Workplace, query: str) -> list[tuple[str, ...]]:
        """Names and types of a query's columns."""
        place.catch_up()
        sql = f"DESCRIBE {query}"
        try:
            return place.connection.execute(sql, place.parameters).fetchall()
        except _REFUSED:
            if not place.attach():
                raise LeftToTheExtension from None
        try:
            return place.connection.execute(sql, place.parameters).fetchall()
        except _REFUSED:
            raise LeftToTheExtension from None

    # ---- INSERT of values, RETURNING, COPY -------------------------------------------------------

    def _insert_by_shadow(
        self, write: LakeWrite, head: InsertHead | CopyHead, place: Workplace, target: Target
    ) -> _Made:
        connection, statement = place.connection, write.statement
        shadow = self._shadows.of(connection, write.table, target)
        keeps_rows = statement.kind is Kind.QUERY or isinstance(head, CopyHead)
        place.expose()
        try:
            if not keeps_rows:
                rows = self._given_rows(place, statement, head, shadow)
                is_blind = _reads_nothing(statement)
                return self._made(target, self._added(place, rows, target.layout, blind=is_blind))
            connection.execute(f"TRUNCATE temp.main.{shadow.name}")
            tried = self._on_shadow(connection, statement, head, shadow)
            connection.execute(tried, place.parameters)
            outcome = place.collect()
        except duckdb.Error as error:
            if isinstance(error, _REFUSED) and statement.kind is not Kind.QUERY:
                raise LeftToTheExtension from None
            raise shadow.explained(error) from None
        files = self._write(place, f"FROM temp.main.{shadow.name}", target.layout)
        with suppress(duckdb.Error):  # whoever stopped it is heard before the commit
            connection.execute(f"TRUNCATE temp.main.{shadow.name}")
        added = _in_files(target.layout, files, blind=_reads_nothing(statement))
        return self._made(target, added, outcome)

    def _given_rows(
        self, place: Workplace, statement: Statement, head: InsertHead | CopyHead, shadow: Shadow
    ) -> pa.Table:
        connection = place.connection
        parsed = self._on_shadow(connection, statement, head, shadow, "\nRETURNING *")
        connection.execute(parsed, place.parameters)
        rows = connection.to_arrow_reader(_BATCH_ROWS).read_all()
        shadow.bytes_seen += rows.nbytes
        if shadow.is_full:
            connection.execute(f"TRUNCATE temp.main.{shadow.name}")
            shadow.bytes_seen = 0
        return rows

    def _on_shadow(
        self,
        connection: duckdb.DuckDBPyConnection,
        statement: Statement,
        head: InsertHead | CopyHead,
        shadow: Shadow,
        more: str = "",
    ) -> duckdb.Statement:
        """The statement with the shadow in place of its table."""
        text = statement.body.encode()
        start, end = text[: head.target_start].decode(), text[head.target_end :].decode()
        if isinstance(head, InsertHead) and not more:
            end = _renamed_returning(end, head.target[-1], shadow.name)
        sql = with_builtins(f"{start}temp.main.{shadow.name}{end}") + more
        return self._parsed.of(sql, partial(_parsed, connection))

    # ---- CREATE TABLE AS -------------------------------------------------------------------------

    def _make_table(self, write: LakeWrite, head: CreateHead, place: Workplace) -> _Made:
        catalog = self._targets.catalog(write.table[0])
        if head.columns is not None and not (head.or_replace or head.if_not_exists):
            # Nothing is written before the commit, which finds out what is there already.
            made = new_table(write.table[1], write.table[2], self._new_columns(head, place))
            return _Made(catalog, (made,), None, None, (), Outcome())
        there = self._there(write.table)
        if there is not None and head.if_not_exists:
            return _Made(catalog, (), None, None, (), Outcome())
        # DuckLake refuses collations, which DuckDB does not describe.
        if (there is not None and not head.or_replace) or "collate" in (head.query or "").lower():
            raise LeftToTheExtension
        operation = new_table(write.table[1], write.table[2], self._new_columns(head, place))
        table = catalog.new_table(operation)
        added = LakeChange((), (), 0)
        if head.query is not None and head.with_data:
            added = self._added_by(place, head.query, table, new=operation)
        replaced = () if there is None else (DropTable(there.layout.schema, there.layout.name),)
        return _Made(
            catalog,
            (*replaced, operation, *added.operations),
            table.snapshot_id,
            table,
            added.files,
            Outcome(affected=added.count if head.with_data else None),
        )

    def _new_columns(self, head: CreateHead, place: Workplace) -> list[ColumnSpec]:
        if head.query is not None:
            place.expose()
            return _column_specs(self._described(place, head.query), may_forbid_null=False)
        assert head.columns is not None
        return self._columns.of(head.columns, partial(_declared_columns, place))

    def _there(self, table: Name) -> Target | None:
        try:
            return self._targets.find(*table)
        except NotFound:
            return None

    # ---- rows ------------------------------------------------------------------------------------

    def _added_by(
        self,
        place: Workplace,
        query: str,
        table: Table,
        *,
        new: CreateTable | None = None,
        blind: bool = False,
    ) -> LakeChange:
        """The rows of a query, which may turn out to be few."""
        if _small(table) < 1 or not can_inline(new or table):
            files = self._write(place, query, table, place.parameters or ())
            return _in_files(new or table, files, blind=blind)
        partitions(table)  # refuses a table that cannot be written, before a row is read
        try:
            place.connection.execute(datafile.rows_of(query, table), place.parameters)
            with ArrivingRows(place.connection) as arriving:
                few = arriving.up_to(_small(table))
                rows = arriving.reader() if few is None else few
                return self._added(place, rows, table, new=new, blind=blind)
        except duckdb.Error as error:
            raise _explained(error, table) from None

    def _added(
        self,
        place: Workplace,
        rows: pa.Table | pa.RecordBatchReader,
        table: Table,
        *,
        new: CreateTable | None = None,
        blind: bool = False,
    ) -> LakeChange:
        """Rows in memory or on their way: so few as the table's option says go to the metadata."""
        if isinstance(rows, pa.Table) and rows.num_rows <= _small(table):
            small = inlining.inlined(new or table, rows, blind=blind)
            if small is not None:
                return LakeChange((small,) if rows.num_rows else (), (), rows.num_rows)
        with place.beside() as beside:
            beside.register(_ROWS, rows)
            files = datafile.write_files(beside, f"FROM {_ROWS}", table)
            beside.unregister(_ROWS)
        return _in_files(new or table, files, blind=blind)

    def _write(
        self, place: Workplace, query: str, table: Table, parameters: Any = ()
    ) -> list[DataFile]:
        try:
            return datafile.write_files(place.connection, query, table, parameters=parameters)
        except duckdb.Error as error:
            raise _explained(error, table) from None

    def _made(self, target: Target, added: LakeChange, outcome: Outcome | None = None) -> _Made:
        catalog, layout = self._opened(target), target.layout
        outcome = outcome or Outcome(affected=added.count)
        return _Made(catalog, added.operations, layout.snapshot_id, layout, added.files, outcome)

    def _opened(self, target: Target) -> Catalog:
        catalog = self._lake.opened(target.table.catalog_id)
        assert catalog is not None  # the target was found in it
        return catalog


def _head(statement: Statement) -> Head | None:
    if statement.type != StatementType.INSERT:
        return create_head(statement) or copy_head(statement) or change_head(statement)
    head = insert_head(statement.text)
    if head is None or head.alternative is not None:
        return None
    if "conflict" in statement.text.lower() and statement.has_conflict_clause:
        return None
    return head


def _brings_query(write: LakeWrite, head: InsertHead) -> bool:
    """True for an INSERT of what a query gives, which need not be kept anywhere before."""
    if write.statement.kind is Kind.QUERY:
        return False
    return _GIVEN.match(write.statement.text.encode()[head.body :].decode()) is None


def _literals(write: LakeWrite, table: Table) -> pa.Table | None:
    """The rows of an INSERT, if they are nothing but literals and nobody wants to see them."""
    head, text = write.head, write.statement.body.encode()
    if not isinstance(head, InsertHead) or write.statement.kind is Kind.QUERY:
        return None
    is_first = not text[: head.start].strip()
    return literal_table(text[head.body :].decode(), head, table) if is_first else None


def _query(statement: Statement, head: InsertHead) -> str:
    """The query of an INSERT, with what stands before the INSERT."""
    text = statement.body.encode()
    before, body = text[: head.start].decode(), text[head.body :].decode()
    return f"{before}FROM ({body}\n)" if before.strip() else body


def _explained(error: duckdb.Error, table: Table) -> duckdb.Error:
    """What DuckDB says of writing the files, as it would say it of the INSERT."""
    message = str(error).partition(_EXCERPT)[0]
    _, is_null, column = message.partition(_NOT_NULL)
    if is_null and isinstance(error, duckdb.InvalidInputException):
        name = column.removeprefix(f"{table.schema}.")
        return duckdb.ConstraintException(f"Constraint Error: {_NOT_NULL}{name}")
    said, _, source = message.partition(_SOURCE)
    is_cast_of_ours = any(folded(column.name) == folded(source) for column in table.columns)
    return type(error)(said if is_cast_of_ours else message)


def _reads_nothing(statement: Statement) -> bool:
    """True if the rows certainly do not depend on what the lake holds."""
    if statement.type == StatementType.COPY:
        return True
    return _READS.search(statement.text) is None


def _computes_defaults(table: Table) -> bool:
    """True if a default may depend on the session, or on what else is in its catalog."""
    defaults = (column.default for column in table.columns)
    return any(one is not None and one.kind is DefaultKind.EXPRESSION for one in defaults)


def _parsed(connection: duckdb.DuckDBPyConnection, sql: str) -> duckdb.Statement:
    [statement] = parse(connection, sql)
    return statement.parsed


def _declared_columns(place: Workplace, columns: str) -> list[ColumnSpec]:
    """The columns of a CREATE TABLE that lists them."""
    with place.beside() as beside:
        try:
            beside.execute(f"CREATE OR REPLACE TEMP TABLE {_COLUMNS} {columns}")
        except _REFUSED:
            raise LeftToTheExtension from None  # types of the session's own, or a mistake
        described = beside.execute(f"DESCRIBE {_COLUMNS}").fetchall()
        beside.execute(f"DROP TABLE {_COLUMNS}")
    return _column_specs(described, may_forbid_null=True)


def _column_specs(described: Iterable[Sequence[str]], *, may_forbid_null: bool) -> list[ColumnSpec]:
    """The columns of a new table, as DuckDB makes them of columns that it describes."""
    specs: list[ColumnSpec] = []
    taken: set[str] = set()
    for name, kind, null, *_ in described:
        unique, number = name, 0
        while folded(unique) in taken:
            number += 1
            unique = f"{name}_{number}"
        taken.add(folded(unique))
        # A column of nothing but NULL has no type; DuckDB takes this one.
        kind = "INTEGER" if kind == '"NULL"' else kind
        specs.append(ColumnSpec(unique, kind, nullable=null == "YES" or not may_forbid_null))
    return specs


def _renamed_returning(text: str, table: str, shadow: str) -> str:
    """The end of an INSERT whose RETURNING calls the table by its name."""
    if "returning" not in text.lower():
        return text
    tokens = tokenize(text)
    clauses = [i for i, token in enumerate(tokens) if token.depth == 0 and token.is_kw("returning")]
    if not clauses:
        return text
    content = text.encode()
    for place in range(len(tokens) - 2, clauses[-1], -1):
        token = tokens[place]
        qualifies = tokens[place + 1].text == "." and tokens[place - 1].text != "."
        if qualifies and folded(unquoted(token.text)) == folded(table):
            content = content[: token.start] + identifier(shadow).encode() + content[token.end :]
    return content.decode()


def _in_files(table: Table | CreateTable, files: Sequence[DataFile], *, blind: bool) -> LakeChange:
    operations = (Insert(table, tuple(files), blind=blind),) if files else ()
    return LakeChange(operations, files, sum(file.record_count for file in files))


def _small(table: Table) -> int:
    """Up to how many rows are kept in the metadata."""
    return table.options.inlined_rows or 0
