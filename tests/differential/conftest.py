"""Pairs of catalogs in both kinds of metabase."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.differential.twins import TwinMaker, Twins


@pytest.fixture(scope="session", params=["sqlite", "postgres"])
def twin_maker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TwinMaker]:
    """One lake of each kind for all tests, which have catalogs of their own in it."""
    home = tmp_path_factory.mktemp("twins")
    if request.param == "sqlite":
        maker = TwinMaker(home / "catalogs", home)
    else:
        url, name = request.getfixturevalue("postgres"), f"twins_{uuid4().hex}"
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        maker = TwinMaker(make_conninfo(url, dbname=name), home)
    yield maker
    maker.close()


@pytest.fixture
def twins(twin_maker: TwinMaker) -> Iterator[Twins]:
    """Two empty catalogs: one of ours, and one of the stock extension."""
    yield twin_maker.make()
    twin_maker.detach()
