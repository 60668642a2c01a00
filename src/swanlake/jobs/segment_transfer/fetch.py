"""The worker's side of a loan: files of the server, fetched over Flight.

It runs where there may be no more of our dependencies than pyarrow.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import pyarrow as pa
import pyarrow.flight as flight

from swanlake.errors import PipelineFailed
from swanlake.pipeline.loans import FETCH, Loan
from swanlake.pipeline.scratch import scratch_directory

_CALL_SECONDS = 60.0
#: A connection that is slower than this is no connection.
_BYTES_PER_SECOND = 1_000_000
#: What gRPC puts behind a message: addresses and places in its own source.
_APPENDED = (" gRPC client debug context:", " Client context:", " Detail: Python exception:")


@contextmanager
def fetched(loan: Loan, name: str, size: int) -> Iterator[str]:
    """The path of a copy of a lent file, which is there as long as the block runs.

    Raises PipelineFailed if it cannot be had whole.
    """
    with tempfile.NamedTemporaryFile(dir=scratch_directory(), prefix="swanlake-segment-") as copy:
        try:
            _fetch(loan, name, size, copy)
            copy.flush()
        except (flight.FlightError, pa.ArrowException, OSError) as failed:
            raise PipelineFailed(_complaint(loan, name, failed)) from None
        found = copy.tell()
        if found != size:
            raise PipelineFailed(
                f"The segment {name} ended after {found} of {size} bytes on its way from "
                f"{loan.url} to {socket.gethostname()}."
            )
        yield copy.name


def _fetch(loan: Loan, name: str, size: int, sink: IO[bytes]) -> None:
    options = flight.FlightCallOptions(
        timeout=_CALL_SECONDS + size / _BYTES_PER_SECOND,
        headers=[(b"authorization", f"Bearer {loan.token}".encode())],
    )
    with flight.FlightClient(loan.url, tls_root_certs=loan.certificates) as client:
        for piece in client.do_action(flight.Action(FETCH, name.encode()), options):
            sink.write(memoryview(piece.body))


def _complaint(loan: Loan, name: str, failed: Any) -> str:
    reason = str(failed)
    for appended in _APPENDED:
        reason = reason.split(appended)[0]
    reason = " ".join(reason.split()).removesuffix(".")
    advice = ""
    if isinstance(failed, flight.FlightUnavailableError | flight.FlightTimedOutError):
        advice = " The server's setting advertised_url says where workers look for it."
    return (
        f"A worker on {socket.gethostname()} does not see the file of segment {name}, and cannot "
        f"fetch it from {loan.url}: {reason}.{advice}"
    )
