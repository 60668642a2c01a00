"""A catalog that changed is read by one, and the others wait."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from swanlake.engine.catalog_reads import CatalogReads
from swanlake.errors import QueryCancelled
from tests.flight import eventually


def nothing() -> None:
    pass


class Catalog:
    """Counts how often it is read, and takes its time until it is told to go on."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.may_end = threading.Event()

    def read(self, name: str) -> None:
        self.begun.append(name)
        assert self.may_end.wait(10)


def test_what_did_not_change_is_not_read() -> None:
    catalog = Catalog()
    reads = CatalogReads(catalog.read)
    reads.catch_up("sales", nothing)
    reads.changed("stock")
    reads.catch_up("sales", nothing)
    assert (catalog.begun, reads.pending) == ([], ["stock"])


def test_one_reads_for_all() -> None:
    catalog = Catalog()
    reads = CatalogReads(catalog.read)
    for _ in range(3):
        reads.changed("sales")
    with ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(reads.catch_up, "sales", nothing) for _ in range(8)]
        eventually(lambda: catalog.begun)
        catalog.may_end.set()
        for one in waiting:
            one.result(10)
    assert (catalog.begun, reads.pending) == (["sales"], [])


def test_what_changes_while_it_is_read_is_read_again() -> None:
    catalog = Catalog()
    reads = CatalogReads(catalog.read)
    reads.changed("sales")
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(reads.catch_up, "sales", nothing)
        eventually(lambda: catalog.begun)
        reads.changed("sales")
        catalog.may_end.set()
        first.result(10)
    assert reads.pending == ["sales"]
    reads.catch_up("sales", nothing)
    assert (catalog.begun, reads.pending) == (["sales", "sales"], [])


def test_a_reader_that_fails_leaves_it_to_the_next() -> None:
    failures = [RuntimeError("the database is away")]

    def read(name: str) -> None:
        if failures:
            raise failures.pop()

    reads = CatalogReads(read)
    reads.changed("sales")
    with pytest.raises(RuntimeError):
        reads.catch_up("sales", nothing)
    assert reads.pending == ["sales"]
    reads.catch_up("sales", nothing)
    assert reads.pending == []


def test_who_waits_can_give_up() -> None:
    catalog = Catalog()
    reads = CatalogReads(catalog.read)
    reads.changed("sales")

    def unwanted() -> None:
        raise QueryCancelled("no longer wanted")

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(reads.catch_up, "sales", nothing)
        eventually(lambda: catalog.begun)
        with pytest.raises(QueryCancelled):
            reads.catch_up("sales", unwanted)
        catalog.may_end.set()
        first.result(10)
