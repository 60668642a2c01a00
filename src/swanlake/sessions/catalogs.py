"""Catalogs are attached when a statement first names them."""

from __future__ import annotations

import logging

from swanlake.engine.instance import Engine
from swanlake.errors import CatalogUnreachable, Code, QueryError
from swanlake.lake.lake import Lake
from swanlake.sql.statement import Statement

log = logging.getLogger("swanlake.sessions")

#: Before the name of a catalog: the database in which DuckLake reads its metadata.
_METADATA_OF = "__ducklake_metadata_"


def attach_named(engine: Engine, lake: Lake, names: set[str]) -> bool:
    """Attaches the catalogs among these names that the engine lacks, or has from a former life.

    True if the engine then knows more than before. A catalog that was dropped is detached.
    """
    known = {info.name: lake.location(info) for info in lake.catalogs()}
    changed = False
    for name in names:
        attached, registered = engine.attached(name), known.get(name)
        if attached == registered or (registered is None and name == engine.catalog):
            continue
        if registered is None:
            log.info("the catalog %s is gone and was detached", name)
            engine.detach(name)
            continue
        engine.attach(registered)
        log.info("the catalog %s was attached", name)
        changed = True
    return changed


def keep_catalogs(engine: Engine, lake: Lake, statement: Statement) -> None:
    """Refuses to take a catalog of the lake, or its name, away from the other sessions."""
    if statement.attaches:
        # DuckDB itself then refuses to give such a name to another database.
        attach_named(engine, lake, statement.names)
    if not statement.removes_catalogs:
        return
    for name in statement.names:
        if engine.attached(name.removeprefix(_METADATA_OF)) is not None:
            raise QueryError(
                f"The catalog {name} is shared by all sessions and stays attached.",
                identifier="CATALOG_IN_USE",
                code=Code.PERMISSION_DENIED,
            )


def detach_lost(engine: Engine) -> bool:
    """Detaches every catalog that cannot be read, but for the one in which sessions begin.

    It is attached again when it is next named and can be. True if there was one.
    """
    lost = [
        name
        for name in engine.attached_names
        if name != engine.catalog and not engine.can_read(name)
    ]
    for name in lost:
        log.warning("the catalog %s cannot be read and was detached", name)
        engine.detach(name)
    return bool(lost)


def attach_for_metadata(engine: Engine, lake: Lake, name: str | None) -> None:
    """Attaches the catalog whose content is asked for, or all; one that cannot be looks empty."""
    names = [info.name for info in lake.catalogs()] if name is None else [name.lower()]
    for name in names:
        try:
            attach_named(engine, lake, {name})
        except CatalogUnreachable as broken:
            log.warning("%s", broken)
