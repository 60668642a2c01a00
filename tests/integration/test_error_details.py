"""What pyarrow appends to the messages of a Flight server, which no server can avoid.

If one of these tests fails with a new pyarrow, ``swanlake.server.errors`` may become simpler.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

#: How a pyarrow client raises INVALID_ARGUMENT, NOT_FOUND and UNIMPLEMENTED.
CODES = (pa.ArrowInvalid, pa.ArrowKeyError, pa.ArrowNotImplementedError)


class FailingServer(flight.FlightServerBase):
    """Fails every request with the same exception."""

    error: BaseException

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        raise self.error


def exceptions() -> list[BaseException]:
    """An instance of every exception of Python and pyarrow that takes a message."""
    found: list[BaseException] = []
    names = {**vars(builtins), **vars(pa.lib), **vars(flight)}
    for kind in {value for value in names.values() if isinstance(value, type)}:
        if issubclass(kind, Exception):
            try:
                found.append(kind("a sentence"))
            except TypeError:
                continue
    return found


@pytest.fixture(scope="module")
def server() -> Iterator[FailingServer]:
    with FailingServer("grpc://127.0.0.1:0") as server:
        yield server


def message(server: FailingServer, error: BaseException) -> tuple[type, str]:
    server.error = error
    with (
        flight.FlightClient(f"grpc://127.0.0.1:{server.port}") as client,
        pytest.raises((pa.ArrowException, OSError)) as received,
    ):
        client.get_flight_info(flight.FlightDescriptor.for_command(b"command"))
    return received.type, str(received.value)


def test_no_exception_gives_a_code_of_statement_errors_without_a_detail(
    server: FailingServer,
) -> None:
    received = [message(server, error) for error in exceptions()]
    with_code = [text for kind, text in received if issubclass(kind, CODES)]
    assert len(with_code) >= len(CODES)
    assert all("Detail: Python exception: " in text for text in with_code)


def test_every_flight_error_with_a_code_has_a_detail(server: FailingServer) -> None:
    errors = [error for error in exceptions() if isinstance(error, flight.FlightError)]
    texts = [message(server, error)[1] for error in errors if type(error) is not flight.FlightError]
    assert texts
    assert all(text.startswith("a sentence. Detail: ") for text in texts)
