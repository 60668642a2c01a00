"""Errors on their way to a client: the right gRPC code, one sentence, never a traceback.

pyarrow sends its own Flight errors clean. The other codes it derives from builtin exceptions, and
there it appends Python's traceback, file names and all, to the message. It gets that text from
``traceback.format_exception``, and falls back to the bare name of the exception's class when that
fails. So ours make it fail: they are raised at the very edge of the server and are never formatted
by anyone else. The class names are what a client sees at the end of the message.
"""

from __future__ import annotations

from typing import NoReturn

import pyarrow.flight as flight

from swanlake.errors import Code, SwanLakeError


class _Unformattable(Exception):
    @property
    def __cause__(self) -> BaseException | None:  # type: ignore[override]
        raise RuntimeError("this exception carries no traceback")


class INVALID_ARGUMENT(_Unformattable, ValueError): ...


class UNIMPLEMENTED(_Unformattable, NotImplementedError): ...


class NOT_FOUND(_Unformattable, KeyError):
    def __str__(self) -> str:  # KeyError would put the message in quotes
        return str(self.args[0])


_BY_NAME: dict[Code, type[_Unformattable]] = {
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


def raise_on_wire(error: SwanLakeError) -> NoReturn:
    """Raises the error in the form that travels."""
    if error.code in _BY_NAME:
        raise _BY_NAME[error.code](error.wire_message)
    raise _FLIGHT_ERRORS[error.code](error.wire_message)
