"""What ``CALL lake.set_option(…)`` set: how rows are written, and when files are compacted.

``parquet_row_group_size_bytes`` and ``per_thread_output`` are not among it: with both, rows lose
the order that they keep in everything that is written here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Executable, select

from swanlake.lake.layout import TableOptions
from swanlake.lake.tables import CatalogTables


@dataclass(frozen=True)
class StoredOptions:
    """All options of a catalog."""

    #: By key, scope (``schema`` or ``table``) and the id of that; the catalog's own have neither.
    values: Mapping[tuple[str, str | None, int | None], str] = field(default_factory=dict)

    def of_catalog(self, key: str) -> str | None:
        """One that is for the whole catalog, such as ``data_path``."""
        return self.values.get((key, None, None))

    def of_table(self, schema_id: int, table_id: int) -> TableOptions:
        """A table's own options go before those of its schema, and these before the catalog's."""
        scopes = (("table", table_id), ("schema", schema_id), (None, None))

        def find(key: str) -> str | None:
            found = (self.values.get((key, *scope)) for scope in scopes)
            return next((value for value in found if value is not None), None)

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
        )


def read_options(connection: Connection, tables: CatalogTables) -> StoredOptions:
    """All options of a catalog, as they are now."""
    return stored_options(connection.execute(options_statement(tables)))


@lru_cache(maxsize=256)
def options_statement(tables: CatalogTables) -> Executable:
    """The query for all options; it is built once."""
    return select(tables.metadata)


def stored_options(rows: Iterable[Any]) -> StoredOptions:
    """The options that the query gave."""
    return StoredOptions({(row.key, row.scope, row.scope_id): str(row.value) for row in rows})
