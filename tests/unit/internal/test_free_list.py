"""Objects return to the free list after use, and are closed when they cannot."""

from __future__ import annotations

import pytest

from swanlake._internal.free_list import FreeList


class Resource:
    closed = False

    def close(self) -> None:
        self.closed = True


def test_returned_object_is_used_again() -> None:
    resources = FreeList(Resource)
    with resources.borrow() as first:
        pass
    with resources.borrow() as second, resources.borrow() as third:
        assert second is first
        assert third is not first


def test_object_is_closed_when_the_block_raises() -> None:
    resources = FreeList(Resource)
    with pytest.raises(KeyboardInterrupt), resources.borrow() as failed:
        raise KeyboardInterrupt
    with resources.borrow() as replacement:
        assert replacement is not failed
    assert failed.closed


def test_objects_beyond_the_limit_are_closed() -> None:
    resources = FreeList(Resource, limit=1)
    with resources.borrow() as first, resources.borrow() as second:
        pass
    assert (first.closed, second.closed) == (True, False)


def test_object_that_cannot_be_reused_is_closed() -> None:
    with FreeList(Resource, is_reusable=lambda returned: False).borrow() as used:
        pass
    assert used.closed


def test_close_closes_the_free_objects() -> None:
    resources = FreeList(Resource)
    with resources.borrow() as free:
        pass
    resources.close()
    assert free.closed
