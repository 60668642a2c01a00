"""Bulk ingestion: a stream of Arrow batches into a table."""

from __future__ import annotations

from collections.abc import Callable

from swanlake.errors import InvalidRequest
from swanlake.protocol import messages
from swanlake.queue.names import QUEUE
from swanlake.sql.quoting import identifier, qualified

_Options = messages.CommandStatementIngest.TableDefinitionOptions


def ingest_statements(command: messages.CommandStatementIngest) -> Callable[[str], list[str]]:
    """A function from the name of the rows' source to the statements that load it."""
    if not command.table:
        raise InvalidRequest("An ingestion must name its table.")
    options = command.table_definition_options
    may_create = options.if_not_exist != _Options.TABLE_NOT_EXIST_OPTION_FAIL
    replaces = options.if_exists == _Options.TABLE_EXISTS_OPTION_REPLACE
    appends = options.if_exists == _Options.TABLE_EXISTS_OPTION_APPEND
    into_queue = command.catalog.lower() == QUEUE
    if into_queue and (command.temporary or replaces):
        raise InvalidRequest(
            f"An ingestion into {QUEUE} can append to a table or create one, not replace it.",
            identifier="QUEUE_REFUSED",
        )
    if command.temporary and (command.catalog or command.schema):
        raise InvalidRequest("Temporary tables cannot name a catalog or schema.")
    if not (may_create or replaces or appends):
        raise InvalidRequest(
            "The options require that the table neither exists nor is created; allow one of them."
        )
    target = qualified(command.catalog, command.schema, command.table)
    new_name, kind = target, "TABLE"
    if into_queue:
        target = new_name = f"{QUEUE}.{qualified(command.schema, command.table)}"
    elif command.temporary:
        target = qualified("temp", "main", command.table)
        new_name, kind = identifier(command.table), "TEMP TABLE"

    def statements(source: str) -> list[str]:
        append = f"INSERT INTO {target} BY NAME FROM {source}"
        rows = f"{new_name} AS FROM {source}"
        if replaces:
            must_exist = [] if may_create else [f"SELECT 1 FROM {target} LIMIT 0"]
            return [*must_exist, f"CREATE OR REPLACE {kind} {rows}"]
        if not may_create:
            return [append]
        if appends:
            return [f"CREATE {kind} IF NOT EXISTS {rows} WITH NO DATA", append]
        if into_queue:
            return [f"CREATE {kind} {rows} WITH NO DATA", append]
        return [f"CREATE {kind} {rows}"]

    return statements
