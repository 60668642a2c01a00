"""A statement may be stopped at any moment; session and engine still agree on the transaction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from swanlake.engine.host import SharedHost
from swanlake.engine.instance import EngineSpec
from swanlake.errors import SwanLakeError
from swanlake.lake.lake import Lake
from swanlake.pipeline.inline import InlineRunner
from swanlake.pipeline.maintain import Maintenance, MaintenanceSettings
from swanlake.queue.runtime import DucklingQueue
from swanlake.queue.settings import QueueSettings
from swanlake.sessions.ids import SessionKey
from swanlake.sessions.runs import Run, Watchdog
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
        yield SessionServices(host, lake, queue, maintenance, 1 << 20, Path(home))
        maintenance.close()
        queue.stop(5)
        host.close()


@pytest.fixture(scope="module")
def watchdog() -> Iterator[Watchdog]:
    watchdog = Watchdog()
    yield watchdog
    watchdog.close()


class LeavingAt:
    """A client that is gone at the n-th look."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def __call__(self) -> bool:
        self.looks -= 1
        return self.looks < 0


def engine_is_in_transaction(session: Session) -> bool:
    try:
        session._execution.connection.execute("BEGIN TRANSACTION")
    except duckdb.TransactionException:
        return True
    session._execution.connection.execute("ROLLBACK")
    return False


def rows() -> pa.RecordBatchReader:
    batch = pa.record_batch({"i": [1, 2]})
    return pa.RecordBatchReader.from_batches(batch.schema, [batch])


@pytest.mark.parametrize("looks", range(12))
def test_session_and_engine_agree(
    services: SessionServices, watchdog: Watchdog, looks: int
) -> None:
    for text in (
        ["BEGIN", "CREATE OR REPLACE TEMP TABLE t (i INTEGER)", "COMMIT"],
        ["BEGIN", "ROLLBACK"],
        ["ingest"],
    ):
        session = Session(KEY, services)
        session.execute(Run(watchdog, KEY), "CREATE OR REPLACE TEMP TABLE target (i INTEGER)")
        leaving = LeavingAt(looks)
        for sql in text:
            run = Run(watchdog, KEY)
            try:
                with run.call(leaving):
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
