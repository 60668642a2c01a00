"""Pairs of catalogs in both kinds of metabase."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.differential.catalog_pair import CatalogPair, PairFactory


@pytest.fixture(scope="session", params=["sqlite", "postgres"])
def pair_factory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PairFactory]:
    """One lake per kind of metabase; tests create catalogs in it."""
    home = tmp_path_factory.mktemp("pairs")
    if request.param == "sqlite":
        maker = PairFactory(home / "catalogs", home)
    else:
        url, name = request.getfixturevalue("postgres"), f"pairs_{uuid4().hex}"
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        maker = PairFactory(make_conninfo(url, dbname=name), home)
    yield maker
    maker.close()


@pytest.fixture
def pair(pair_factory: PairFactory) -> Iterator[CatalogPair]:
    """Two empty catalogs: one of ours, and one of the stock extension."""
    yield pair_factory.create()
    pair_factory.detach_all()
