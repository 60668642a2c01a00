"""Statements with bound parameters: once per row, or once for all rows where that is the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain, islice
from typing import Any

import duckdb
import pyarrow as pa

from swanlake.errors import CommitConflict
from swanlake.sessions import binding
from swanlake.sessions.direct import BOUND
from swanlake.sessions.execution import Execution
from swanlake.sessions.results import Outcome, ResultStream
from swanlake.sessions.runs import Run
from swanlake.sql.statement import Statement


class BoundRuns:
    """Runs prepared statements for the rows that are bound to them."""

    def __init__(self, on: Execution) -> None:
        self._on = on

    def load(self, run: Run, texts: list[str], rows: Any) -> int:
        """Runs statements around the rows of a client, as one; the last of them loads the rows."""
        on = self._on
        affected = 0
        with on.client_rows.given(rows):
            if on.queue.is_insert(texts[-1]):
                for sql in texts:  # each for itself: what the queue has taken is not taken back
                    affected = on.run_all(run, on.parse(sql)).affected or 0
                return affected
            statements = [on.parse(sql)[0] for sql in texts]
            if on.makes_nothing(statements[0]):
                del statements[0]
            is_one = not any(statement.may_write for statement in statements[:-1])
            with nullcontext() if is_one else on.atomic(run, statements):
                for statement in statements:
                    affected = on.run_one(run, statement).affected or 0
        return affected

    def run_rows(self, run: Run, statements: list[Statement], batches: list[Any]) -> Outcome:
        """Once per bound row; the rows of all executions form one result."""
        for statement in statements[:-1]:
            self._on.run_one(run, statement, keep_rows=False)
        last = statements[-1]
        if sum(batch.num_rows for batch in batches) == 1:
            batch, row = next(binding.rows(batches))
            return self._run_row(run, last, batch, row)
        sql = last.over_rows(BOUND) if last.is_change else None
        if sql is not None:
            with self._on.client_rows.given(pa.Table.from_batches(batches)):
                return self._on.run_one(run, self._on.parse(sql)[0])
        result: ResultStream | None = None
        with self._on.atomic(run, [last]) if last.may_write else nullcontext():
            for batch, row in binding.rows(batches):
                stream = self._run_row(run, last, batch, row).stream
                assert stream is not None
                self._on.look(run, lambda _, stream=stream: stream.drain())
                self._on.live = None
                if result is None:
                    result = stream
                else:
                    result.append_from(stream)
        return Outcome(stream=result)

    def run_bulk(self, run: Run, statements: list[Statement], batches: Any, schema: Any) -> Outcome:
        """A change for any number of rows, as one transaction; one INSERT if that is the same."""
        last = statements[-1]
        sql = last.over_rows(BOUND)
        first = list(islice(batches, 2))
        batches = chain(first, batches)
        with self._as_one(run, statements, row_by_row=sql is None and not _is_one_row(first)):
            for statement in statements[:-1]:
                self._on.run_one(run, statement, keep_rows=False)
            if sql is not None:
                with self._on.client_rows.given(pa.RecordBatchReader.from_batches(schema, batches)):
                    statement = self._on.parse(sql)[0]
                    translated = self._on.translated(statement)
                    if not self._is_better_alone(first, translated):
                        return self._on.run_one(run, statement, translated=translated)
                return self._run_row(run, last, first[0], 0)
            affected = 0
            for batch in batches:
                for row in range(batch.num_rows):
                    affected += self._run_row(run, last, batch, row).affected or 0
            return Outcome(affected=affected)

    def _is_better_alone(self, first: list[Any], bulk: Statement) -> bool:
        """True for one row of plain values: to show it to DuckDB as a table costs more."""
        return (
            _is_one_row(first)
            and not self._on.queue.takes_directly(bulk, self._on.client_rows.rows)
            and binding.plain_values(first[0], 0) is not None
        )

    @contextmanager
    def _as_one(self, run: Run, statements: list[Statement], *, row_by_row: bool) -> Iterator[None]:
        """All rows of the last statement in one transaction, or at once into the queue."""
        on = self._on
        if not on.queue.is_insert(statements[-1].text):
            is_one = len(statements) == 1 and not row_by_row
            with nullcontext() if is_one else on.atomic(run, statements):
                yield
            return
        if not row_by_row:
            yield
            return
        on.to_queue = []
        try:
            yield
            rows = on.to_queue
        finally:
            on.to_queue = None
        if rows:
            target = rows[-1][0]
            if any(one.layout.columns != target.layout.columns for one, _ in rows):
                raise CommitConflict(
                    f"The table {target.table.full_name} was changed meanwhile. Nothing was kept; "
                    "send the rows again."
                )
            ingest = run.ingest(target.table.full_name)
            on.queue.keep(target, (batch for _, batch in rows), ingest, run.check)

    def _run_row(self, run: Run, statement: Statement, batch: Any, row: int) -> Outcome:
        values = binding.plain_values(batch, row)
        if values is not None:
            names = statement.parameters
            if all(name.isdigit() for name in names):
                return self._on.run_one(run, statement, values)
            return self._on.run_one(run, statement, dict(zip(names, values, strict=True)))
        execute = duckdb.DuckDBPyConnection.execute
        # Intervals, nested values and their like have no exact Python form: they go from Arrow into
        # DuckDB variables, which the planner treats as constants.
        variables: dict[str, str] = {}
        for i, name in enumerate(statement.parameters):
            value = batch.select([i]).slice(row, 1)
            if pa.types.is_null(value.schema.field(0).type):
                continue  # a NULL without a type, which a scan would make an INTEGER
            variable = variables[name] = f"{binding.VARIABLE_PREFIX}{name}"
            with self._on.client_rows.registered(
                pa.RecordBatchReader.from_batches(value.schema, [value])
            ):
                self._on.look(
                    run,
                    execute,
                    f"SET VARIABLE {variable} = (SELECT c{i} FROM {BOUND})",
                )
        try:
            sql = statement.with_parameters(
                lambda name: f"getvariable('{variables[name]}')" if name in variables else "NULL"
            )
            return self._on.run_one(run, self._on.parse(sql)[0])
        finally:
            if self._on.live is None and not self._on.transaction.aborted:
                for variable in variables.values():
                    self._on.look(run, execute, f"RESET VARIABLE {variable}")


def _is_one_row(batches: list[Any]) -> bool:
    return len(batches) == 1 and batches[0].num_rows == 1
