"""The options that ``CALL lake.set_option(…)`` sets, on writes and compaction.

``parquet_row_group_size_bytes`` and ``per_thread_output`` are ignored: both lose the order of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Executable, select

from swanlake.lake.metastore.tables import CatalogTables
from swanlake.lake.model.layout import TableOptions


@dataclass(frozen=True)
class StoredOptions:
    """All options of a catalog."""

    #: By key, scope (``schema``, ``table`` or None) and scope id.
    values: Mapping[tuple[str, str | None, int | None], str] = field(default_factory=dict)

    def catalog_option(self, key: str) -> str | None:
        """An option of the whole catalog, such as ``data_path``."""
        return self.values.get((key, None, None))

    @property
    def requires_message(self) -> bool:
        """True if the catalog refuses commits without a message."""
        return self.catalog_option("require_commit_message") == "true"

    def table_options(self, schema_id: int, table_id: int) -> TableOptions:
        """A table's options; they override its schema's, and those the catalog's."""
        scopes = (("table", table_id), ("schema", schema_id), (None, None))

        def find(key: str) -> str | None:
            values = (self.values.get((key, *scope)) for scope in scopes)
            return next((value for value in values if value is not None), None)

        level, rows = find("parquet_compression_level"), find("parquet_row_group_size")
        size, deleted = find("target_file_size"), find("rewrite_delete_threshold")
        inlined = find("data_inlining_row_limit")
        return TableOptions(
            compression=find("parquet_compression"),
            compression_level=None if level is None else int(level),
            version=find("parquet_version"),
            row_group_size=None if rows is None else int(rows),
            target_file_size=None if size is None else int(size),
            deleted_ratio=None if deleted is None else float(deleted),
            inlined_rows=None if inlined is None else int(inlined),
            partition_folders=find("hive_file_pattern") != "false",
            sort_inserts=find("sort_on_insert") != "false",
            auto_compact=find("auto_compact") != "false",
            requires_message=self.requires_message,
        )


def read_options(connection: Connection, tables: CatalogTables) -> StoredOptions:
    """The current options of a catalog."""
    return stored_options(connection.execute(options_statement(tables)))


@lru_cache(maxsize=256)
def options_statement(tables: CatalogTables) -> Executable:
    """The query for all options; it is built once."""
    return select(tables.metadata)


def stored_options(rows: Iterable[Any]) -> StoredOptions:
    """The options in the rows of ``options_statement``."""
    return StoredOptions({(row.key, row.scope, row.scope_id): str(row.value) for row in rows})
