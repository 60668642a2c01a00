"""A new catalog, and what is checked before an existing one is trusted."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Connection, func, insert, inspect, select, update

from swanlake.errors import CatalogNotWritable
from swanlake.lake.ids import uuid7
from swanlake.lake.reading import property_of
from swanlake.lake.store import CatalogStore
from swanlake.lake.tables import FORMAT_VERSION


def create(connection: Connection, store: CatalogStore, data_path: str) -> None:
    """The tables and rows that the stock extension makes for a new catalog, and the fence."""
    import duckdb  # its revision is all that is needed of it

    tables = store.tables
    tables.everything.create_all(connection, checkfirst=False)
    metadata = {
        "version": FORMAT_VERSION,
        # What the stock extension signs a new catalog with.
        "created_by": f"DuckDB {duckdb.__git_revision__}",
        "data_path": data_path,
        "encrypted": "false",
    }
    connection.execute(
        insert(tables.metadata),
        [
            {"key": key, "value": value, "scope": None, "scope_id": None}
            for key, value in metadata.items()
        ],
    )
    connection.execute(
        insert(tables.snapshot).values(
            snapshot_id=0,
            snapshot_time=datetime.now(UTC),
            schema_version=0,
            next_catalog_id=1,
            next_file_id=0,
        )
    )
    connection.execute(
        insert(tables.snapshot_changes).values(snapshot_id=0, changes_made='created_schema:"main"')
    )
    connection.execute(
        insert(tables.schema).values(
            schema_id=0,
            schema_uuid=str(uuid7()),
            begin_snapshot=0,
            schema_name="main",
            path="main/",
            path_is_relative=True,
        )
    )
    raise_fence(connection, store)


def adopt(connection: Connection, store: CatalogStore) -> None:
    """Adds to a catalog that another program made what SwanLake needs to write to it."""
    check_version(connection, store)
    tables = store.tables
    for table in tables.ours:
        table.create(connection, checkfirst=True)
    for index in (*tables.indexes, *tables.guards):
        index.create(connection, checkfirst=True)
    raise_fence(connection, store)


def raise_fence(connection: Connection, store: CatalogStore) -> None:
    """Puts the fence where the newest snapshot is."""
    snapshot, head = store.tables.snapshot, store.tables.head
    newest = connection.execute(
        select(
            func.max(snapshot.c.snapshot_id).label("snapshot_id"),
            func.max(snapshot.c.next_catalog_id).label("next_catalog_id"),
            func.max(snapshot.c.next_file_id).label("next_file_id"),
        )
    ).one()
    if connection.execute(update(head).values(**newest._asdict())).rowcount == 0:
        connection.execute(insert(head).values(one=1, **newest._asdict()))
    for statement in store.fence_statements():
        connection.execute(statement)


def check_version(connection: Connection, store: CatalogStore) -> None:
    """Raises CatalogNotWritable unless this is a catalog of the format we write."""
    if not inspect(connection).has_table("ducklake_metadata", schema=store.tables.schema_name):
        raise CatalogNotWritable(f"There is no DuckLake catalog in {store.name}.")
    version = property_of(connection, store.tables, "version")
    if version != FORMAT_VERSION:
        raise CatalogNotWritable(
            f"The catalog {store.name} has the format {version!r}; this version of SwanLake writes "
            f"{FORMAT_VERSION!r} and leaves others alone."
        )


def check_writable(connection: Connection, store: CatalogStore) -> None:
    """Raises CatalogNotWritable unless a commit to the catalog is safe."""
    check_version(connection, store)
    if not store.has_fence(connection):
        raise CatalogNotWritable(
            f"The catalog {store.name} has no fence, so other writers could damage what SwanLake "
            f"commits. `swanlake catalog adopt {store.name}` installs it."
        )


def check(connection: Connection, store: CatalogStore) -> list[str]:
    """What is wrong with a catalog, one sentence each; an empty list if nothing is."""
    check_version(connection, store)
    if not store.has_fence(connection):
        return [
            "The fence is missing or not complete: writers can damage the catalog, and SwanLake "
            f"does not write to it. `swanlake catalog adopt {store.name}` installs it."
        ]
    return [*_check_head(connection, store), *_check_duplicates(connection, store)]


def _check_head(connection: Connection, store: CatalogStore) -> list[str]:
    snapshot, head = store.tables.snapshot, store.tables.head
    newest = connection.execute(
        select(snapshot).order_by(snapshot.c.snapshot_id.desc()).limit(1)
    ).one_or_none()
    if newest is None:
        return ["The catalog has no snapshot at all: its metadata is damaged."]
    fenced = connection.execute(select(head)).one_or_none()
    if fenced is None:
        return ["The fence has no head row, so every commit is refused."]
    findings = []
    if fenced.snapshot_id != newest.snapshot_id:
        findings.append(
            f"The fence stands at snapshot {fenced.snapshot_id}, the newest is "
            f"{newest.snapshot_id}: something wrote around the fence."
        )
    for counter in ("next_catalog_id", "next_file_id"):
        highest = connection.execute(select(func.max(snapshot.c[counter]))).scalar_one()
        if getattr(newest, counter) < highest:
            findings.append(
                f"{counter} is {getattr(newest, counter)} in the newest snapshot and {highest} in "
                "an older one: ids would be given twice."
            )
    return findings


def _check_duplicates(connection: Connection, store: CatalogStore) -> list[str]:
    tables = store.tables
    findings = []
    for table, column, meaning in (
        (tables.table, "table_id", "tables share the id"),
        (tables.delete_file, "data_file_id", "delete files are live for data file"),
    ):
        rows = connection.execute(
            select(table.c[column], func.count())
            .where(table.c.end_snapshot.is_(None))
            .group_by(table.c[column])
            .having(func.count() > 1)
        )
        findings += [f"{count} {meaning} {id}." for id, count in rows]
    return findings
