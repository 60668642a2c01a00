"""The catalogs of the lake on one engine: attached when a statement first names them."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from duckdb import StatementType

from swanlake.engine.instance import METADATA_PREFIX, Engine
from swanlake.errors import CatalogUnreachable, Code, QueryError
from swanlake.lake.lake import Lake
from swanlake.sql.statement import Statement

log = logging.getLogger("swanlake.sessions")

#: Settings of the whole engine without which DuckLake reads no file or no session can be opened.
_ONE_WAY_SETTINGS = ("enable_external_access", "disabled_filesystems", "lock_configuration")


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

        A catalog that was dropped is detached. Raises CatalogUnreachable if one cannot be attached,
        after the others were.
        """
        known = {info.name: self.lake.location(info) for info in self.lake.catalogs()}
        unreachable: CatalogUnreachable | None = None
        for name in names:
            attached, registered = self.engine.attached_location(name), known.get(name)
            if attached == registered or (registered is None and name == self.engine.catalog):
                continue
            if registered is None:
                log.info("the catalog %s was dropped and is detached", name)
                self.engine.detach(name)
                continue
            try:
                self.engine.attach(registered)
            except CatalogUnreachable as failed:
                unreachable = failed
            else:
                log.info("the catalog %s was attached", name)
        if unreachable is not None:
            raise unreachable

    def protect(self, statement: Statement) -> None:
        """Raises for a statement that would take a catalog, or the lake, from the other sessions.

        That is a DETACH, an ATTACH, or a setting of the whole engine that cannot be set back.
        """
        if statement.type == StatementType.SET:
            _refuse_one_way(statement)
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


def _refuse_one_way(statement: Statement) -> None:
    setting = statement.setting_name.split()[-1].strip('"')
    if setting in _ONE_WAY_SETTINGS:
        raise QueryError(
            f"{setting} applies to all sessions and cannot be set back; set it in "
            "ducklake_init_sql.",
            identifier="SETTING_REFUSED",
            code=Code.PERMISSION_DENIED,
        )
