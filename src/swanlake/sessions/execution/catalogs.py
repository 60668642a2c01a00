"""The catalogs of the lake on one engine: attached when a statement first names them."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from swanlake.engine.instance import METADATA_PREFIX, Engine
from swanlake.errors import CatalogUnreachable, Code, QueryError
from swanlake.lake.lake import Lake
from swanlake.sql.statement import Statement

log = logging.getLogger("swanlake.sessions")


@dataclass(frozen=True)
class LakeCatalogs:
    """The catalogs of the lake, as the sessions of one engine see them."""

    engine: Engine
    lake: Lake

    @property
    def names(self) -> list[str]:
        """The names of all catalogs, attached or not."""
        return [info.name for info in self.lake.catalogs()]

    def attach_named(self, names: set[str]) -> None:
        """Attaches the catalogs among these names, again if one was dropped and recreated.

        A catalog that was dropped is detached.
        """
        known = {info.name: self.lake.location(info) for info in self.lake.catalogs()}
        for name in names:
            attached, registered = self.engine.attached_location(name), known.get(name)
            if attached == registered or (registered is None and name == self.engine.catalog):
                continue
            if registered is None:
                log.info("the catalog %s was dropped and is detached", name)
                self.engine.detach(name)
                continue
            self.engine.attach(registered)
            log.info("the catalog %s was attached", name)

    def protect(self, statement: Statement) -> None:
        """Raises for a DETACH, or an ATTACH, that would take a catalog from the other sessions."""
        if statement.attaches:
            # DuckDB then refuses to give such a name to another database.
            self.attach_named(statement.names)
        if not statement.removes_catalogs:
            return
        for name in statement.names:
            if self.engine.attached_location(name.removeprefix(METADATA_PREFIX)) is not None:
                raise QueryError(
                    f"The catalog {name} is shared by all sessions and cannot be detached.",
                    identifier="CATALOG_IN_USE",
                    code=Code.PERMISSION_DENIED,
                )

    def detach_lost(self) -> bool:
        """Detaches every catalog that cannot be read, except the default one.

        Each is attached again when a statement names it. True if there was one.
        """
        lost = [
            name
            for name in self.engine.attached_names
            if name != self.engine.catalog and not self.engine.is_readable(name)
        ]
        for name in lost:
            log.warning("the catalog %s cannot be read and was detached", name)
            self.engine.detach(name)
        return bool(lost)

    def attach_for_metadata(self, name: str | None) -> None:
        """Attaches one catalog, or all; one that cannot be attached is shown empty."""
        names = self.names if name is None else [name.lower()]
        for name in names:
            try:
                self.attach_named({name})
            except CatalogUnreachable as broken:
                log.warning("%s", broken)
