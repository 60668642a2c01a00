"""Segment transfer over Flight: units that do not see the files, and their tokens."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import duckdb
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from swanlake.config import Settings
from swanlake.errors import PipelineFailed, QueueUnavailable
from swanlake.jobs.runner import R, Unit, WithoutTransforms
from swanlake.jobs.segment_transfer.grants import (
    FETCH_SEGMENT,
    GrantedFile,
    TransferGrant,
    TransferGrants,
)
from swanlake.lake.lake import Lake
from swanlake.lake.model.credentials import StoredCredentials
from swanlake.lake.model.layout import Column, Table
from swanlake.lake.model.types import ColumnSpec
from swanlake.protocol import Actions
from swanlake.queue.flush.units import FlushUnit
from swanlake.queue.service import DucklingQueue
from swanlake.queue.settings import QueueSettings
from swanlake.queue.storage.segment import SegmentHeader, SegmentRef
from swanlake.queue.storage.store import SegmentFile, SegmentStore
from swanlake.server import actions
from swanlake.server.auth import open_authenticator
from swanlake.server.server_tls import ServerTls
from swanlake.server.service import SwanLakeService
from swanlake.sessions.registry import SessionRegistry
from tests.tls import ca_signed, self_signed
from tests.unit.queue.samples import numbers, queue_table

MANY = 100_000
Serve = Callable[..., TransferGrants]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts a Flight service that serves granted files; it has no sessions."""
    services: list[SwanLakeService] = []

    def start(auth: Any = "none", tls: tuple[Path, Path] | None = None) -> TransferGrants:
        settings = Settings(home=tmp_path, auth=auth)
        grants = TransferGrants(60.0)
        files = ServerTls(tls[0].read_bytes(), tls[1].read_bytes()) if tls else None
        scheme = "grpc+tls" if tls else "grpc"
        service = SwanLakeService(
            f"{scheme}://127.0.0.1:0",
            settings,
            cast(SessionRegistry, None),
            open_authenticator(settings, lambda: StoredCredentials([], b"key")),
            lambda identity: {},
            files,
            grants,
        )
        services.append(service)
        certificate = files.certificate if files else None
        grants.set_address(f"{scheme}://127.0.0.1:{service.port}", certificate)
        return grants

    yield start
    for service in services:
        service.shutdown()


@pytest.fixture
def table(tmp_path: Path) -> Table:
    (tmp_path / "data").mkdir()
    return Table(1, "main", "readings", f"{tmp_path}/data/", (Column(1, "i", "int64"),))


@pytest.fixture
def segment(tmp_path: Path) -> SegmentFile:
    """A segment of several chunks."""
    return written(tmp_path / "queue", range(MANY))


def written(root: Path, values: range) -> SegmentFile:
    header = SegmentHeader(uuid4(), queue_table(), 5.0)
    schema = header.schema(numbers().schema, [Column(1, "i", "int64")])
    store = SegmentStore(root, root / "mine")
    return store.write_sealed(header, schema, iter([(numbers(*values), None)]))


def granted(*segments: SegmentFile) -> dict[str, GrantedFile]:
    return {str(one.id): GrantedFile(str(one.path), one.size) for one in segments}


def hidden(reference: SegmentRef) -> SegmentRef:
    """The reference as a worker on another machine sees it."""
    return replace(reference, path=f"/nowhere{reference.path}")


def run(table: Table, grant: TransferGrant | None, *references: SegmentRef) -> list[int]:
    """The values in the files of a pickled unit."""
    unit = pickle.loads(pickle.dumps(FlushUnit(table, references, grant)))
    with duckdb.connect() as connection:
        result = unit.run(connection)
        files = [table.directory + file.path for file in result.files]
        values = connection.execute("SELECT i FROM read_parquet(?)", [files]).fetchall()
    unit.undo(result)
    return [value for (value,) in values]


def fetch(grant: TransferGrant, segment_id: UUID, token: str | None = None) -> bytes:
    """The response to an arbitrary request."""
    token = grant.token if token is None else token
    with client_of(grant) as client:
        action = flight.Action(FETCH_SEGMENT, str(segment_id).encode())
        return b"".join(
            piece.body.to_pybytes() for piece in client.do_action(action, bearer(token))
        )


