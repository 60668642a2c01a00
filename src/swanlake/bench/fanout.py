"""The fan-out workload: concurrent tasks, each with its own tables, and one shared table.

This module only plans. From the state of its tables, a task derives the next statement, the state
after it, and what a reader must see. A failed statement changes nothing. ``swanlake.bench.runner``
runs the statements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice

from swanlake.sql.quoting import identifier, literal, qualified

Row = tuple[int, ...]


class StatementKind(StrEnum):
    """The kind of a statement."""

    CREATE = "create table"
    INSERT = "insert"
    UPDATE = "update"
    SHARE = "insert, shared table"
    COPY = "insert from select"
    DELETE = "delete"
    READ = "read back"

    @property
    def commits(self) -> bool:
        """True if it creates a snapshot."""
        return self is not StatementKind.READ


#: What a task repeats once its tables exist.
CYCLE = [
    StatementKind[name]
    for name in "INSERT UPDATE SHARE COPY READ INSERT UPDATE SHARE DELETE READ".split()
]
_COPIED_ROWS = 3


@dataclass(frozen=True)
class TableContent:
    """What a reader sees of a table: the number of rows and the sum of their values."""

    rows: int = 0
    total: int = 0

    def with_values(self, values: Iterable[int]) -> TableContent:
        """The content after more rows are inserted."""
        added = list(values)
        return TableContent(self.rows + len(added), self.total + sum(added))


@dataclass(frozen=True)
class TaskState:
    """The content of a task's tables after all acknowledged statements."""

    #: The number of its own tables that exist.
    tables: int = 0
    next_id: int = 0
    #: The rows of the task's first table: value by id.
    own: Mapping[int, int] = field(default_factory=dict)
    copies: TableContent = TableContent()
    shared: TableContent = TableContent()


@dataclass(frozen=True)
class TaskStatement:
    """A statement of a task, and the state after it."""

    kind: StatementKind
    sql: str
    state_after: TaskState
    #: The rows that it must return; None if they are not checked.
    answer: tuple[Row, ...] | None = None


@dataclass(frozen=True)
class CountCheck:
    """A query over the tables of all tasks, and the rows that it must return."""

    sql: str
    answer: tuple[Row, ...]


