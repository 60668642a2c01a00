"""/metrics, as Prometheus' parser reads it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from click.testing import CliRunner
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse
from prometheus_client.samples import Sample

from swanlake.cli.commands import swanlake
from swanlake.client import FlightSQLClient
from swanlake.errors import SwanLakeError
from swanlake.status.metrics import METRICS, PROCESS_METRICS
from tests.cli_results import assert_succeeded
from tests.credentials import write_tokens
from tests.server_process import ServerProcess
from tests.waiting import eventually

ADMIN = "the-token-of-an-admin-0001"
ON = {"SWANLAKE_STATUS": "on", "SWANLAKE_STATUS_PORT": "0"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("metrics") / "home"
    write_tokens(home, admin=ADMIN)
    with ServerProcess(home, "--auth", "any", **ON) as server:
        with FlightSQLClient(server.url, token=ADMIN) as client:
            client.execute("CREATE TABLE t (i INTEGER)")
            client.execute("CREATE TABLE kept (i INTEGER)")
            client.execute("INSERT INTO t VALUES (1)")
            client.execute("INSERT INTO duckling_queue.t VALUES (1), (2), (3)")
            client.execute("CALL duckling_queue_flush()")
            client.execute("INSERT INTO duckling_queue.kept VALUES (1), (2)")
            with pytest.raises(SwanLakeError):
                client.execute("SELECT * FROM missing")
        eventually(lambda: scrape(server).get("swanlake_queue_dead_letters") == 0)
        yield server


def text(server: ServerProcess, token: str = ADMIN, **headers: str) -> str:
    headers["authorization"] = f"Bearer {token}"
    response = httpx.get(f"{server.status_url}/metrics", headers=headers)
    assert response.status_code == 200
    return response.text


def scrape(server: ServerProcess, token: str = ADMIN) -> dict[str, float]:
    """The samples by name and labels, as Prometheus shows them."""
    return {
        _key(sample): sample.value
        for family in parse(text(server, token))
        for sample in family.samples
    }


def _key(sample: Sample) -> str:
    labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
    return f"{sample.name}{{{labels}}}" if labels else sample.name


def test_metrics_are_those_that_are_declared(server: ServerProcess) -> None:
    declared = {row.name: row.kind for row in METRICS}
    found = {
        family.name + ("_total" if family.type == "counter" else ""): family.type
        for family in parse(text(server))
    }
    assert {name for name in found if name.startswith("swanlake_")} == declared.keys()
    assert {name: found[name] for name in declared} == declared
    assert {name for name in found if name not in declared} == PROCESS_METRICS.keys()


def test_metrics_are_also_served_as_openmetrics(server: ServerProcess) -> None:
    body = text(server, accept="application/openmetrics-text; version=1.0.0")
    names = {family.name for family in parse_openmetrics(body)}  # type: ignore[no-untyped-call]
    assert "swanlake_statements" in names
    assert body.endswith("# EOF\n")


def failed_statements(samples: dict[str, float]) -> float:
    """The number of statements with any other outcome than ok."""
    ok = 'swanlake_statements_total{outcome="ok"}'
    return sum(
        value
        for key, value in samples.items()
        if key.startswith("swanlake_statements_total") and key != ok
    )


def test_counters_count_what_happened(server: ServerProcess) -> None:
    eventually(lambda: scrape(server)['swanlake_statements_total{outcome="ok"}'] >= 6)
    eventually(lambda: failed_statements(scrape(server)) >= 1)
    samples = scrape(server)
    assert samples["swanlake_accepting"] == 1
    assert samples['swanlake_health_ok{check="queue"}'] == 1
    assert samples["swanlake_sessions_created_total"] >= 1
    assert samples["swanlake_queue_rows_inserted_total"] == 5
    assert samples["swanlake_queue_rows_flushed_total"] == 3
    assert samples['swanlake_queue_flushes_total{result="done"}'] == 1
    assert samples["swanlake_queue_flush_duration_seconds_count"] == 1
    assert samples["swanlake_queue_ack_duration_seconds_count"] == 2
    assert samples['swanlake_queue_rows{table="swanlake.main.kept"}'] == 2
    assert samples['swanlake_commits_total{outcome="committed"}'] >= 3
    assert samples["swanlake_commit_lock_hold_seconds_sum"] > 0
    assert samples["swanlake_catalogs"] == 1
    assert samples["swanlake_pipeline_ready"] == 1
    assert samples["swanlake_engine_memory_bytes"] > 0


def test_histograms_are_cumulative_and_complete(server: ServerProcess) -> None:
    for family in parse(text(server)):
        if family.type != "histogram":
            continue
        buckets = [each.value for each in family.samples if each.name.endswith("_bucket")]
        [count] = [each.value for each in family.samples if each.name.endswith("_count")]
        assert buckets == sorted(buckets)
        assert buckets[-1] == count
        assert family.samples[len(buckets) - 1].labels["le"] == "+Inf"


def test_table_that_the_caller_may_not_read_is_not_named(server: ServerProcess) -> None:
    command = ["token", "create", "prometheus", "--role", "reader", "--grant", "nothing=read"]
    created = CliRunner().invoke(swanlake, [*command, "--home", str(server.home)])
    samples = scrape(server, assert_succeeded(created).strip())
    assert samples['swanlake_queue_rows{table="(other)"}'] == 2
    assert not [key for key in samples if "swanlake.main" in key]
    assert httpx.get(f"{server.status_url}/metrics").status_code == 401
