"""The catalogs of the lake on one engine: attached when a statement first names them."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from swanlake.access.policy import METADATA_PREFIX
from swanlake.engine.instance import Engine, EngineSealed
from swanlake.errors import AccessDenied, CatalogUnreachable, Code, QueryError
from swanlake.lake.lake import Lake
from swanlake.lake.metastore.location import LakeLocation
from swanlake.sql.statement import Statement

log = logging.getLogger("swanlake.sessions")


@dataclass(frozen=True)
class LakeCatalogs:
    """The catalogs of the lake, as the sessions of one engine see them."""

    engine: Engine
    lake: Lake

    @property
    def names(self) -> list[str]:
        """The names of all catalogs that the sessions may read, attached or not."""
        may_read = self.engine.scope.may_read
        return [info.name for info in self.lake.catalogs() if may_read(info.name)]

    def attach_named(self, names: set[str]) -> None:
        """Attaches the catalogs among these names, again if one was dropped and recreated.

        A catalog that was dropped is detached. Raises, after the others were attached,
        CatalogUnreachable if one cannot be attached, EngineSealed if another engine can attach it,
        and AccessDenied if the sessions may not read it.
        """
        known = {info.name: self.lake.location(info) for info in self.lake.catalogs()}
        unreachable: CatalogUnreachable | None = None
        sealed: list[LakeLocation] = []
        denied = ""
        for name in names:
            attached, registered = self.engine.attached_location(name), known.get(name)
            if registered is not None and not self.engine.scope.may_read(name):
                denied = name
                continue
            if attached == registered or (registered is None and name == self.engine.catalog):
                continue
            if registered is None:
                log.info("the catalog %s was dropped and is detached", name)
                self.engine.detach(name)
                continue
            try:
                self.engine.attach(registered)
            except EngineSealed:
                sealed.append(registered)
            except CatalogUnreachable as failed:
                unreachable = failed
            else:
                log.info("the catalog %s was attached", name)
        if sealed:
            raise EngineSealed(*sealed)
        if unreachable is not None:
            raise unreachable
        if denied:
            raise AccessDenied(f"You may not read the catalog {denied}.")

    def protect(self, statement: Statement) -> None:
        """Raises for a statement that would take a catalog from the other sessions."""
        if statement.attaches:
            # DuckDB then refuses to give such a name to another database.
            self.attach_named(statement.names)
        if not statement.removes_catalogs:
            return
        for name in statement.names:
            if self.engine.attached_location(name.removeprefix(METADATA_PREFIX)) is not None:
                raise QueryError(
                    f"The catalog {name} is shared by all sessions and cannot be detached or "
                    "renamed.",
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
        sealed: list[LakeLocation] = []
        for name in names:
            try:
                self.attach_named({name})
            except EngineSealed as missing:
                sealed += missing.locations
            except AccessDenied:
                continue
            except CatalogUnreachable as broken:
                log.warning("%s", broken)
        if sealed:
            raise EngineSealed(*sealed)
