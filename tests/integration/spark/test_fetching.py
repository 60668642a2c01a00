"""Segments over Flight: a unit whose files are not to be seen, and what its token opens."""

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
from swanlake.lake.lake import Lake
from swanlake.lake.layout import Column, Table
from swanlake.lake.types import ColumnSpec
from swanlake.pipeline.loans import FETCH, Lender, LentFile, Loan
from swanlake.pipeline.runner import R, Unit, WithoutTransforms
from swanlake.protocol import Actions
from swanlake.queue.runtime import DucklingQueue
from swanlake.queue.segment import Header
from swanlake.queue.settings import QueueSettings
from swanlake.queue.store import SegmentFile, Store
from swanlake.queue.work import FlushUnit, SegmentRef
from swanlake.server import lending
from swanlake.server.auth import open_authenticator
from swanlake.server.service import SwanLakeService
from swanlake.sessions.registry import SessionRegistry
from tests.tls import self_signed, signed_by_an_authority
from tests.unit.queue.samples import numbers, queue_table

MANY = 100_000
Serve = Callable[..., Lender]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts a Flight service that lends; no session is ever needed for that."""
    services: list[SwanLakeService] = []

    def start(auth: Any = "none", tls: tuple[Path, Path] | None = None) -> Lender:
        settings = Settings(home=tmp_path, auth=auth)
        lender = Lender(60.0)
        pair = (tls[0].read_bytes(), tls[1].read_bytes()) if tls else None
        scheme = "grpc+tls" if tls else "grpc"
        service = SwanLakeService(
            f"{scheme}://127.0.0.1:0",
            settings,
            cast(SessionRegistry, None),
            open_authenticator(settings),
            [pair] if pair else None,
            lender,
        )
        services.append(service)
        lender.listen(f"{scheme}://127.0.0.1:{service.port}", pair[0] if pair else None)
        return lender

    yield start
    for service in services:
        service.shutdown()


@pytest.fixture
def table(tmp_path: Path) -> Table:
    (tmp_path / "data").mkdir()
    return Table(1, "main", "readings", f"{tmp_path}/data/", (Column(1, "i", "int64"),))


@pytest.fixture
def segment(tmp_path: Path) -> SegmentFile:
    """A segment of several pieces."""
    return written(tmp_path / "queue", range(MANY))


def written(root: Path, values: range) -> SegmentFile:
    header = Header(uuid4(), queue_table(), 5.0)
    schema = header.schema(numbers().schema, [Column(1, "i", "int64")])
    store = Store(root, root / "mine")
    return store.write_sealed(header, schema, iter([(numbers(*values), None)]))


def lent(*segments: SegmentFile) -> dict[str, LentFile]:
    return {str(one.id): LentFile(str(one.path), one.size) for one in segments}


def hidden(reference: SegmentRef) -> SegmentRef:
    """As a worker on another machine sees it."""
    return replace(reference, path=f"/nowhere{reference.path}")


def run(table: Table, loan: Loan | None, *references: SegmentRef) -> list[int]:
    """The values in the files of a unit that was sent to another process."""
    unit = pickle.loads(pickle.dumps(FlushUnit(table, references, loan)))
    with duckdb.connect() as connection:
        result = unit.run(connection)
        files = [table.directory + file.path for file in result.files]
        values = connection.execute("SELECT i FROM read_parquet(?)", [files]).fetchall()
    unit.undo(result)
    return [value for (value,) in values]


def fetch(loan: Loan, segment_id: UUID, token: str | None = None) -> bytes:
    """What a client gets that says what it likes."""
    token = loan.token if token is None else token
    with client_of(loan) as client:
        action = flight.Action(FETCH, str(segment_id).encode())
        return b"".join(
            piece.body.to_pybytes() for piece in client.do_action(action, bearer(token))
        )


def client_of(loan: Loan) -> Any:
    return flight.FlightClient(loan.url, tls_root_certs=loan.certificates)


def bearer(token: str) -> Any:
    headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
    return flight.FlightCallOptions(timeout=20, headers=headers)


# ---- what a unit does ----------------------------------------------------------------------------


@pytest.mark.parametrize("auth", ["none", "token"])
def test_a_segment_out_of_sight_is_fetched(
    serve: Serve, table: Table, segment: SegmentFile, auth: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lending, "_PIECE_BYTES", 65_536)
    with serve(auth).lend(lent(segment)) as loan:
        assert run(table, loan, hidden(segment.reference())) == list(range(MANY))


def test_a_segment_in_sight_is_not_fetched(table: Table, segment: SegmentFile) -> None:
    nobody = Loan("grpc://127.0.0.1:1", "x")
    assert run(table, nobody, segment.reference()) == list(range(MANY))
    assert run(table, None, segment.reference()) == list(range(MANY))


@pytest.mark.parametrize("found", ["another segment", "an older copy", "something else"])
def test_a_file_that_is_not_that_segment_is_not_taken_for_it(
    serve: Serve, table: Table, segment: SegmentFile, tmp_path: Path, found: str
) -> None:
    content = {
        "another segment": written(tmp_path / "other", range(MANY)).path.read_bytes(),
        "an older copy": segment.path.read_bytes()[:-1000],
        "something else": bytes(segment.size),
    }[found]
    (tmp_path / "seen").write_bytes(content)
    reference = replace(segment.reference(), path=str(tmp_path / "seen"))
    with serve().lend(lent(segment)) as loan:
        assert run(table, loan, reference) == list(range(MANY))


def test_what_is_not_acknowledged_is_not_sent(
    serve: Serve, table: Table, segment: SegmentFile
) -> None:
    with segment.path.open("ab") as file:
        file.write(b"of a write that is under way")
    with serve().lend(lent(segment)) as loan:
        assert len(fetch(loan, segment.id)) == segment.size
        assert run(table, loan, hidden(segment.reference())) == list(range(MANY))


def test_a_segment_that_is_gone_is_an_error_that_is_tried_again(
    serve: Serve, table: Table, segment: SegmentFile
) -> None:
    segment.path.unlink()
    with serve().lend(lent(segment)) as loan:
        with pytest.raises(PipelineFailed, match=r"SEGMENT_NOT_FOUND: .* any more") as failed:
            run(table, loan, hidden(segment.reference()))
    assert failed.value.retryable
    assert "Traceback" not in str(failed.value)


def test_a_segment_that_ends_too_early_is_an_error(
    serve: Serve, table: Table, segment: SegmentFile
) -> None:
    size = segment.size
    with segment.path.open("ab") as file:
        file.truncate(size - 1)
    with serve().lend(lent(segment)) as loan:
        with pytest.raises(PipelineFailed, match=f"after {size - 1} of {size} bytes"):
            run(table, loan, hidden(segment.reference()))


def test_a_server_out_of_reach_is_an_error_that_says_what_to_set(
    table: Table, segment: SegmentFile
) -> None:
    loan = Loan("grpc://127.0.0.1:1", "secret-token")
    with pytest.raises(PipelineFailed, match="advertised_url") as failed:
        run(table, loan, hidden(segment.reference()))
    assert "grpc://127.0.0.1:1" in str(failed.value)
    assert "secret-token" not in str(failed.value)


def test_workers_make_no_lake_of_their_own(
    table: Table, segment: SegmentFile, tmp_path: Path
) -> None:
    elsewhere = replace(table, directory=f"{tmp_path}/not-shared/")
    with pytest.raises(PipelineFailed, match=r"does not see .*/not-shared/"):
        run(elsewhere, Loan("grpc://127.0.0.1:1", "x"), segment.reference())
    assert not (tmp_path / "not-shared").exists()


class Elsewhere(WithoutTransforms):
    """Runs units on a machine whose directory only has the name of the lake's."""

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


