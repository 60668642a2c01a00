"""The bytes that a server keeps in memory for its callers: one budget, with fair shares."""

from __future__ import annotations

import threading
from types import TracebackType

from swanlake._internal.fair_shares import TIMES_FREE, FairShares
from swanlake.errors import InvalidRequest, ServerUnavailable

_IDENTIFIER = "CALLER_MEMORY_EXHAUSTED"
#: What can go to disk takes no more than is free, half of the budget for one caller alone. The rest
#: is for what cannot.
_SPILLABLE_TIMES_FREE = 1


class MemoryBudget:
    """Counts bytes by caller, and decides whether a caller may have more."""

    def __init__(self, limit: int) -> None:
        # Reentrant: a garbage collection inside the lock may drop a charge, which then releases.
        self._lock = threading.RLock()
        self._shares = FairShares(limit)

    @property
    def limit(self) -> int:
        return self._shares.limit

    def held(self) -> dict[str, int]:
        """The callers that have bytes in memory, and how many."""
        with self._lock:
            return {str(caller): held for caller, held in self._shares.as_dict().items()}

    def account(self, caller: str) -> MemoryAccount:
        """The account of one caller."""
        return MemoryAccount(self, caller)

    def charge(self, caller: str, size: int, times_free: int) -> bool:
        """Charges a caller; False, and nothing is charged, if that is more than its fair share."""
        with self._lock:
            if not self._shares.fits(caller, size, times_free):
                return False
            self._shares.add(caller, size)
            return True

    def release(self, caller: str, size: int) -> None:
        """Gives back what was charged."""
        with self._lock:
            self._shares.add(caller, -size)

    def refusal(self, what: str, size: int) -> InvalidRequest | ServerUnavailable:
        """The error for bytes that cannot go to disk and exceed the caller's share."""
        needs = f"{what} need at least {size:,} bytes of memory"
        if not self._shares.could_fit(size):
            return InvalidRequest(
                f"{needs}, more than a caller may ever have of caller_memory_bytes "
                f"({self.limit:,}). Send less at once.",
                identifier=_IDENTIFIER,
            )
        return ServerUnavailable(
            f"{needs}, more than the caller's share of caller_memory_bytes ({self.limit:,}) has "
            "left. Read or close results that are open, or try again later.",
            identifier=_IDENTIFIER,
        )


class MemoryAccount:
    """What is charged to one caller."""

    def __init__(self, budget: MemoryBudget, caller: str) -> None:
        self.budget = budget
        self.caller = caller

    def open(self) -> Charge:
        """A charge of nothing, to which bytes are added."""
        return Charge(self)


class Charge:
    """Bytes that are charged until they are released, or until this object is dropped."""

    def __init__(self, account: MemoryAccount) -> None:
        self._account = account
        self.caller = account.caller
        self.bytes = 0

    def add(self, size: int) -> bool:
        """Charges more; False, and nothing is charged, if the bytes must go to disk instead."""
        return self._charge(size, _SPILLABLE_TIMES_FREE)

    def _charge(self, size: int, times_free: int) -> bool:
        is_charged = self._account.budget.charge(self._account.caller, size, times_free)
        self.bytes += size if is_charged else 0
        return is_charged

    def demand(self, size: int, what: str) -> None:
        """Charges bytes that cannot go to disk, or raises that ``what`` needs too much."""
        if not self._charge(size, TIMES_FREE):
            raise self._account.budget.refusal(what, self.bytes + size)

    def release(self, size: int | None = None) -> None:
        """Gives back a part, or all."""
        size = self.bytes if size is None else size
        self.bytes -= size
        self._account.budget.release(self._account.caller, size)

    def __enter__(self) -> Charge:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def __del__(self) -> None:
        # Results and parameters are not always closed: a statement may fail between two rows.
        self.release()
