"""Creates and adopts catalogs, and checks them."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Connection, func, insert, inspect, select, update

from swanlake.errors import CatalogNotWritable
from swanlake.lake.metastore.store import CatalogStore
from swanlake.lake.metastore.tables import FORMAT_VERSION
from swanlake.lake.model.ids import uuid7
from swanlake.lake.read.metadata import read_catalog_option


def create(connection: Connection, store: CatalogStore, data_path: str) -> None:
    """Creates the tables and rows of a new catalog, as the stock extension does, and the fence."""
    import duckdb  # only its revision is needed

    tables = store.tables
    tables.everything.create_all(connection, checkfirst=False)
    metadata = {
        "version": FORMAT_VERSION,
        # As the stock extension signs a new catalog.
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
    install_fence(connection, store)


def adopt(connection: Connection, store: CatalogStore) -> None:
    """Adds what SwanLake needs to write to a catalog that another program created."""
    check_version(connection, store)
    tables = store.tables
    for table in tables.ours:
        table.create(connection, checkfirst=True)
    for index in (*tables.indexes, *tables.guards):
        index.create(connection, checkfirst=True)
    install_fence(connection, store)


def install_fence(connection: Connection, store: CatalogStore) -> None:
    """Installs the fence, at the newest snapshot."""
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
    """Raises CatalogNotWritable unless this is a catalog in the format that SwanLake writes."""
    if not inspect(connection).has_table("ducklake_metadata", schema=store.tables.schema_name):
        raise CatalogNotWritable(f"{store.name} is not a DuckLake catalog.")
    version = read_catalog_option(connection, store.tables, "version")
    if version != FORMAT_VERSION:
        raise CatalogNotWritable(
            f"The catalog {store.name} has the format {version!r}; this version of SwanLake writes "
            f"{FORMAT_VERSION!r} only."
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
    """What is wrong with a catalog, one sentence each; empty if nothing is."""
    check_version(connection, store)
    if not store.has_fence(connection):
        return [
            "The fence is missing or incomplete: writers can damage the catalog, and SwanLake "
            f"does not write to it. `swanlake catalog adopt {store.name}` installs it."
        ]
    return [*_check_head(connection, store), *_check_duplicates(connection, store)]


def _check_head(connection: Connection, store: CatalogStore) -> list[str]:
    snapshot, head = store.tables.snapshot, store.tables.head
    newest = connection.execute(
        select(snapshot).order_by(snapshot.c.snapshot_id.desc()).limit(1)
    ).one_or_none()
    if newest is None:
        return ["The catalog has no snapshot: its metadata is damaged."]
    fenced = connection.execute(select(head)).one_or_none()
    if fenced is None:
        return ["The fence has no head row, so every commit is refused."]
    findings = []
    if fenced.snapshot_id != newest.snapshot_id:
        findings.append(
            f"The fence is at snapshot {fenced.snapshot_id}, the newest is "
            f"{newest.snapshot_id}: a writer bypassed the fence."
        )
    for counter in ("next_catalog_id", "next_file_id"):
        highest = connection.execute(select(func.max(snapshot.c[counter]))).scalar_one()
        if getattr(newest, counter) < highest:
            findings.append(
                f"{counter} is {getattr(newest, counter)} in the newest snapshot and {highest} in "
                "an older one: ids would be assigned twice."
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
