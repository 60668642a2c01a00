"""Session and engine agree on the transaction whenever a statement is stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from swanlake.access.identity import Identity, Role
from swanlake.engine.host import SharedHost
from swanlake.engine.instance import EngineSpec
from swanlake.errors import SwanLakeError
from swanlake.jobs.inline import InlineRunner
from swanlake.lake.lake import Lake
from swanlake.lake.read.snapshot_cache import SnapshotCache
from swanlake.maintenance.service import Maintenance
from swanlake.maintenance.settings import MaintenanceSettings
from swanlake.queue.service import DucklingQueue
from swanlake.queue.settings import QueueSettings
from swanlake.sessions.ids import SessionKey
from swanlake.sessions.run import Run, Watchdog
from swanlake.sessions.services import SessionServices
from swanlake.sessions.session import Session

KEY = SessionKey("alice", "s1")


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionServices]:
    home = tmp_path_factory.mktemp("home")
    with Lake.open(home / "catalogs", home / "data") as lake:
        location = lake.location(lake.ensure_catalog("swanlake").info)
        host = SharedHost(EngineSpec(lake=location, temp_directory=home / "tmp"))
        runner = InlineRunner(host)
        queue = DucklingQueue(QueueSettings(home / "queue"), lake, runner)
        maintenance = Maintenance(lake, runner, MaintenanceSettings())
        yield SessionServices(
            host, lake, queue, maintenance, 1 << 20, Path(home), 1 << 20, SnapshotCache(1 << 20)
        )
        maintenance.close()
        queue.stop(5)
        host.close()


@pytest.fixture(scope="module")
def watchdog() -> Iterator[Watchdog]:
    watchdog = Watchdog()
    yield watchdog
    watchdog.close()


class DisconnectingAt:
    """A client that is gone at the n-th probe."""

    def __init__(self, probes: int) -> None:
        self.probes = probes

    def __call__(self) -> bool:
        self.probes -= 1
        return self.probes < 0


def engine_is_in_transaction(session: Session) -> bool:
    try:
        session._engine.connection.execute("BEGIN TRANSACTION")
    except duckdb.TransactionException:
        return True
    session._engine.connection.execute("ROLLBACK")
    return False


def rows() -> pa.RecordBatchReader:
    batch = pa.record_batch({"i": [1, 2]})
    return pa.RecordBatchReader.from_batches(batch.schema, [batch])


@pytest.mark.parametrize("probes", range(12))
def test_session_and_engine_agree_after_cancellation(
    services: SessionServices, watchdog: Watchdog, probes: int
) -> None:
    for text in (
        ["BEGIN", "CREATE OR REPLACE TEMP TABLE t (i INTEGER)", "COMMIT"],
        ["BEGIN", "ROLLBACK"],
        ["ingest"],
    ):
        session = Session(KEY, services, Identity("alice", Role.ADMIN))
        session.execute(Run(watchdog, KEY), "CREATE OR REPLACE TEMP TABLE target (i INTEGER)")
        leaving = DisconnectingAt(probes)
        for sql in text:
            run = Run(watchdog, KEY)
            try:
                with run.client_waiting(leaving):
                    if sql == "ingest":
                        session.ingest(
                            run, rows(), lambda name: [f"INSERT INTO target FROM {name}"]
                        )
                    else:
                        session.execute(run, sql)
            except SwanLakeError:
                break
        assert session.transaction.open == engine_is_in_transaction(session), (text, sql)
        session.close("test")
