"""Plans changes of schemas, tables and options."""

from __future__ import annotations

from sqlalchemy import Table as SqlTable
from sqlalchemy import delete

from swanlake.errors import AlreadyExists, InvalidRequest, NotFound
from swanlake.lake.commit.changes import ChangeType
from swanlake.lake.commit.draft import Draft
from swanlake.lake.commit.plan_data import create_inlined_tables
from swanlake.lake.files.inlined_tables import can_inline
from swanlake.lake.model.layout import Column, DefaultKind, directory_name, folded
from swanlake.lake.model.operations import (
    CreateSchema,
    CreateTable,
    DropSchema,
    DropTable,
    SetProperty,
)

#: The tables whose rows end together with a table.
_PARTS_OF_A_TABLE = (
    "partition_info",
    "column",
    "column_tag",
    "data_file",
    "delete_file",
    "sort_info",
)


def create_schema(draft: Draft, operation: CreateSchema) -> None:
    """Creates a schema."""
    key = folded(operation.name)
    if key in draft.schemas or key in draft.new_schemas:
        raise AlreadyExists(f"The schema {operation.name} exists already.")
    schema_id = draft.new_schemas[key] = draft.new_catalog_id()
    draft.add_row(
        draft.tables.schema,
        schema_id=schema_id,
        schema_uuid=str(operation.uuid),
        begin_snapshot=draft.snapshot_id,
        schema_name=operation.name,
        path=directory_name(operation.name, operation.uuid),
        path_is_relative=True,
    )
    draft.change_schema()
    draft.add_change(ChangeType.CREATED_SCHEMA, None, operation.name)


def drop_schema(draft: Draft, operation: DropSchema) -> None:
    """Drops a schema, and with ``cascade`` what is in it."""
    row = draft.schemas.pop(folded(operation.name), None)
    if row is None:
        raise NotFound(f"There is no schema {operation.name}.", identifier="SCHEMA_NOT_FOUND")
    inside = [
        (kind, id) for (schema, _), (kind, id) in draft.objects.items() if schema == row.schema_id
    ]
    macros = [(kind, id) for schema, id, kind in draft.state.macros if schema == row.schema_id]
    if (inside or macros) and not operation.cascade:
        raise InvalidRequest(
            f"The schema {operation.name} still holds {len(inside) + len(macros)} tables, "
            "views and macros; drop them first, or drop the schema with everything in it "
            "(cascade).",
            identifier="SCHEMA_NOT_EMPTY",
        )
    for kind, id in inside:
        if kind == "table":
            _end_table(draft, id)
        else:
            draft.end_rows(draft.tables.view, draft.tables.view.c.view_id == id)
            draft.add_change(ChangeType.DROPPED_VIEW, id)
    for kind, id in macros:
        draft.add_change(ChangeType(f"dropped_{kind}_macro"), id)
    draft.objects = {key: value for key, value in draft.objects.items() if key[0] != row.schema_id}
    draft.end_rows(draft.tables.macro, draft.tables.macro.c.schema_id == row.schema_id)
    draft.end_rows(draft.tables.schema, draft.tables.schema.c.schema_id == row.schema_id)
    draft.change_schema()
    draft.add_change(ChangeType.DROPPED_SCHEMA, row.schema_id)


def create_table(draft: Draft, operation: CreateTable) -> None:
    """Creates a table with its columns, partition keys and sort keys."""
    schema_id = draft.schema_id(operation.schema)
    key = (schema_id, folded(operation.name))
    if key in draft.objects:
        raise AlreadyExists(
            f"The {draft.objects[key][0]} {operation.schema}.{operation.name} exists already."
        )
    table_id = draft.new_tables[operation] = draft.new_catalog_id()
    draft.objects[key] = ("table", table_id)
    draft.add_row(
        draft.tables.table,
        table_id=table_id,
        table_uuid=str(operation.uuid),
        begin_snapshot=draft.snapshot_id,
        schema_id=schema_id,
        table_name=operation.name,
        path=directory_name(operation.name, operation.uuid),
        path_is_relative=True,
    )
    for column in operation.columns:
        _add_column(draft, table_id, column, parent=None)
    _add_partitioning(draft, table_id, operation)
    _add_sorting(draft, table_id, operation)
    draft.change_schema()
    draft.add_row(
        draft.tables.schema_versions,
        begin_snapshot=draft.snapshot_id,
        schema_version=draft.schema_version,
        table_id=table_id,
    )
    if _will_inline(draft, schema_id, table_id, operation):
        create_inlined_tables(draft, table_id, operation.columns)
    schema = draft.schema_name(operation.schema)
    draft.add_change(ChangeType.CREATED_TABLE, None, schema, operation.name)


