"""A changed catalog is refreshed by one caller while the others wait."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from swanlake.engine.catalog_refresh import CatalogRefreshes
from swanlake.errors import QueryCancelled
from tests.waiting import eventually


def never_cancelled() -> None:
    pass


class Catalog:
    """Records its refreshes, each of which blocks until the test lets it finish."""

    def __init__(self) -> None:
        self.reads_started: list[str] = []
        self.may_finish = threading.Event()

    def read(self, name: str) -> None:
        self.reads_started.append(name)
        assert self.may_finish.wait(120)


def test_unchanged_catalog_is_not_read() -> None:
    catalog = Catalog()
    refreshes = CatalogRefreshes(catalog.read)
    refreshes.refresh("sales", never_cancelled)
    refreshes.mark_changed("stock")
    refreshes.refresh("sales", never_cancelled)
    assert (catalog.reads_started, refreshes.stale_catalogs) == ([], ["stock"])


def test_concurrent_callers_share_one_read() -> None:
    catalog = Catalog()
    refreshes = CatalogRefreshes(catalog.read)
    for _ in range(3):
        refreshes.mark_changed("sales")
    with ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(refreshes.refresh, "sales", never_cancelled) for _ in range(8)]
        eventually(lambda: catalog.reads_started)
        catalog.may_finish.set()
        for future in waiting:
            future.result(120)
    assert (catalog.reads_started, refreshes.stale_catalogs) == (["sales"], [])


def test_change_during_a_read_causes_another_read() -> None:
    catalog = Catalog()
    refreshes = CatalogRefreshes(catalog.read)
    refreshes.mark_changed("sales")
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(refreshes.refresh, "sales", never_cancelled)
        eventually(lambda: catalog.reads_started)
        refreshes.mark_changed("sales")
        catalog.may_finish.set()
        first.result(120)
    assert refreshes.stale_catalogs == ["sales"]
    refreshes.refresh("sales", never_cancelled)
    assert (catalog.reads_started, refreshes.stale_catalogs) == (["sales", "sales"], [])


def test_failed_read_is_retried_by_the_next_caller() -> None:
    failures = [RuntimeError("the database is away")]

    def read(name: str) -> None:
        if failures:
            raise failures.pop()

    refreshes = CatalogRefreshes(read)
    refreshes.mark_changed("sales")
    with pytest.raises(RuntimeError):
        refreshes.refresh("sales", never_cancelled)
    assert refreshes.stale_catalogs == ["sales"]
    refreshes.refresh("sales", never_cancelled)
    assert refreshes.stale_catalogs == []


def test_waiter_can_be_cancelled() -> None:
    catalog = Catalog()
    refreshes = CatalogRefreshes(catalog.read)
    refreshes.mark_changed("sales")

    def cancelled() -> None:
        raise QueryCancelled("no longer wanted")

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(refreshes.refresh, "sales", never_cancelled)
        eventually(lambda: catalog.reads_started)
        with pytest.raises(QueryCancelled):
            refreshes.refresh("sales", cancelled)
        catalog.may_finish.set()
        first.result(120)
