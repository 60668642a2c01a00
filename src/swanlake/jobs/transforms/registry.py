"""Transforms: PySpark functions that change rows on their way from the queue to the lake.

    import swanlake

    @swanlake.transform("main.events")
    def clean(events):
        return events.filter("user_id IS NOT NULL").dropDuplicates(["event_id"])

    @swanlake.transform("main.orders", into=["main.orders", "main.rejected"])
    def sort_out(orders):
        good = orders.amount > 0
        return {"main.orders": orders.filter(good), "main.rejected": orders.filter(~good)}

``SWANLAKE_TRANSFORMS`` names the module. This module does not import Spark, so modules with
transforms can be imported without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from swanlake.errors import ConfigError
from swanlake.lake.model.layout import folded

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Transform:
    """A function for the rows of one table, and the target tables of its results."""

    source: str
    into: tuple[str, ...]
    function: Callable[..., Any]
    #: True if it returns a dict of DataFrames by target; False if it returns one DataFrame.
    by_name: bool

    def results(self, returned: Any) -> dict[str, Any]:
        """The returned DataFrames by target; raises ValueError if they do not fit ``into``."""
        if not self.by_name:
            return {self.into[0]: returned}
        if not isinstance(returned, Mapping):
            raise ValueError(f"it must give a dict of DataFrames for {', '.join(self.into)}")
        named = {folded(name): frame for name, frame in returned.items()}
        known = {folded(name): name for name in self.into}
        undeclared = sorted(set(named) - set(known))
        if undeclared:
            raise ValueError(f"it gave rows for {undeclared[0]}, which its `into` does not name")
        return {known[name]: frame for name, frame in named.items()}


#: All imported transforms, by their source in lower case.
_registered: dict[str, Transform] = {}


def transform(
    table: str, *, into: str | Sequence[str] | None = None
) -> Callable[[Function], Function]:
    """Registers a function of a DataFrame for the queued rows of a table.

    The table is ``schema.table`` in any catalog, or ``catalog.schema.table``. The function gives a
    DataFrame for the same table or for the one that ``into`` names; if ``into`` is a list, it gives
    a dict with a DataFrame for each of them that gets rows.
    """
    parts = _parts(table)
    if len(parts) not in (2, 3):
        raise ConfigError(
            f"{table!r} is not the name of a table: write schema.table or catalog.schema.table."
        )
    names = (into,) if isinstance(into, str) else tuple(into or (".".join(parts[-2:]),))
    for name in names:
        if len(_parts(name)) != 2:
            raise ConfigError(f"A transform cannot go into {name!r}: name it as schema.table.")

    def register(function: Function) -> Function:
        if folded(table) in _registered:
            raise ConfigError(
                f"The table {table} has a transform already; combine the two in one function."
            )
        by_name = into is not None and not isinstance(into, str)
        _registered[folded(table)] = Transform(table, names, function, by_name)
        return function

    return register


def registered() -> dict[str, Transform]:
    """Every transform by its source, in lower case."""
    return dict(_registered)


def find_transform_key(
    declared: Mapping[str, Any], catalog: str, schema: str, name: str
) -> str | None:
    """The key of the transform for a table; one that names the catalog has precedence."""
    keys = (folded(f"{catalog}.{schema}.{name}"), folded(f"{schema}.{name}"))
    return next((key for key in keys if key in declared), None)


def _parts(name: str) -> list[str]:
    return [part for part in name.split(".") if part]
