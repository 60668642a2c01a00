"""A server and stock DuckDB for each configuration that scripts run in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.postgres_server import new_database
from tests.server_process import ServerProcess
from tests.sqllogic.runner import Pair
from tests.sqllogic.sides import StockLake

_CHOICES = (("sqlite", "postgres"), ("files", "inlined"), ("native", "extension"))
#: Both databases, rows in files and in the metadata; the others are slow tests.
_QUICK = {("sqlite", "files", "native"), ("postgres", "inlined", "native")}

#: Makes a pair of catalogs with a name: ``pairs("dml")``.
PairFactory = Callable[[str], Pair]


def configurations() -> list[Any]:
    """Every configuration, as parameters of a test."""
    return [
        pytest.param(words, id="-".join(words), marks=[] if words in _QUICK else pytest.mark.slow)
        for words in product(*_CHOICES)
    ]


@pytest.fixture(scope="module", params=configurations())
def pairs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PairFactory]:
    """Makes pairs of catalogs in one server and in one stock DuckDB."""
    words = frozenset(request.param)
    home = tmp_path_factory.mktemp("sqllogic")
    environment = {"SWANLAKE_NATIVE_STATEMENTS": "on" if "native" in words else "off"}
    with ExitStack() as cleanup:
        database = None
        if "postgres" in words:
            database = cleanup.enter_context(new_database(request.getfixturevalue("postgres")))
            environment["SWANLAKE_METABASE_URL"] = database
        stock_home = home / "stock"
        stock_home.mkdir()
        stock = StockLake(stock_home, database)
        cleanup.callback(stock.close)
        server = cleanup.enter_context(ServerProcess(home / "server", **environment))

        def pair(name: str) -> Pair:
            return Pair(server, stock, name, Path(home), words)

        yield pair
