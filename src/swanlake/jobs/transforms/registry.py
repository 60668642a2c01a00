"""Transforms: PySpark functions that change rows on their way from the queue to the lake.

    import swanlake

    @swanlake.transform("main.events")
    def clean(events):
        return events.filter("user_id IS NOT NULL").dropDuplicates(["event_id"])

    @swanlake.transform("main.orders", into=["main.orders", "main.rejected"])
    def sort_out(orders):
        good = orders.amount > 0
        return {"main.orders": orders.filter(good), "main.rejected": orders.filter(~good)}

The module is named by ``SWANLAKE_TRANSFORMS``. This one needs nothing but Python: modules of
transforms can be imported where there is no Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from swanlake.errors import ConfigError
from swanlake.lake.layout import folded

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Transform:
    """A function for the rows of one table, and the tables that its results are for."""

    source: str
    into: tuple[str, ...]
    function: Callable[..., Any]
    #: True if it gives a DataFrame for each of them by name; else it gives just one.
    by_name: bool

    def results(self, given: Any) -> dict[str, Any]:
        """What it gave, by table; raises ValueError if that is not what it declares."""
        if not self.by_name:
            return {self.into[0]: given}
        if not isinstance(given, Mapping):
            raise ValueError(f"it must give a dict of DataFrames for {', '.join(self.into)}")
        named = {folded(name): frame for name, frame in given.items()}
        known = {folded(name): name for name in self.into}
        strange = sorted(set(named) - set(known))
        if strange:
            raise ValueError(f"it gave rows for {strange[0]}, which its `into` does not name")
        return {known[name]: frame for name, frame in named.items()}


#: All transforms that were imported, by their source in lower case.
_registered: dict[str, Transform] = {}


def transform(
    table: str, *, into: str | Sequence[str] | None = None
) -> Callable[[Function], Function]:
    """Registers a function of a DataFrame for the queued rows of a table.

    The table is ``schema.table`` in any catalog, or ``catalog.schema.table``. The function gives a
    DataFrame for the same table or for the one that ``into`` names; if ``into`` is a list, it gives
    a dict with a DataFrame for each of them that gets rows.
    """
    source = _checked(table)
    names = (into,) if isinstance(into, str) else tuple(into or (_in_schema(source),))
    for name in names:
        if len(_parts(name)) != 2:
            raise ConfigError(f"A transform cannot go into {name!r}: name it as schema.table.")

    def register(function: Function) -> Function:
        if folded(source) in _registered:
            raise ConfigError(
                f"The table {source} has a transform already; combine the two in one function."
            )
        by_name = into is not None and not isinstance(into, str)
        _registered[folded(source)] = Transform(source, names, function, by_name)
        return function

    return register


def registered() -> dict[str, Transform]:
    """Every transform by its source, in lower case."""
    return dict(_registered)


def source_of(declared: Mapping[str, Any], catalog: str, schema: str, name: str) -> str | None:
    """The key of the transform for a table: that of its catalog goes before one for any."""
    for key in (folded(f"{catalog}.{schema}.{name}"), folded(f"{schema}.{name}")):
        if key in declared:
            return key
    return None


def _checked(table: str) -> str:
    if len(_parts(table)) not in (2, 3):
        raise ConfigError(
            f"{table!r} is not the name of a table: write schema.table or catalog.schema.table."
        )
    return table


def _in_schema(table: str) -> str:
    return ".".join(_parts(table)[-2:])


def _parts(name: str) -> list[str]:
    return [part for part in name.split(".") if part]
