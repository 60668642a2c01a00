"""What a native write does with its files, by the outcome of their commit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from swanlake.errors import CommitConflict, CommitStateUnknown, QueryCancelled, SwanLakeError
from swanlake.lake.commit.protocol import Committed
from swanlake.lake.model.layout import Column, DataFile, Table
from swanlake.lake.model.operations import Insert
from swanlake.sessions.native.context import PreparedChange, PreparedCommit
from swanlake.sessions.native.executor import NativeExecutor
from swanlake.sessions.results.stream import Outcome

FILE = DataFile("1.parquet", 1, 1, 1)


class Write:
    """An INSERT whose file is written; its commit ends as the test says."""

    def __init__(self, root: Path) -> None:
        self.file = root / FILE.path
        self.file.touch()
        table = Table(1, "main", "t", f"{root}/", (Column(1, "i", "int64"),))
        change = PreparedChange(
            operations=(Insert(table, (FILE,)),), files=(FILE,), outcome=Outcome()
        )
        self.catalog = MagicMock()
        self._prepared = PreparedCommit(self.catalog, change, table)
        self._executor = NativeExecutor(MagicMock(), MagicMock(), MagicMock())

    def commit(self, outcome: Committed | SwanLakeError, check: Any = lambda: None) -> None:
        self.catalog.commit.side_effect = [outcome]
        context: Any = SimpleNamespace(
            run=SimpleNamespace(check=check, session=SimpleNamespace(id="s"))
        )
        self._executor._commit(self._prepared, ("swanlake", "main", "t"), context)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return Write(tmp_path)


def test_files_of_a_commit_are_kept(write: Write) -> None:
    write.commit(Committed(5))
    assert write.file.exists()


def test_files_of_a_commit_in_doubt_are_kept(write: Write) -> None:
    with pytest.raises(CommitStateUnknown):
        write.commit(CommitStateUnknown("lost"))
    assert write.file.exists()


def test_files_of_a_failed_commit_are_deleted(write: Write) -> None:
    with pytest.raises(CommitConflict):
        write.commit(CommitConflict("altered"))
    assert not write.file.exists()


def test_files_of_a_cancelled_statement_are_deleted(write: Write) -> None:
    def cancelled() -> None:
        raise QueryCancelled("no longer wanted")

    with pytest.raises(QueryCancelled):
        write.commit(Committed(5), cancelled)
    assert not write.file.exists()
    write.catalog.commit.assert_not_called()