def client_of(grant: TransferGrant) -> Any:
    return flight.FlightClient(grant.url, tls_root_certs=grant.certificates)


def bearer(token: str) -> Any:
    headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
    return flight.FlightCallOptions(timeout=20, headers=headers)


# ---- what a unit does ----------------------------------------------------------------------------


@pytest.mark.parametrize("auth", ["none", "token"])
def test_invisible_segment_is_fetched(
    serve: Serve, table: Table, segment: SegmentFile, auth: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "_CHUNK_BYTES", 65_536)
    with serve(auth).issue(granted(segment)) as grant:
        assert run(table, grant, hidden(segment.reference())) == list(range(MANY))


def test_visible_segment_is_not_fetched(table: Table, segment: SegmentFile) -> None:
    unreachable = TransferGrant("grpc://127.0.0.1:1", "x")
    assert run(table, unreachable, segment.reference()) == list(range(MANY))
    assert run(table, None, segment.reference()) == list(range(MANY))


@pytest.mark.parametrize("found", ["another segment", "an older copy", "something else"])
def test_other_file_at_the_same_path_is_not_used(
    serve: Serve, table: Table, segment: SegmentFile, tmp_path: Path, found: str
) -> None:
    content = {
        "another segment": written(tmp_path / "other", range(MANY)).path.read_bytes(),
        "an older copy": segment.path.read_bytes()[:-1000],
        "something else": bytes(segment.size),
    }[found]
    (tmp_path / "seen").write_bytes(content)
    reference = replace(segment.reference(), path=str(tmp_path / "seen"))
    with serve().issue(granted(segment)) as grant:
        assert run(table, grant, reference) == list(range(MANY))


def test_unacknowledged_bytes_are_not_sent(
    serve: Serve, table: Table, segment: SegmentFile
) -> None:
    with segment.path.open("ab") as file:
        file.write(b"of a write that is under way")
    with serve().issue(granted(segment)) as grant:
        assert len(fetch(grant, segment.id)) == segment.size
        assert run(table, grant, hidden(segment.reference())) == list(range(MANY))


def test_missing_segment_is_a_retryable_error(
    serve: Serve, table: Table, segment: SegmentFile
) -> None:
    segment.path.unlink()
    with serve().issue(granted(segment)) as grant:
        with pytest.raises(PipelineFailed, match=r"SEGMENT_NOT_FOUND: .* any more") as failed:
            run(table, grant, hidden(segment.reference()))
    assert failed.value.retryable
    assert "Traceback" not in str(failed.value)


def test_truncated_transfer_fails(serve: Serve, table: Table, segment: SegmentFile) -> None:
    size = segment.size
    with segment.path.open("ab") as file:
        file.truncate(size - 1)
    with serve().issue(granted(segment)) as grant:
        with pytest.raises(PipelineFailed, match=f"after {size - 1} of {size} bytes"):
            run(table, grant, hidden(segment.reference()))


def test_unreachable_server_error_names_the_setting(table: Table, segment: SegmentFile) -> None:
    grant = TransferGrant("grpc://127.0.0.1:1", "secret-token")
    with pytest.raises(PipelineFailed, match="advertised_url") as failed:
        run(table, grant, hidden(segment.reference()))
    assert "grpc://127.0.0.1:1" in str(failed.value)
    assert "secret-token" not in str(failed.value)


def test_workers_do_not_create_table_directories(
    table: Table, segment: SegmentFile, tmp_path: Path
) -> None:
    elsewhere = replace(table, directory=f"{tmp_path}/not-shared/")
    with pytest.raises(PipelineFailed, match=r"does not see .*/not-shared/"):
        run(elsewhere, TransferGrant("grpc://127.0.0.1:1", "x"), segment.reference())
    assert not (tmp_path / "not-shared").exists()


