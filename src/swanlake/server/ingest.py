"""Bulk ingestion: a stream of Arrow batches into a table."""

from __future__ import annotations

from collections.abc import Callable

from swanlake.errors import InvalidRequest
from swanlake.protocol import messages
from swanlake.queue.names import QUEUE
from swanlake.sql.quoting import identifier, qualified

_Options = messages.CommandStatementIngest.TableDefinitionOptions


def ingest_statements(command: messages.CommandStatementIngest) -> Callable[[str], list[str]]:
    """The statements that load the rows, given the name under which they can be read."""
    if not command.table:
        raise InvalidRequest("An ingestion must name its table.")
    if command.catalog.lower() == QUEUE:
        return _into_queue(command)
    if command.temporary:
        if command.catalog or command.schema:
            raise InvalidRequest("A temporary table has no catalog or schema of one's choice.")
        target, create = qualified("temp", "main", command.table), "CREATE {}TEMP TABLE{} "
    else:
        target = qualified(command.catalog, command.schema, command.table)
        create = "CREATE {}TABLE{} "
    new_name = identifier(command.table) if command.temporary else target

    options = command.table_definition_options
    may_create = options.if_not_exist != _Options.TABLE_NOT_EXIST_OPTION_FAIL
    if_exists = options.if_exists

    def statements(source: str) -> list[str]:
        must_exist = [] if may_create else [f"SELECT 1 FROM {target} LIMIT 0"]
        if if_exists == _Options.TABLE_EXISTS_OPTION_REPLACE:
            return [*must_exist, f"{create.format('OR REPLACE ', '')}{new_name} AS FROM {source}"]
        append = f"INSERT INTO {target} BY NAME FROM {source}"
        if if_exists == _Options.TABLE_EXISTS_OPTION_APPEND:
            if not may_create:
                return [append]
            columns = f"{new_name} AS FROM {source} WITH NO DATA"
            return [create.format("", " IF NOT EXISTS") + columns, append]
        if not may_create:
            raise InvalidRequest(
                "The table must neither exist nor be created: nothing can be done."
            )
        return [f"{create.format('', '')}{new_name} AS FROM {source}"]

    return statements


def _into_queue(command: messages.CommandStatementIngest) -> Callable[[str], list[str]]:
    """The table is one of the lake; the rows take the way through the queue."""
    options = command.table_definition_options
    if command.temporary or options.if_exists == _Options.TABLE_EXISTS_OPTION_REPLACE:
        raise InvalidRequest(
            f"An ingestion into {QUEUE} can append to a table or create one, not replace it.",
            identifier="QUEUE_REFUSED",
        )
    must_be_new = options.if_exists != _Options.TABLE_EXISTS_OPTION_APPEND
    may_create = options.if_not_exist != _Options.TABLE_NOT_EXIST_OPTION_FAIL
    if must_be_new and not may_create:
        raise InvalidRequest("The table must neither exist nor be created: nothing can be done.")
    table = f"{QUEUE}.{qualified(command.schema, command.table)}"

    def statements(source: str) -> list[str]:
        append = f"INSERT INTO {table} BY NAME FROM {source}"
        if not may_create:
            return [append]
        create = "CREATE TABLE " if must_be_new else "CREATE TABLE IF NOT EXISTS "
        return [f"{create}{table} AS FROM {source} WITH NO DATA", append]

    return statements