def test_files_that_the_server_does_not_see_are_not_committed(
    tmp_path: Path, duck: duckdb.DuckDBPyConnection
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    lender = Lender(60.0)
    lender.listen("grpc://127.0.0.1:1")
    with Lake.open(tmp_path / "catalogs", tmp_path / "data") as lake:
        catalog = lake.create_catalog("swanlake")
        catalog.create_table("main", "t", [ColumnSpec("i", "BIGINT")])
        queue = DucklingQueue(
            QueueSettings(tmp_path / "queue"),
            lake,
            Elsewhere(duck, elsewhere),
            lender=lender,
        )
        queue.enqueue(queue.targets.find("swanlake", "main", "t"), [numbers(1, 2)])
        with pytest.raises(QueueUnavailable, match="this server does not see it"):
            queue.flush()
        assert [one.rows for one in queue.status()] == [2], "the rows are still there"
        queue.stop(10)


# ---- what a token opens --------------------------------------------------------------------------


@pytest.mark.parametrize("auth", ["none", "token"])
def test_a_token_opens_its_segments_and_nothing_else(
    serve: Serve, segment: SegmentFile, tmp_path: Path, auth: str
) -> None:
    other = written(tmp_path / "queue", range(3))
    lender = serve(auth)
    with lender.lend(lent(segment)) as loan, lender.lend(lent(other)):
        assert len(fetch(loan, segment.id)) == segment.size
        with pytest.raises(pa.ArrowKeyError, match="SEGMENT_NOT_FOUND: The token is not for"):
            fetch(loan, other.id)
        with client_of(loan) as client:
            for name in (Actions.STATUS, "CreatePreparedStatement", "CloseSession"):
                with pytest.raises(flight.FlightUnauthenticatedError, match="its segments only"):
                    list(client.do_action(flight.Action(name, b""), bearer(loan.token)))
            with pytest.raises(pa.ArrowInvalid, match="not the id of a segment"):
                list(client.do_action(flight.Action(FETCH, b"../x"), bearer(loan.token)))


def test_a_token_is_no_credential_for_other_calls(serve: Serve, segment: SegmentFile) -> None:
    with serve("token").lend(lent(segment)) as loan, client_of(loan) as client:
        with pytest.raises(flight.FlightUnauthenticatedError, match="not known"):
            client.list_actions(bearer(loan.token))
        with pytest.raises(flight.FlightUnauthenticatedError, match="not known"):
            client.get_flight_info(flight.FlightDescriptor.for_command(b"x"), bearer(loan.token))


@pytest.mark.parametrize("auth", ["none", "token"])
@pytest.mark.parametrize("token", ["", "guessed"])
def test_without_a_token_nothing_is_sent(
    serve: Serve, segment: SegmentFile, auth: str, token: str
) -> None:
    with serve(auth).lend(lent(segment)) as loan:
        with pytest.raises(flight.FlightUnauthenticatedError):
            fetch(loan, segment.id, token)


@pytest.mark.parametrize("auth", ["none", "token"])
def test_a_token_is_worth_nothing_after_its_job(
    serve: Serve, segment: SegmentFile, auth: str
) -> None:
    with serve(auth).lend(lent(segment)) as loan:
        pass
    with pytest.raises(flight.FlightUnauthenticatedError):
        fetch(loan, segment.id)


# ---- TLS -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("certificate", [self_signed, signed_by_an_authority])
def test_workers_trust_the_server_by_its_certificate(
    serve: Serve,
    table: Table,
    segment: SegmentFile,
    certificate: Callable[[Path], tuple[Path, Path]],
    tmp_path: Path,
) -> None:
    with serve("token", certificate(tmp_path)).lend(lent(segment)) as loan:
        assert loan.url.startswith("grpc+tls://")
        assert run(table, loan, hidden(segment.reference())) == list(range(MANY))
        with pytest.raises(PipelineFailed, match="cannot fetch it"):
            run(table, replace(loan, certificates=None), hidden(segment.reference()))
