"""Segments for workers that do not see the queue's directory."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from uuid import UUID

from swanlake.errors import InvalidRequest, NotFound
from swanlake.pipeline.loans import Lender

log = logging.getLogger("swanlake.server")

_PIECE_BYTES = 4 * 1024 * 1024


def pieces(lender: Lender, token: str, body: bytes) -> Iterator[bytes]:
    """The bytes of a lent segment; whoever asks has its id and the token of the loan."""
    name = _segment_id(body)
    file = lender.find(token, name)
    rest = file.size
    try:
        with open(file.path, "rb") as source:
            while rest and (piece := source.read(min(rest, _PIECE_BYTES))):
                rest -= len(piece)
                yield piece
    except FileNotFoundError:
        raise NotFound(
            f"The segment {name} is not in the queue any more: it is in the lake, or another "
            "server has it.",
            identifier="SEGMENT_NOT_FOUND",
        ) from None
    log.info("sent %d bytes of segment %s to a worker", file.size - rest, name)


def _segment_id(body: bytes) -> str:
    try:
        return str(UUID(body.decode()))
    except ValueError:
        raise InvalidRequest("The request is not the id of a segment.") from None
