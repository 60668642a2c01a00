"""The fan-out: many tasks at once, each with tables of its own and one that all of them share.

Nothing here runs anything. A task knows from what its tables hold which statement comes next, what
they hold once it is done, and what a reader must see; a statement that failed has changed nothing,
so the tables are as they were. Whoever runs SQL can run it: ``swanlake.bench.runner`` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice

from swanlake.sql.quoting import identifier, literal, qualified

Row = tuple[int, ...]


class Kind(StrEnum):
    """What a statement is for."""

    CREATE = "create table"
    INSERT = "insert"
    UPDATE = "update"
    SHARE = "insert, shared table"
    COPY = "insert from select"
    DELETE = "delete"
    READ = "read back"

    @property
    def commits(self) -> bool:
        """True for those that make a snapshot."""
        return self is not Kind.READ


#: What a task does over and over, once its tables are there.
CYCLE = (
    Kind.INSERT,
    Kind.UPDATE,
    Kind.SHARE,
    Kind.COPY,
    Kind.READ,
    Kind.INSERT,
    Kind.UPDATE,
    Kind.SHARE,
    Kind.DELETE,
    Kind.READ,
)
_COPIED_ROWS = 3


@dataclass(frozen=True)
class Content:
    """What a reader sees of a table: its rows, and the sum of their values."""

    rows: int = 0
    total: int = 0

    def plus(self, values: Iterable[int]) -> Content:
        """The same table with more rows."""
        added = list(values)
        return Content(self.rows + len(added), self.total + sum(added))


@dataclass(frozen=True)
class Holdings:
    """What the tables of a task hold, by everything that was acknowledged."""

    #: How many of its own tables are there.
    tables: int = 0
    next_id: int = 0
    #: The task's first table: id and value.
    own: Mapping[int, int] = field(default_factory=dict)
    copies: Content = Content()
    shared: Content = Content()


@dataclass(frozen=True)
class Statement:
    """A statement, and what is so once it is done."""

    kind: Kind
    sql: str
    leaves: Holdings
    #: What it must answer; None for statements that answer nothing of interest.
    answer: tuple[Row, ...] | None = None


@dataclass(frozen=True)
class Check:
    """A query over what all tasks left behind, and the rows it must give."""

    sql: str
    answer: tuple[Row, ...]


@dataclass(frozen=True)
class FanOut:
    """One run: so many tasks, in a schema that no other run has."""

    run: str
    catalog: str
    tasks: int
    statements: int
    #: Up to how many rows of an insert the metadata keeps; None: as the catalog has it.
    inlined_rows: int | None = None

    @property
    def schema(self) -> str:
        """Where all tables of the run are, as SQL."""
        return qualified(self.catalog, self._schema_name)

    @property
    def _schema_name(self) -> str:
        return f"fanout_{self.run}"

    @property
    def shared_table(self) -> str:
        """The table that every task appends to, as SQL."""
        return f"{self.schema}.shared"

    @property
    def preparation(self) -> tuple[str, ...]:
        """What is run once, before the first task begins."""
        option = f"CALL {identifier(self.catalog)}.set_option('data_inlining_row_limit', "
        return (
            f"CREATE SCHEMA {self.schema}",
            *(
                [f"{option}{self.inlined_rows}, schema => {literal(self._schema_name)})"]
                if self.inlined_rows is not None
                else []
            ),
            f"CREATE TABLE {self.shared_table} (task BIGINT, value BIGINT)",
        )

    @property
    def removal(self) -> str:
        """Takes all tables of the run away."""
        return f"DROP SCHEMA {self.schema} CASCADE"

    def task(self, number: int) -> Task:
        """One of the tasks, counted from 0."""
        return Task(self, number)

    def checks(self, holdings: Sequence[Holdings]) -> list[Check]:
        """What must be in the lake if these are the holdings of the tasks, in their order."""
        shared = [
            (number, held.shared.rows, held.shared.total)
            for number, held in enumerate(holdings)
            if held.shared.rows
        ]
        of_shared = Check(
            f"SELECT task, count(*), sum(value)::BIGINT FROM {self.shared_table} "
            "GROUP BY task ORDER BY task",
            tuple(shared),
        )
        checks = [of_shared]
        for number, held in enumerate(holdings):
            task = self.task(number)
            contents = (Content().plus(held.own.values()), held.copies)
            checks += [
                Check(f"SELECT {_COUNTED} FROM {table}", ((content.rows, content.total),))
                for table, content in zip(
                    task.tables[: held.tables], contents[: held.tables], strict=True
                )
            ]
        return checks


_COUNTED = "count(*), coalesce(sum(value), 0)::BIGINT"


@dataclass(frozen=True)
class Task:
    """A part of the run that has a session and two tables to itself."""

    plan: FanOut
    number: int

    @property
    def tables(self) -> tuple[str, str]:
        """Its own tables as SQL: the one it works on, and the one it copies rows to."""
        return f"{self.plan.schema}.own_{self.number}", f"{self.plan.schema}.copies_{self.number}"

    def holdings(self) -> Holdings:
        """What its tables hold at the end, if nothing fails."""
        held = Holdings()
        for number in range(self.plan.statements):
            held = self.statement(number, held).leaves
        return held

    def statement(self, number: int, held: Holdings) -> Statement:
        """The statement that comes at a place of its sequence, given what its tables hold."""
        if held.tables < len(self.tables):
            return self._create(held)
        match CYCLE[(number - len(self.tables)) % len(CYCLE)]:
            case Kind.UPDATE if held.own:
                return self._update(number, held)
            case Kind.DELETE if held.own:
                return self._delete(number, held)
            case Kind.SHARE:
                return self._share(number, held)
            case Kind.COPY:
                return self._copy(number, held)
            case Kind.READ:
                return self._read(held)
            case _:
                return self._insert(number, held)

    def _create(self, held: Holdings) -> Statement:
        table = self.tables[held.tables]
        sql = f"CREATE TABLE {table} (id BIGINT, value BIGINT)"
        return Statement(Kind.CREATE, sql, replace(held, tables=held.tables + 1))

    def _insert(self, number: int, held: Holdings) -> Statement:
        """One to three rows, whose values are the statement's place."""
        ids = range(held.next_id, held.next_id + 1 + number % 3)
        values = ", ".join(f"({id}, {number})" for id in ids)
        return Statement(
            Kind.INSERT,
            f"INSERT INTO {self.tables[0]} VALUES {values}",
            replace(held, next_id=ids.stop, own={**held.own, **dict.fromkeys(ids, number)}),
        )

    def _update(self, number: int, held: Holdings) -> Statement:
        row = _chosen(number, held)
        return Statement(
            Kind.UPDATE,
            f"UPDATE {self.tables[0]} SET value = value + {number} WHERE id = {row}",
            replace(held, own={**held.own, row: held.own[row] + number}),
        )

    def _share(self, number: int, held: Holdings) -> Statement:
        return Statement(
            Kind.SHARE,
            f"INSERT INTO {self.plan.shared_table} VALUES ({self.number}, {number})",
            replace(held, shared=held.shared.plus([number])),
        )

    def _copy(self, number: int, held: Holdings) -> Statement:
        """The newest rows, as far as there are any."""
        newest = dict(islice(sorted(held.own.items(), reverse=True), _COPIED_ROWS))
        own, copies = self.tables
        return Statement(
            Kind.COPY,
            f"INSERT INTO {copies} SELECT id, value FROM {own} "
            f"WHERE id >= {min(newest, default=0)}",
            replace(held, copies=held.copies.plus(newest.values())),
        )

    def _delete(self, number: int, held: Holdings) -> Statement:
        row = _chosen(number, held)
        return Statement(
            Kind.DELETE,
            f"DELETE FROM {self.tables[0]} WHERE id = {row}",
            replace(held, own={id: value for id, value in held.own.items() if id != row}),
        )

    def _read(self, held: Holdings) -> Statement:
        """All that the task wrote must be there at once, and nothing else."""
        own, copies = self.tables
        contents = (Content().plus(held.own.values()), held.copies, held.shared)
        return Statement(
            Kind.READ,
            f"SELECT 0, {_COUNTED} FROM {own} UNION ALL SELECT 1, {_COUNTED} FROM {copies} "
            f"UNION ALL SELECT 2, {_COUNTED} FROM {self.plan.shared_table} "
            f"WHERE task = {self.number} ORDER BY 1",
            held,
            tuple((place, seen.rows, seen.total) for place, seen in enumerate(contents)),
        )


def _chosen(number: int, held: Holdings) -> int:
    """A row of the task's own, now an old one, now a new one."""
    ids = sorted(held.own)
    return ids[number * 7 % len(ids)]