class Elsewhere(WithoutTransforms):
    """Runs units with another directory than the lake's."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, directory: Path) -> None:
        self._connection = connection
        self._directory = directory

    def run(self, units: Sequence[Unit[R]], title: str) -> list[R]:
        results: list[Any] = []
        for unit in units:
            assert isinstance(unit, FlushUnit)
            table = replace(unit.table, directory=f"{self._directory}/")
            results.append(replace(unit, table=table).run(self._connection))
        return cast(list[R], results)


def test_invisible_files_are_not_committed(tmp_path: Path, duck: duckdb.DuckDBPyConnection) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    grants = TransferGrants(60.0)
    grants.set_address("grpc://127.0.0.1:1")
    with Lake.open(tmp_path / "catalogs", tmp_path / "data") as lake:
        catalog = lake.create_catalog("swanlake")
        catalog.create_table("main", "t", [ColumnSpec("i", "BIGINT")])
        queue = DucklingQueue(
            QueueSettings(tmp_path / "queue"),
            lake,
            Elsewhere(duck, elsewhere),
            transfer_grants=grants,
        )
        queue.enqueue(queue.table_cache.find("swanlake", "main", "t"), [numbers(1, 2)])
        with pytest.raises(QueueUnavailable, match="this server does not see it"):
            queue.flush()
        assert [one.rows for one in queue.status()] == [2], "the rows are still there"
        queue.stop(10)


# ---- what a token opens --------------------------------------------------------------------------


@pytest.mark.parametrize("auth", ["none", "token"])
def test_token_covers_only_its_segments(
    serve: Serve, segment: SegmentFile, tmp_path: Path, auth: str
) -> None:
    other = written(tmp_path / "queue", range(3))
    grants = serve(auth)
    with grants.issue(granted(segment)) as grant, grants.issue(granted(other)):
        assert len(fetch(grant, segment.id)) == segment.size
        with pytest.raises(pa.ArrowKeyError, match="SEGMENT_NOT_FOUND: The token is not for"):
            fetch(grant, other.id)
        with client_of(grant) as client:
            for name in (Actions.STATUS, "CreatePreparedStatement", "CloseSession"):
                with pytest.raises(flight.FlightUnauthenticatedError, match="to its segments"):
                    list(client.do_action(flight.Action(name, b""), bearer(grant.token)))
            with pytest.raises(pa.ArrowInvalid, match="not the id of a segment"):
                list(client.do_action(flight.Action(FETCH_SEGMENT, b"../x"), bearer(grant.token)))


def test_token_is_refused_for_other_calls(serve: Serve, segment: SegmentFile) -> None:
    with serve("token").issue(granted(segment)) as grant, client_of(grant) as client:
        with pytest.raises(flight.FlightUnauthenticatedError, match="requires valid credentials"):
            client.list_actions(bearer(grant.token))
        with pytest.raises(flight.FlightUnauthenticatedError, match="requires valid credentials"):
            client.get_flight_info(flight.FlightDescriptor.for_command(b"x"), bearer(grant.token))


@pytest.mark.parametrize("auth", ["none", "token"])
@pytest.mark.parametrize("token", ["", "guessed"])
def test_fetch_without_token_is_refused(
    serve: Serve, segment: SegmentFile, auth: str, token: str
) -> None:
    with serve(auth).issue(granted(segment)) as grant:
        with pytest.raises(flight.FlightUnauthenticatedError):
            fetch(grant, segment.id, token)


@pytest.mark.parametrize("auth", ["none", "token"])
def test_token_is_refused_after_its_job(serve: Serve, segment: SegmentFile, auth: str) -> None:
    with serve(auth).issue(granted(segment)) as grant:
        pass
    with pytest.raises(flight.FlightUnauthenticatedError):
        fetch(grant, segment.id)


# ---- TLS -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("certificate", [self_signed, ca_signed])
def test_workers_verify_the_server_certificate(
    serve: Serve,
    table: Table,
    segment: SegmentFile,
    certificate: Callable[[Path], tuple[Path, Path]],
    tmp_path: Path,
) -> None:
    with serve("token", certificate(tmp_path)).issue(granted(segment)) as grant:
        assert grant.url.startswith("grpc+tls://")
        assert run(table, grant, hidden(segment.reference())) == list(range(MANY))
        with pytest.raises(PipelineFailed, match="cannot fetch it"):
            run(table, replace(grant, certificates=None), hidden(segment.reference()))