@dataclass(frozen=True)
class FanOut:
    """One run: a number of tasks in a schema of their own."""

    run: str
    catalog: str
    tasks: int
    statements: int
    #: Inserts of up to this many rows are inlined; None: the catalog's setting.
    inlined_rows: int | None = None

    @property
    def schema(self) -> str:
        """The schema of all tables of the run, as SQL."""
        return qualified(self.catalog, self._schema_name)

    @property
    def _schema_name(self) -> str:
        return f"fanout_{self.run}"

    @property
    def shared_table(self) -> str:
        """The table that every task appends to, as SQL."""
        return f"{self.schema}.shared"

    @property
    def setup_statements(self) -> tuple[str, ...]:
        """The statements that run once, before the first task starts."""
        schema = f"CREATE SCHEMA {self.schema}"
        shared = f"CREATE TABLE {self.shared_table} (task BIGINT, value BIGINT)"
        if self.inlined_rows is None:
            return schema, shared
        option = f"CALL {identifier(self.catalog)}.set_option('data_inlining_row_limit', "
        option += f"{self.inlined_rows}, schema => {literal(self._schema_name)})"
        return schema, option, shared

    @property
    def teardown_statement(self) -> str:
        """The statement that drops all tables of the run."""
        return f"DROP SCHEMA {self.schema} CASCADE"

    def task(self, number: int) -> Task:
        """A task by its number, from 0."""
        return Task(self, number)

    def checks(self, states: Sequence[TaskState]) -> list[CountCheck]:
        """The checks that must hold if these are the final states of the tasks, in order."""
        shared = [
            (number, state.shared.rows, state.shared.total)
            for number, state in enumerate(states)
            if state.shared.rows
        ]
        checks = [
            CountCheck(
                f"SELECT task, count(*), sum(value)::BIGINT FROM {self.shared_table} "
                "GROUP BY task ORDER BY task",
                tuple(shared),
            )
        ]
        for number, state in enumerate(states):
            contents = (TableContent().with_values(state.own.values()), state.copies)
            tables = list(zip(self.task(number).tables, contents, strict=True))
            checks += [
                CountCheck(f"SELECT {_COUNTED} FROM {table}", ((content.rows, content.total),))
                for table, content in tables[: state.tables]
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

    def final_state(self) -> TaskState:
        """The state of its tables at the end, if nothing fails."""
        state = TaskState()
        for number in range(self.plan.statements):
            state = self.statement(number, state).state_after
        return state

    def statement(self, number: int, state: TaskState) -> TaskStatement:
        """The statement with a number, given the state of the task's tables."""
        if state.tables < len(self.tables):
            return self._create(state)
        match CYCLE[(number - len(self.tables)) % len(CYCLE)]:
            case StatementKind.UPDATE if state.own:
                return self._update(number, state)
            case StatementKind.DELETE if state.own:
                return self._delete(number, state)
            case StatementKind.SHARE:
                return self._share(number, state)
            case StatementKind.COPY:
                return self._copy(number, state)
            case StatementKind.READ:
                return self._read(state)
            case _:
                return self._insert(number, state)

    def _create(self, state: TaskState) -> TaskStatement:
        table = self.tables[state.tables]
        sql = f"CREATE TABLE {table} (id BIGINT, value BIGINT)"
        return TaskStatement(StatementKind.CREATE, sql, replace(state, tables=state.tables + 1))

    def _insert(self, number: int, state: TaskState) -> TaskStatement:
        """Inserts one to three rows, whose value is the statement's number."""
        ids = range(state.next_id, state.next_id + 1 + number % 3)
        values = ", ".join(f"({id}, {number})" for id in ids)
        return TaskStatement(
            StatementKind.INSERT,
            f"INSERT INTO {self.tables[0]} VALUES {values}",
            replace(state, next_id=ids.stop, own={**state.own, **dict.fromkeys(ids, number)}),
        )

    def _update(self, number: int, state: TaskState) -> TaskStatement:
        row = _chosen(number, state)
        return TaskStatement(
            StatementKind.UPDATE,
            f"UPDATE {self.tables[0]} SET value = value + {number} WHERE id = {row}",
            replace(state, own={**state.own, row: state.own[row] + number}),
        )

    def _share(self, number: int, state: TaskState) -> TaskStatement:
        return TaskStatement(
            StatementKind.SHARE,
            f"INSERT INTO {self.plan.shared_table} VALUES ({self.number}, {number})",
            replace(state, shared=state.shared.with_values([number])),
        )

    def _copy(self, number: int, state: TaskState) -> TaskStatement:
        """Copies the newest rows, if there are any."""
        newest = dict(islice(sorted(state.own.items(), reverse=True), _COPIED_ROWS))
        own, copies = self.tables
        return TaskStatement(
            StatementKind.COPY,
            f"INSERT INTO {copies} SELECT id, value FROM {own} "
            f"WHERE id >= {min(newest, default=0)}",
            replace(state, copies=state.copies.with_values(newest.values())),
        )

    def _delete(self, number: int, state: TaskState) -> TaskStatement:
        row = _chosen(number, state)
        return TaskStatement(
            StatementKind.DELETE,
            f"DELETE FROM {self.tables[0]} WHERE id = {row}",
            replace(state, own={id: value for id, value in state.own.items() if id != row}),
        )

    def _read(self, state: TaskState) -> TaskStatement:
        """Reads back all tables: the task must see exactly its own writes."""
        own, copies = self.tables
        contents = (TableContent().with_values(state.own.values()), state.copies, state.shared)
        return TaskStatement(
            StatementKind.READ,
            f"SELECT 0, {_COUNTED} FROM {own} UNION ALL SELECT 1, {_COUNTED} FROM {copies} "
            f"UNION ALL SELECT 2, {_COUNTED} FROM {self.plan.shared_table} "
            f"WHERE task = {self.number} ORDER BY 1",
            state,
            tuple((index, content.rows, content.total) for index, content in enumerate(contents)),
        )


def _chosen(number: int, state: TaskState) -> int:
    """The id of one of the task's rows; old and new ones alternate."""
    ids = sorted(state.own)
    return ids[number * 7 % len(ids)]
