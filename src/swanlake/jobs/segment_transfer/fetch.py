"""The worker's side of a transfer grant: fetches files of the server over Flight.

Of our dependencies, only pyarrow may be installed on a worker.
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
from swanlake.jobs.segment_transfer.grants import FETCH_SEGMENT, TransferGrant
from swanlake.jobs.spark.worker import scratch_directory

_CALL_SECONDS = 60.0
#: The timeout of a call allows for this transfer rate.
_MIN_BYTES_PER_SECOND = 1_000_000
#: What gRPC appends to a message: addresses and locations in its source.
_GRPC_SUFFIXES = (" gRPC client debug context:", " Client context:", " Detail: Python exception:")


@contextmanager
def fetched_segment(grant: TransferGrant, name: str, size: int) -> Iterator[str]:
    """The path of a temporary copy of a granted file, deleted after the block.

    Raises PipelineFailed if the file cannot be fetched completely.
    """
    with tempfile.NamedTemporaryFile(dir=scratch_directory(), prefix="swanlake-segment-") as copy:
        try:
            _fetch(grant, name, size, copy)
            copy.flush()
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise PipelineFailed(_fetch_error(grant, name, error)) from None
        received = copy.tell()
        if received != size:
            raise PipelineFailed(
                f"The segment {name} ended after {received} of {size} bytes on its way from "
                f"{grant.url} to {socket.gethostname()}."
            )
        yield copy.name


def _fetch(grant: TransferGrant, name: str, size: int, sink: IO[bytes]) -> None:
    options = flight.FlightCallOptions(
        timeout=_CALL_SECONDS + size / _MIN_BYTES_PER_SECOND,
        headers=[(b"authorization", f"Bearer {grant.token}".encode())],
    )
    with flight.FlightClient(grant.url, tls_root_certs=grant.certificates) as client:
        for chunk in client.do_action(flight.Action(FETCH_SEGMENT, name.encode()), options):
            sink.write(memoryview(chunk.body))


def _fetch_error(grant: TransferGrant, name: str, error: Any) -> str:
    reason = str(error)
    for suffix in _GRPC_SUFFIXES:
        reason = reason.split(suffix)[0]
    reason = " ".join(reason.split()).removesuffix(".")
    advice = ""
    if isinstance(error, flight.FlightUnavailableError | flight.FlightTimedOutError):
        advice = " The server's setting advertised_url says where workers look for it."
    return (
        f"A worker on {socket.gethostname()} does not see the file of segment {name}, and cannot "
        f"fetch it from {grant.url}: {reason}.{advice}"
    )
