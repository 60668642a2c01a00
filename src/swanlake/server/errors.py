"""Errors as clients receive them: a gRPC status and one sentence, never a traceback.

pyarrow appends `` Detail: `` and a text to every message. For its own Flight errors the text is one
word (``Internal``), but none of them stands for INVALID_ARGUMENT, NOT_FOUND or UNIMPLEMENTED. Those
come only from other Python exceptions, for which the text is ``Python exception: `` and then the
traceback, with file names. pyarrow gets that text from ``traceback.format_exception`` and falls
back to the name of the exception's class when that fails. So the exceptions below make it fail.
Nothing else formats them: they are raised only at the edge of the server. Clients see the class
name at the end. ``tests/integration/test_error_details.py`` shows that pyarrow leaves
no other way.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import pyarrow.flight as flight

from swanlake.errors import Code, SwanLakeError

log = logging.getLogger("swanlake.server")


class _Unformattable(Exception):
    @property
    def __cause__(self) -> BaseException | None:  # type: ignore[override]
        raise RuntimeError("this exception carries no traceback")


class INVALID_ARGUMENT(_Unformattable, ValueError): ...


class UNIMPLEMENTED(_Unformattable, NotImplementedError): ...


class NOT_FOUND(_Unformattable, KeyError):
    def __str__(self) -> str:  # KeyError would put the message in quotes
        return str(self.args[0])


_BUILTIN_ERRORS: dict[Code, type[_Unformattable]] = {
    Code.INVALID_ARGUMENT: INVALID_ARGUMENT,
    Code.UNIMPLEMENTED: UNIMPLEMENTED,
    Code.NOT_FOUND: NOT_FOUND,
}
_FLIGHT_ERRORS = {
    Code.UNAUTHENTICATED: flight.FlightUnauthenticatedError,
    Code.PERMISSION_DENIED: flight.FlightUnauthorizedError,
    Code.CANCELLED: flight.FlightCancelledError,
    Code.DEADLINE_EXCEEDED: flight.FlightTimedOutError,
    Code.UNAVAILABLE: flight.FlightUnavailableError,
    Code.INTERNAL: flight.FlightInternalError,
}


def raise_flight_error(error: SwanLakeError) -> NoReturn:
    """Raises the error in the form that pyarrow sends to the client."""
    if error.code in _BUILTIN_ERRORS:
        raise _BUILTIN_ERRORS[error.code](error.wire_message)
    raise _FLIGHT_ERRORS[error.code](error.wire_message)


@contextmanager
def flight_errors() -> Iterator[None]:
    """Converts every error of the block to one that clients may see."""
    try:
        yield
    except SwanLakeError as error:
        raise_flight_error(error)
    except flight.FlightError:
        raise
    except MemoryError:
        raise_flight_error(
            SwanLakeError(
                "The server has no memory left for the call. Try again later.",
                identifier="CALLER_MEMORY_EXHAUSTED",
                code=Code.UNAVAILABLE,
            )
        )
    except Exception as bug:
        log.exception("a request failed unexpectedly")
        raise_flight_error(
            SwanLakeError(
                f"The server failed unexpectedly ({type(bug).__name__}); its log has the details.",
                identifier="INTERNAL_ERROR",
            )
        )
