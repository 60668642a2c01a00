"""Statements with bound rows: run once per row, or once for all rows if that means the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain, islice
from typing import Any

import duckdb
import pyarrow as pa

from swanlake.sessions.execution import binding
from swanlake.sessions.execution.client_rows import CLIENT_ROWS
from swanlake.sessions.execution.executor import StatementExecutor
from swanlake.sessions.execution.router import enqueue_head
from swanlake.sessions.results.stream import Outcome, ResultStream
from swanlake.sessions.run import Run
from swanlake.sql.statement import Statement


class ParameterExecutor:
    """Runs statements for the rows that a client sent with them."""

    def __init__(self, executor: StatementExecutor) -> None:
        self._executor = executor
        self._session = executor.session
        self._client_rows = executor.session.client_rows

    def load(self, run: Run, texts: list[str], rows: Any) -> int:
        """Runs statements around the rows of a client, as one; the last of them loads the rows."""
        executor = self._executor
        statements = [executor.parse(sql)[0] for sql in texts]
        affected = 0
        with self._client_rows.provide(rows):
            if enqueue_head(statements[-1]) is not None:
                # One by one: what the queue has taken cannot be rolled back.
                for statement in statements[:-1]:
                    executor.run_one(run, executor.in_lake(statement))
                return executor.run_one(run, statements[-1]).affected or 0
            if executor.creates_nothing(statements[0]):
                del statements[0]
            is_one = not any(statement.may_write for statement in statements[:-1])
            with nullcontext() if is_one else executor.atomic(run, statements):
                for statement in statements:
                    affected = executor.run_one(run, statement).affected or 0
        return affected

    def run_rows(self, run: Run, statements: list[Statement], batches: list[Any]) -> Outcome:
        """Runs the last statement once per bound row; all rows that they give are one result."""
        for statement in statements[:-1]:
            self._executor.run_one(run, statement, keep_rows=False)
        last = statements[-1]
        if sum(batch.num_rows for batch in batches) == 1:
            batch, row = next(binding.rows(batches))
            return self._run_row(run, last, batch, row)
        sql = last.over_rows(CLIENT_ROWS) if last.is_change else None
        if sql is not None:
            with self._client_rows.provide(pa.Table.from_batches(batches)):
                return self._executor.run_one(run, self._executor.parse(sql)[0])
        result: ResultStream | None = None
        with self._executor.atomic(run, [last]) if last.may_write else nullcontext():
            for batch, row in binding.rows(batches):
                stream = self._run_row(run, last, batch, row).stream
                assert stream is not None
                self._session.call(run, lambda _, stream=stream: stream.drain())
                self._session.live = None
                if result is None:
                    result = stream
                else:
                    result.append_from(stream)
        return Outcome(stream=result)

    def run_bulk(self, run: Run, statements: list[Statement], batches: Any, schema: Any) -> Outcome:
        """Runs a change for all rows as one transaction; as one INSERT if that means the same."""
        last = statements[-1]
        sql = last.over_rows(CLIENT_ROWS)
        first = list(islice(batches, 2))
        batches = chain(first, batches)
        with self._all_or_nothing(
            run, statements, row_by_row=sql is None and not _is_one_row(first)
        ):
            for statement in statements[:-1]:
                self._executor.run_one(run, statement, keep_rows=False)
            if sql is not None:
                reader = pa.RecordBatchReader.from_batches(schema, batches)
                with self._client_rows.provide(reader):
                    statement = self._executor.parse(sql)[0]
                    if not self._is_faster_with_parameters(first, statement):
                        return self._executor.run_one(run, statement)
                return self._run_row(run, last, first[0], 0)
            affected = 0
            for batch, row in binding.rows(batches):
                affected += self._run_row(run, last, batch, row).affected or 0
            return Outcome(affected=affected)

    def _is_faster_with_parameters(self, first: list[Any], bulk: Statement) -> bool:
        """True for one row of plain values: registering it with DuckDB as a table costs more."""
        return (
            _is_one_row(first)
            and not self._executor.enqueue.accepts_client_rows(bulk)
            and binding.plain_values(first[0], 0) is not None
        )

    @contextmanager
    def _all_or_nothing(
        self, run: Run, statements: list[Statement], *, row_by_row: bool
    ) -> Iterator[None]:
        """All rows of the last statement in one transaction, or in one batch of the queue."""
        if enqueue_head(statements[-1]) is not None:
            with self._executor.enqueue.one_batch(run) if row_by_row else nullcontext():
                yield
            return
        is_one = len(statements) == 1 and not row_by_row
        with nullcontext() if is_one else self._executor.atomic(run, statements):
            yield

    def _run_row(self, run: Run, statement: Statement, batch: Any, row: int) -> Outcome:
        values = binding.plain_values(batch, row)
        names = statement.parameters
        if values is not None:
            is_positional = all(name.isdigit() for name in names)
            parameters = values if is_positional else dict(zip(names, values, strict=True))
            return self._executor.run_one(run, statement, parameters)
        # Intervals, nested values and their like have no exact Python form: they go from Arrow into
        # DuckDB variables, which the planner treats as constants.
        variables: dict[str, str] = {}
        for i, name in enumerate(names):
            value = batch.select([i]).slice(row, 1)
            if pa.types.is_null(value.schema.field(0).type):
                continue  # a NULL without a type, which a scan would make an INTEGER
            variable = variables[name] = f"{binding.VARIABLE_PREFIX}{name}"
            reader = pa.RecordBatchReader.from_batches(value.schema, [value])
            with self._client_rows.provide(reader):
                self._session.call(run, self._set_variable, variable, f"c{i}")
        try:
            sql = statement.with_parameters(
                lambda name: f"getvariable('{variables[name]}')" if name in variables else "NULL"
            )
            return self._executor.run_one(run, self._executor.parse(sql)[0])
        finally:
            if self._session.live is None and not self._session.transaction.aborted:
                for variable in variables.values():
                    reset = f"RESET VARIABLE {variable}"
                    self._session.call(run, duckdb.DuckDBPyConnection.execute, reset)

    def _set_variable(
        self, connection: duckdb.DuckDBPyConnection, variable: str, column: str
    ) -> None:
        self._client_rows.expose(connection)
        connection.execute(f"SET VARIABLE {variable} = (SELECT {column} FROM {CLIENT_ROWS})")


def _is_one_row(batches: list[Any]) -> bool:
    return len(batches) == 1 and batches[0].num_rows == 1
