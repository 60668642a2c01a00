"""All procedures of the server: finds them by name and runs them for a session."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import duckdb
import pyarrow as pa

from swanlake.access.policy import require_role
from swanlake.errors import Code, InvalidRequest, QueryError
from swanlake.sessions.execution.client_rows import CLIENT_ROWS
from swanlake.sessions.execution.engine_session import EngineSession
from swanlake.sessions.procedures.activity import ACTIVITY_PROCEDURES
from swanlake.sessions.procedures.base import Procedure, ProcedureContext
from swanlake.sessions.procedures.catalog import CATALOG_PROCEDURES
from swanlake.sessions.procedures.credentials import CREDENTIAL_PROCEDURES
from swanlake.sessions.procedures.maintenance import MAINTENANCE_PROCEDURES
from swanlake.sessions.procedures.queue import QUEUE_PROCEDURES
from swanlake.sessions.results.stream import Outcome
from swanlake.sessions.run import Run
from swanlake.sql.quoting import literal
from swanlake.sql.statement import Call, Statement

_PREFIXES = ("swanlake_", "duckling_queue_")

PROCEDURES = {
    procedure.name: procedure
    for procedure in (
        *CATALOG_PROCEDURES,
        *QUEUE_PROCEDURES,
        *MAINTENANCE_PROCEDURES,
        *ACTIVITY_PROCEDURES,
        *CREDENTIAL_PROCEDURES,
    )
}


def find_procedure(statement: Statement) -> Procedure | None:
    """The procedure of the server that a statement calls; raises if there is none of its name."""
    call = statement.call
    if call is None or not call.name.startswith(_PREFIXES):
        return None
    procedure = PROCEDURES.get(call.name)
    if procedure is None:
        near = get_close_matches(call.name, PROCEDURES, n=1, cutoff=0)
        raise QueryError(
            f"There is no procedure {call.name}. Did you mean {near[0]}?",
            identifier="CATALOG_ERROR",
            code=Code.INVALID_ARGUMENT,
        )
    return procedure


def run_procedure(
    session: EngineSession, run: Run, procedure: Procedure, statement: Statement, parameters: Any
) -> Outcome:
    """Runs a procedure; its rows are a result like any other."""
    assert statement.call is not None
    run.may_change = not procedure.reads
    rows = procedure_rows(session, run, procedure, statement.call, parameters)
    if not procedure.reads:
        session.services.queue.table_cache.invalidate_all()

    def read(connection: duckdb.DuckDBPyConnection) -> Outcome:
        session.client_rows.expose(connection)
        connection.execute(f"SELECT * FROM {CLIENT_ROWS}")
        stream = session.stream(run, connection)
        stream.drain()
        return Outcome(stream)

    with session.client_rows.provide(rows):
        return session.call(run, read)


def _describe(procedure: Procedure, arguments: Sequence[Any]) -> str:
    """The call with its values, for the audit log: they are names and numbers, and no secrets."""
    named = zip(procedure.parameters, arguments, strict=True)
    given = (f"{name} => {literal(str(value))}" for name, value in named if value is not None)
    return f"{procedure.name}({', '.join(given)})"


def procedure_rows(
    session: EngineSession, run: Run, procedure: Procedure, call: Call, parameters: Any
) -> Any:
    """Calls a procedure; its rows as an Arrow table."""
    require_role(session.identity, procedure.role, procedure.name)
    if procedure.changes and session.transaction.open:
        raise InvalidRequest(
            f"{procedure.name} cannot be part of a transaction: commit or roll back first.",
            identifier="TRANSACTION_ACTIVE",
        )
    arguments = session.call(run, procedure.evaluate, call, parameters)
    if not procedure.reads:
        run.action = _describe(procedure, arguments)
    context = ProcedureContext(
        session.identity,
        session.services.lake,
        session.engine,
        lambda: session.services.host.engines,
        session.services.queue,
        session.services.maintenance,
        lambda: session.call(run, lambda connection: session.names.location()),
        run.check,
        session.services,
        run.session,
    )
    rows = procedure.body(context, *arguments)
    return pa.Table.from_pylist(rows, schema=procedure.schema)
