"""Lakes with stock DuckDB attached."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.lake.fixtures import Engines, LakeHarness
from tests.postgres_server import new_database


@pytest.fixture(scope="session")
def sqlite_engines() -> Iterator[Engines]:
    """Stock DuckDB, shared by all lakes in SQLite."""
    engines = Engines()
    yield engines
    engines.close()


@pytest.fixture(scope="session")
def postgres_engines() -> Iterator[Engines]:
    """Stock DuckDB, shared by all lakes in PostgreSQL."""
    engines = Engines()
    yield engines
    engines.close()


@pytest.fixture(scope="module")
def sqlite_harness(
    sqlite_engines: Engines, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LakeHarness]:
    """A lake in SQLite for all tests of a module; each creates its own catalogs."""
    home = tmp_path_factory.mktemp("lake")
    harness = LakeHarness(home / "catalogs", home, sqlite_engines)
    yield harness
    harness.close()


@pytest.fixture(scope="module")
def postgres_harness(
    postgres: str, postgres_engines: Engines, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LakeHarness]:
    """A lake in PostgreSQL for all tests of a module; each creates its own catalogs."""
    with new_database(postgres) as url:
        harness = LakeHarness(url, tmp_path_factory.mktemp("lake"), postgres_engines)
        yield harness
        harness.close()


@pytest.fixture(params=["sqlite", "postgres"])
def shared_harness(request: pytest.FixtureRequest) -> LakeHarness:
    """A lake in SQLite, then one in PostgreSQL."""
    harness: LakeHarness = request.getfixturevalue(f"{request.param}_harness")
    return harness


@pytest.fixture
def harness(shared_harness: LakeHarness) -> Iterator[LakeHarness]:
    """The shared lake, without any catalog or file."""
    shared_harness.clear()
    yield shared_harness
    shared_harness.clear()
