"""Credentials, keys and other facts that are loaded again when they are too old."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from swanlake.errors import ServerUnavailable

T = TypeVar("T")

log = logging.getLogger("swanlake.access")

#: How long a caller waits for a load when there is a value that it can use instead, and when not.
_PATIENCE_SECONDS = 2.0
_FIRST_LOAD_SECONDS = 30.0


class Refreshed(Generic[T]):
    """The last result of ``load``, loaded again by the first caller that finds it too old.

    Callers that miss something in the value use ``get_newer``, which loads it again only if it is
    older than ``min_age``: wrong secrets cannot cause a load each. While loads fail or hang,
    callers get the old value without waiting, for up to ``outage`` seconds.
    """

    def __init__(
        self,
        what: str,
        load: Callable[[], T],
        *,
        max_age: float,
        min_age: float,
        outage: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._load = load
        self._max_age = max_age
        self._min_age = min_age
        self._outage = outage
        self._clock = clock
        self._lock = threading.Lock()
        #: The value, and the time at which its load began.
        self._loaded: tuple[T, float] | None = None
        self._loading: threading.Event | None = None
        #: Values whose load began before this are too old.
        self._outdated_before = float("-inf")
        #: The last load's error, and its time; None if it succeeded.
        self._failed: tuple[Exception, float] | None = None

    def get(self) -> T:
        """The value, at most ``max_age`` old; raises ServerUnavailable if it cannot be loaded."""
        return self._get(self._max_age)

    def get_newer(self) -> T:
        """The value, at most ``min_age`` old."""
        return self._get(self._min_age)

    def invalidate(self) -> None:
        """The value is outdated: the next caller loads it again."""
        self._outdated_before = self._clock()

    def _get(self, max_age: float) -> T:
        value = self._current_value(max_age)
        if value is not None:
            return value[0]
        usable = self._value_within(max(max_age, self._outage))
        with self._lock:
            failing = self._failed is not None
            if self._current_value(max_age) is None and self._loading is None and self._may_load():
                self._loading = threading.Event()
                threading.Thread(
                    target=self._reload, args=(self._loading,), name="swanlake-refresh", daemon=True
                ).start()
            loading = self._loading
        if loading is not None and (usable is None or not failing):
            loading.wait(_FIRST_LOAD_SECONDS if usable is None else _PATIENCE_SECONDS)
            if loading.is_set() and self._failed is None and self._loaded is not None:
                if self._loaded[1] < self._outdated_before:
                    return self._get(max_age)  # that load began too early
                return self._loaded[0]  # even if its load took longer than it may be old
        value = self._value_within(max(max_age, self._outage)) or usable
        if value is not None:
            return value[0]
        reason = "it takes too long" if self._failed is None else str(self._failed[0])
        raise ServerUnavailable(
            f"{self._what} cannot be read at the moment: {reason}",
            identifier="CREDENTIALS_UNAVAILABLE",
        )

    def _current_value(self, age: float) -> tuple[T, float] | None:
        value = self._value_within(age)
        return value if value is not None and value[1] >= self._outdated_before else None

    def _value_within(self, age: float) -> tuple[T, float] | None:
        loaded = self._loaded
        return loaded if loaded is not None and self._clock() - loaded[1] <= age else None

    def _may_load(self) -> bool:
        """True unless a load failed within ``min_age``."""
        return self._failed is None or self._clock() - self._failed[1] >= self._min_age

    def _reload(self, done: threading.Event) -> None:
        began = self._clock()
        try:
            self._loaded = self._load(), began
            if self._failed is not None:
                log.info("%s can be read again", self._what)
            self._failed = None
        except Exception as error:  # noqa: BLE001 - its text is logged and sent
            if self._failed is None:
                log.warning("%s cannot be read: %s", self._what, error)
            self._failed = error, self._clock()
        with self._lock:
            self._loading = None
        done.set()
