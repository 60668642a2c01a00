"""Lakes with stock DuckDB beside them."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.integration.lake.world import Engines, World


@pytest.fixture(scope="session")
def sqlite_engines() -> Iterator[Engines]:
    """Stock DuckDB for every lake in SQLite in turn."""
    engines = Engines()
    yield engines
    engines.close()


@pytest.fixture(scope="session")
def postgres_engines() -> Iterator[Engines]:
    """Stock DuckDB for every lake in PostgreSQL in turn."""
    engines = Engines()
    yield engines
    engines.close()


@pytest.fixture(scope="module")
def sqlite_world(
    sqlite_engines: Engines, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """A lake in SQLite for all tests of a module; they make catalogs of their own."""
    home = tmp_path_factory.mktemp("world")
    world = World(home / "catalogs", home, sqlite_engines)
    yield world
    world.close()


@pytest.fixture(scope="module")
def postgres_world(
    postgres: str, postgres_engines: Engines, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """A lake in PostgreSQL for all tests of a module; they make catalogs of their own."""
    name = f"test_{uuid4().hex}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        home = tmp_path_factory.mktemp("world")
        world = World(make_conninfo(postgres, dbname=name), home, postgres_engines)
        yield world
        world.close()
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgres"])
def shared_world(request: pytest.FixtureRequest) -> World:
    """Each of the two."""
    world: World = request.getfixturevalue(f"{request.param}_world")
    return world


@pytest.fixture
def world(shared_world: World) -> Iterator[World]:
    """Each of the two, without any catalog or file."""
    shared_world.clear()
    yield shared_world
    shared_world.clear()
