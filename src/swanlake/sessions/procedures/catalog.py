"""``CALL swanlake_…``: catalogs, schemas and snapshots, from any Flight SQL client."""

from __future__ import annotations

import pyarrow as pa

from swanlake.access.identity import Privilege, Role
from swanlake.access.policy import check_new_name
from swanlake.engine.instance import Engine
from swanlake.errors import AlreadyExists, Code, QueryError
from swanlake.lake.metastore.base import CatalogInfo, checked_name
from swanlake.lake.read.listing import SNAPSHOT_COLUMNS, snapshot_rows
from swanlake.sessions.procedures.base import Procedure, ProcedureContext, Rows

_CATALOG = pa.schema(
    [
        ("catalog_name", pa.string()),
        ("parent_name", pa.string()),
        ("parent_snapshot", pa.int64()),
        ("data_path", pa.string()),
        ("created_at", pa.timestamp("us", tz="UTC")),
    ]
)
_COMMITTED = pa.schema([("catalog_name", pa.string()), ("snapshot_id", pa.int64())])


def _catalog_rows(context: ProcedureContext, infos: list[CatalogInfo]) -> Rows:
    readable = (info for info in context.lake.catalogs() if context.may_read(info.name))
    names = {info.id: info.name for info in readable}
    return [
        {
            "catalog_name": info.name,
            "parent_name": None if info.parent is None else names.get(info.parent),
            "parent_snapshot": info.parent_snapshot,
            "data_path": info.data_path,
            "created_at": info.created_at,
        }
        for info in infos
    ]


def _catalogs(context: ProcedureContext) -> Rows:
    infos = [info for info in context.lake.catalogs() if context.may_read(info.name)]
    return _catalog_rows(context, infos)


def _check_free(engine: Engine, name: str) -> None:
    """Raises if a database of that name is attached: statements would use it for the catalog."""
    name = checked_name(name)
    if engine.has_unrelated_database(name):
        raise AlreadyExists(
            f"A database {name} is attached to this server; DETACH it or choose another name."
        )


def _create_catalog(context: ProcedureContext, name: str) -> Rows:
    _check_free(context.engine, name)
    return _catalog_rows(context, [context.lake.create_catalog(name).info])


def _fork_catalog(context: ProcedureContext, parent: str, name: str, at: int | None) -> Rows:
    _check_free(context.engine, name)
    return _catalog_rows(context, [context.lake.fork_catalog(parent, name, at).info])


def _drop_catalog(context: ProcedureContext, name: str) -> Rows:
    if name.lower() == context.engine.catalog:
        raise QueryError(
            f"The catalog {name} is the default catalog of all sessions and cannot be dropped.",
            identifier="CATALOG_IN_USE",
            code=Code.PERMISSION_DENIED,
        )
    info = context.lake.drop_catalog(name)
    for engine in context.engines():
        engine.detach(info.name)
    return _catalog_rows(context, [info])


def _create_schema(context: ProcedureContext, catalog: str, name: str) -> Rows:
    context.require(catalog, Privilege.WRITE)
    check_new_name("schema", name)
    done = context.lake.catalog(catalog).create_schema(name)
    return [{"catalog_name": catalog, "snapshot_id": done.snapshot_id}]


def _drop_schema(context: ProcedureContext, catalog: str, name: str, cascade: bool | None) -> Rows:
    context.require(catalog, Privilege.WRITE)
    done = context.lake.catalog(catalog).drop_schema(name, cascade=bool(cascade))
    return [{"catalog_name": catalog, "snapshot_id": done.snapshot_id}]


def _snapshots(context: ProcedureContext, catalog: str | None) -> Rows:
    catalog = catalog or context.engine.catalog
    context.require(catalog, Privilege.READ)
    return snapshot_rows(context.lake.catalog(catalog).snapshots())


CATALOG_PROCEDURES = (
    Procedure("swanlake_catalogs", (), 0, _CATALOG, False, Role.READER, _catalogs, reads=True),
    Procedure("swanlake_create_catalog", ("name",), 0, _CATALOG, True, Role.ADMIN, _create_catalog),
    Procedure(
        "swanlake_fork_catalog",
        ("parent", "name", "at"),
        1,
        _CATALOG,
        True,
        Role.ADMIN,
        _fork_catalog,
    ),
    Procedure("swanlake_drop_catalog", ("name",), 0, _CATALOG, True, Role.ADMIN, _drop_catalog),
    Procedure(
        "swanlake_create_schema",
        ("catalog", "name"),
        0,
        _COMMITTED,
        True,
        Role.WRITER,
        _create_schema,
    ),
    Procedure(
        "swanlake_drop_schema",
        ("catalog", "name", "cascade"),
        1,
        _COMMITTED,
        True,
        Role.WRITER,
        _drop_schema,
    ),
    Procedure(
        "swanlake_snapshots",
        ("catalog",),
        1,
        SNAPSHOT_COLUMNS,
        False,
        Role.READER,
        _snapshots,
        reads=True,
    ),
)
