"""Every procedure of the server's own, by name."""

from __future__ import annotations

from difflib import get_close_matches

from swanlake.errors import Code, QueryError
from swanlake.sessions.catalog_procedures import CATALOG_PROCEDURES
from swanlake.sessions.maintenance_procedures import MAINTENANCE_PROCEDURES
from swanlake.sessions.procedure import Procedure
from swanlake.sessions.queue_procedures import QUEUE_PROCEDURES
from swanlake.sql.statement import Statement

_PREFIXES = ("swanlake_", "duckling_queue_")

PROCEDURES = {
    procedure.name: procedure
    for procedure in (*CATALOG_PROCEDURES, *QUEUE_PROCEDURES, *MAINTENANCE_PROCEDURES)
}


def find_procedure(statement: Statement) -> Procedure | None:
    """The procedure of ours that a statement calls; raises if it calls one that does not exist."""
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
