"""Catalogs are attached when a statement first names them."""

from __future__ import annotations

import logging

from swanlake.engine.instance import Engine
from swanlake.errors import CatalogUnreachable
from swanlake.lake.lake import Lake

log = logging.getLogger("swanlake.sessions")


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
