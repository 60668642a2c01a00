"""kill -9 at every step that rows take from a client to the lake: none is lost, none is doubled."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.faults.doomed_server import (
    ADOPT_STEPS,
    APPEND_STEPS,
    BULK_STEPS,
    COMMIT_STEPS,
    FLUSH_STEPS,
    LETTER_STEPS,
    REPLAY_STEPS,
)
from tests.faults.lab import DEATH_SECONDS, ORDINARY, Lab, Producer, Way, bulk, insert
from tests.flight import eventually

KILLS = 60
ROUND_SECONDS = 4.0


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One lake for all deaths of a kind: what one of them spoils, the next ones show."""
    url, name = "", f"test_{uuid4().hex}"
    if request.param == "postgres":
        postgres: str = request.getfixturevalue("postgres")
        url = make_conninfo(postgres, dbname=name)
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
    lab = Lab(tmp_path_factory.mktemp("lab") / "home", url)
    yield lab
    lab.server.kill()
    if url:
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(autouse=True)
def alive(lab: Lab) -> None:
    """A test that failed leaves no dead server to the next one."""
    lab.server.take_order_back()
    if not lab.server.is_alive:
        lab.server.start()


def fill(lab: Lab, table: str = "t", segments: int = 3) -> None:
    """Acknowledged rows in several segments, which nobody flushes."""
    lab.sql("CALL duckling_queue_pause()")
    for _ in range(segments):
        ids = lab.book.take(30)
        lab.sql(
            f"INSERT INTO duckling_queue.{table} SELECT id, 'a row' FROM range({ids.start}, {ids.stop}) AS r(id)"
        )
        lab.book.acknowledged.append(ids)
    eventually(lambda: len(lab.segments_on_disk()) >= segments)
    (lab.server.home / "queue" / "paused").unlink()


@pytest.mark.parametrize("step", [*APPEND_STEPS, *FLUSH_STEPS])
def test_a_server_that_dies_while_it_writes_and_flushes(lab: Lab, step: str) -> None:
    with lab.load():
        lab.die_at(step)
        lab.server.must_die()
    lab.restart()
    lab.assert_true()
