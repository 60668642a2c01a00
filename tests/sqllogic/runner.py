"""Runs scripts on both sides and finds their differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa

from swanlake.sql.quoting import identifier, literal
from tests.server_process import ServerProcess
from tests.sqllogic.script import Record
from tests.sqllogic.sides import Outcome, ServerSession, Session, StockLake

#: What a user can see of a catalog besides its rows.
_DESCRIPTIONS = (
    "SELECT schema_name, table_name, column_name, data_type, is_nullable, column_default, comment "
    "FROM duckdb_columns() WHERE database_name = {name}",
    "SELECT schema_name, table_name, comment, column_count FROM duckdb_tables() "
    "WHERE database_name = {name}",
    "SELECT schema_name, view_name, comment, sql FROM duckdb_views() "
    "WHERE database_name = {name} AND NOT internal",
    "SELECT schema_name, function_name, parameters, macro_definition FROM duckdb_functions() "
    "WHERE database_name = {name} AND NOT internal",
)
#: Which rows are inlined may differ, and with it schema versions.
_SNAPSHOTS = (
    "SELECT snapshot_id, list_sort(list_transform(map_entries(changes), e -> struct_pack(kind := "
    "replace(replace(e.key, 'inlined_insert', 'tables_inserted_into'), "
    "'inlined_delete', 'tables_deleted_from'), objects := list_sort(e.value)))) AS changes, "
    "author, commit_message FROM ducklake_snapshots({name})"
)
_TABLES = "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = {name}"
_SHOWN_LINES = 20
_SHOWN_CHARACTERS = 500
_FEEDS = ("changes", "insertions", "deletions")


class Difference(AssertionError):
    """The sides differ, or one does not do what a record expects."""


@dataclass
class Pair:
    """A catalog on a server and one in stock DuckDB, both empty at first."""

    server: ServerProcess
    stock: StockLake
    catalog: str
    home: Path
    #: The words that describe the lake and the server.
    configuration: frozenset[str]
    _sessions: dict[str, tuple[Session, Session]] = field(default_factory=dict)

    def __enter__(self) -> Pair:
        self.stock.create_catalog(self.catalog)
        setup = ServerSession(self.server.url, f"setup of {self.catalog}")
        created = setup.run(f"CALL swanlake_create_catalog({literal(self.catalog)})")
        assert created.error is None, created
        setup.close()
        rows = 10 if "inlined" in self.configuration else 0
        self.both(f"CALL {{catalog}}.set_option('data_inlining_row_limit', {rows})")
        return self

    def __exit__(self, *exception: object) -> None:
        with ExitStack() as cleanup:
            cleanup.callback(self.stock.detach, self.catalog)
            for session in (session for pair in self._sessions.values() for session in pair):
                cleanup.callback(session.close)

    def both(self, sql: str, session: str = "") -> tuple[Outcome, Outcome]:
        """The outcomes of a statement in SwanLake and in stock DuckDB."""
        if session not in self._sessions:
            on_server = ServerSession(self.server.url, f"{session} of {self.catalog}")
            self._sessions[session] = on_server, self.stock.session()
            self.both(f"USE {identifier(self.catalog)}", session)
        ours, stock = self._sessions[session]
        sql = sql.replace("{catalog}", identifier(self.catalog))
        return (
            ours.run(sql.replace("{dir}", self._directory("ours"))),
            stock.run(sql.replace("{dir}", self._directory("stock"))),
        )

    def _directory(self, side: str) -> str:
        directory = self.home / side / self.catalog
        directory.mkdir(parents=True, exist_ok=True)
        return str(directory)

    def run_script(self, records: Iterable[Record]) -> None:
        """Runs all records and compares the catalogs; raises Difference with all that differ."""
        found = []
        checks: list[Callable[[], None]] = [partial(self.run, record) for record in records]
        for check in [*checks, self.compare_snapshots, self.compare_content]:
            try:
                check()
            except Difference as difference:
                found.append(str(difference))
        if found:
            raise Difference("\n\n".join(found))

    def run(self, record: Record) -> None:
        """Runs one record; raises Difference."""
        if not record.applies(self.configuration):
            return
        for sql in [record.sql] if record.since is None else self._history(record):
            self._check(record, sql)

    def _check(self, record: Record, sql: str) -> None:
        ours, stock = self.both(sql, record.session)
        side = record.differing(self.configuration)
        texts = f"\n{record.place}: {_both_texts(sql, ours, stock)}"
        is_same = ours.comparable(is_ordered=record.is_ordered) == stock.comparable(
            is_ordered=record.is_ordered
        )
        if side is None and not is_same:
            raise Difference(f"the sides differ{texts}")
        if side is not None and is_same:
            raise Difference(f"{side} is said to differ, and does not{texts}")
        if wrong := unexpected(record, stock if side == "swanlake" else ours):
            raise Difference(f"{wrong}{texts}")

    def compare_snapshots(self) -> None:
        """Compares what the snapshots of the catalogs changed."""
        self.compare(_SNAPSHOTS.replace("{name}", literal(self.catalog)))

    def compare_content(self, *, has_row_ids: bool = True) -> None:
        """Compares what is in the catalogs: tables, views, macros and rows."""
        name = literal(self.catalog)
        for sql in _DESCRIPTIONS:
            self.compare(sql.replace("{name}", name))
        _, tables = self.both(_TABLES.replace("{name}", name))
        for row in tables.rows:
            table = ".".join(map(identifier, row.split("\t")))
            row_id = "rowid, " if has_row_ids else ""
            self.compare(f"SELECT {row_id}* FROM {{catalog}}.{table}")

    def compare(
        self,
        sql: str,
        *,
        is_ordered: bool = False,
        either: frozenset[str] = frozenset(),
        refusals: tuple[str, ...] = (),
    ) -> Outcome:
        """The outcome on both sides; raises Difference.

        Errors of ``either`` count as the same. A message of ours with one of the ``refusals`` is
        the outcome, whatever stock DuckDB does.
        """
        ours, stock = self.both(sql)
        if ours.error and any(words in ours.message for words in refusals):
            return ours
        if {ours.error, stock.error} <= either:
            return stock
        if ours.comparable(is_ordered=is_ordered) != stock.comparable(is_ordered=is_ordered):
            raise Difference(f"the sides differ\n{_both_texts(sql, ours, stock)}")
        return stock

    def _history(self, record: Record) -> Iterator[str]:
        """Queries of a table at every snapshot, and of its change feed in and until each."""
        table, since = record.sql, record.since
        _, newest = self.both("FROM {catalog}.current_snapshot()", record.session)
        snapshots = range(since or 0, int(newest.rows[0]) + 1)
        schema, _, name = f"main.{table}".rpartition(".")
        schema = schema.removeprefix("main.")
        feed = [
            f"SELECT {low}, {high}, '{feed}', r::VARCHAR FROM ducklake_table_{feed}("
            f"{literal(self.catalog)}, {literal(schema)}, {literal(name)}, {low}, {high}) r"
            for low, high in dict.fromkeys(
                range_ for each in snapshots for range_ in ((each, each), (snapshots[0], each))
            )
            for feed in _FEEDS
        ]
        yield "\nUNION ALL ".join(
            f"SELECT {snapshot}, r::VARCHAR "
            f"FROM (SELECT rowid, * FROM {table} AT (VERSION => {snapshot})) r"
            for snapshot in snapshots
        )
        yield "\nUNION ALL ".join(feed)


def _both_texts(sql: str, ours: Outcome, stock: Outcome) -> str:
    """A statement and both outcomes; of long ones, only what differs."""
    texts = {"swanlake": str(ours).splitlines(), "stock": str(stock).splitlines()}
    if max(map(len, texts.values())) > _SHOWN_LINES:
        only = {
            side: list((Counter(lines) - Counter(other)).elements())
            for (side, lines), other in zip(texts.items(), reversed(texts.values()), strict=True)
        }
        texts = {
            f"{side}, {len(lines)} lines of its own": lines[:_SHOWN_LINES]
            for side, lines in only.items()
        }
    shown = [f"--- {title}:\n" + "\n".join(lines) for title, lines in texts.items()]
    return "\n".join([sql[:_SHOWN_CHARACTERS], *shown])


def unexpected(record: Record, outcome: Outcome) -> str:
    """What of an outcome is not as a record expects; empty if all is."""
    if record.succeeds is not None and record.succeeds != (outcome.error is None):
        return "it should have succeeded" if record.succeeds else "it should have failed"
    if record.error is not None and record.error != outcome.error:
        return f"the error should have been {record.error}"
    if record.count is not None and record.count != outcome.count:
        return f"it should have affected {record.count} rows"
    if record.letters is not None:
        letters = "".join(_letter(kind) for _, kind in outcome.columns)
        if letters != record.letters:
            return f"the columns should have been {record.letters}, not {letters}"
    if record.rows is not None:
        found, expected = outcome.rows, record.rows
        if not record.is_ordered:
            found, expected = tuple(sorted(found)), tuple(sorted(expected))
        if found != expected:
            return "the rows should have been\n" + "\n".join(record.rows)
    return ""


def _letter(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0):  # HUGEINT
        return "I"
    return "R" if pa.types.is_floating(kind) or pa.types.is_decimal(kind) else "T"