def _will_inline(draft: Draft, schema_id: int, table_id: int, operation: CreateTable) -> bool:
    """True if small inserts will be inlined, so that the inlined table is created right away.

    Creating it with the first insert would raise the schema version again, and every client would
    reload the catalog.
    """
    options = draft.state.options
    if options.catalog_option("encrypted") == "true" or not can_inline(operation):
        return False
    return (options.table_options(schema_id, table_id).inlined_rows or 0) > 0


def _add_column(draft: Draft, table_id: int, column: Column, parent: int | None) -> None:
    default = column.default
    is_literal = default is not None and default.kind is DefaultKind.LITERAL
    draft.add_row(
        draft.tables.column,
        column_id=column.id,
        begin_snapshot=draft.snapshot_id,
        table_id=table_id,
        column_order=column.id,
        column_name=column.name,
        column_type=column.type,
        initial_default=default.text if default is not None and is_literal else None,
        # The stock extension writes a missing default as this word.
        default_value="NULL" if default is None else default.text,
        nulls_allowed=column.nullable,
        parent_column=parent,
        default_value_type=_default_type(column),
        default_value_dialect="duckdb",
    )
    for child in column.children:
        _add_column(draft, table_id, child, parent=column.id)


def _add_partitioning(draft: Draft, table_id: int, operation: CreateTable) -> None:
    if not operation.partition_keys:
        return
    partition_id = draft.new_catalog_id()
    draft.add_row(
        draft.tables.partition_info,
        partition_id=partition_id,
        table_id=table_id,
        begin_snapshot=draft.snapshot_id,
    )
    for index, key in enumerate(operation.partition_keys):
        draft.add_row(
            draft.tables.partition_column,
            partition_id=partition_id,
            table_id=table_id,
            partition_key_index=index,
            column_id=key.column_id,
            transform=key.transform,
        )


def _add_sorting(draft: Draft, table_id: int, operation: CreateTable) -> None:
    if not operation.sort_keys:
        return
    sort_id = draft.new_catalog_id()
    draft.add_row(
        draft.tables.sort_info, sort_id=sort_id, table_id=table_id, begin_snapshot=draft.snapshot_id
    )
    for index, key in enumerate(operation.sort_keys):
        draft.add_row(
            draft.tables.sort_expression,
            sort_id=sort_id,
            table_id=table_id,
            sort_key_index=index,
            expression=key.expression,
            dialect="duckdb",
            sort_direction="DESC" if key.descending else "ASC",
            null_order="NULLS_FIRST" if key.nulls_first else "NULLS_LAST",
        )


def drop_table(draft: Draft, operation: DropTable) -> None:
    """Drops a table."""
    key = (draft.schema_id(operation.schema), folded(operation.name))
    kind, table_id = draft.objects.pop(key, ("", 0))
    if kind != "table":
        raise NotFound(
            f"There is no table {operation.schema}.{operation.name}.", identifier="TABLE_NOT_FOUND"
        )
    _end_table(draft, table_id)
    draft.change_schema()


def _end_table(draft: Draft, table_id: int) -> None:
    draft.end_rows(draft.tables.table, draft.tables.table.c.table_id == table_id)
    for name in _PARTS_OF_A_TABLE:
        part: SqlTable = getattr(draft.tables, name)
        draft.end_rows(part, part.c.table_id == table_id)
    draft.end_rows(draft.tables.tag, draft.tables.tag.c.object_id == table_id)
    draft.add_change(ChangeType.DROPPED_TABLE, table_id)


def set_property(draft: Draft, operation: SetProperty) -> None:
    """Replaces the value of an option."""
    scope, scope_id = None, None
    if operation.table_id is not None:
        scope, scope_id = "table", operation.table_id
    elif operation.schema_id is not None:
        scope, scope_id = "schema", operation.schema_id
    metadata = draft.tables.metadata
    draft.add_write(
        delete(metadata).where(
            metadata.c.key == operation.key,
            metadata.c.scope.is_not_distinct_from(scope),
            metadata.c.scope_id.is_not_distinct_from(scope_id),
        )
    )
    draft.add_row(
        metadata, key=operation.key, value=operation.value, scope=scope, scope_id=scope_id
    )


def _default_type(column: Column) -> str:
    if column.children:
        return ""
    return DefaultKind.LITERAL.value if column.default is None else column.default.kind.value
