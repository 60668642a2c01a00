"""What reads bytes and texts of strangers: each target accepts any input or refuses it cleanly.

A target raises only what it may not raise, so every exception that leaves it is a finding.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from swanlake._internal.arrow_sizes import decoded_bytes
from swanlake.access.grant_text import checked_caller_name, format_grant, parse_grants
from swanlake.access.login_tokens import is_login_token, verify
from swanlake.errors import InvalidRequest
from swanlake.protocol import decode, encode
from swanlake.queue.storage.segment import Segment, SegmentDamaged
from swanlake.server.auth import Credentials
from swanlake.sql.insert import insert_head
from swanlake.sql.safe_text import safe_text

CORPUS = Path(__file__).with_name("corpus")
_KEY = b"the key of this test"


def protocol(data: bytes) -> None:
    """A command decodes to a message that means the same when it is encoded again."""
    with suppress(InvalidRequest):
        message = decode(data)
        assert decode(encode(message)) == message


def statement_scan(data: bytes) -> None:
    """The scan keeps every line and every position, up to an unclosed comment."""
    text = data.decode(errors="replace")
    with suppress(InvalidRequest):
        safe = safe_text(text)
        assert len(safe) <= len(text)
        kept = text[: len(safe)]
        assert [i for i, c in enumerate(safe) if c in "\r\n"] == [
            i for i, c in enumerate(kept) if c in "\r\n"
        ]
        assert all(new in (old, " ") for new, old in zip(safe, kept, strict=True))


def insert(data: bytes) -> None:
    """The head of an INSERT lies within its text; of a text that is none, its rows need not."""
    text = data.decode(errors="replace")
    head = insert_head(text)
    if head is not None:
        assert 0 <= head.start <= head.target_start <= head.target_end <= len(text.encode())
        assert head.target_end <= head.body
        assert head.target


def segment(data: bytes) -> None:
    """A segment gives only batches whose checksums are right."""
    with suppress(SegmentDamaged):
        read = Segment(pa.py_buffer(data))
        assert sum(batch.num_rows for batch in read.record_batches()) == read.rows


def credentials(data: bytes) -> None:
    """A header gives a name that can be logged; no text is a login without its signature."""
    text = data.decode(errors="replace")
    sent = Credentials(text)
    user = sent.user_and_password
    assert user is None or user[0].isprintable()
    assert not is_login_token(sent.bearer) or verify(sent.bearer, 0.0, _KEY) is None
    with suppress(InvalidRequest):
        assert checked_caller_name(text)


def grants(data: bytes) -> None:
    """A grant that is accepted reads back as itself."""
    with suppress(InvalidRequest):
        for grant in parse_grants(data.decode(errors="replace").split("\n")):
            assert parse_grants([format_grant(grant)]) == (grant,)


def parameters(data: bytes) -> None:
    """No stream needs more memory than was announced before it is decoded."""
    try:
        announced = decoded_bytes(data)
    except ValueError:
        return
    if announced > 1 << 20:
        return  # the server refuses it
    before = pa.total_allocated_bytes()
    with suppress(pa.ArrowException, OSError), pa.ipc.open_stream(data) as reader:
        table = reader.read_all()
        assert pa.total_allocated_bytes() - before <= announced + len(data) + 64 * 1024
        del table


#: By name, which is also that of the folder of its corpus.
TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (protocol, statement_scan, insert, segment, credentials, grants, parameters)
}


def corpus(name: str) -> list[bytes]:
    """The inputs of a target that are kept in the repository."""
    return [file.read_bytes() for file in sorted((CORPUS / name).iterdir())]
