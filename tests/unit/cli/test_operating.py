"""The views of a running server, and the findings of the doctor, from plain values."""

from __future__ import annotations

from pathlib import Path

import pytest

from swanlake.cli.activity import duration_text, size_text, status_lines
from swanlake.cli.banner import banner_lines
from swanlake.cli.demo import open_browser
from swanlake.cli.doctor.finding import OK, PROBLEM, WARNING
from swanlake.cli.doctor.machine import extension_findings, java_finding
from swanlake.cli.doctor.storage import clock_finding, disk_finding
from swanlake.cli.top import Rates, Sample, heading, rates
from swanlake.config import Settings

FACTS = {
    "version": "1.0",
    "state": "accepting",
    "uptime_seconds": 7300.0,
    "sessions": {"active": 2, "max": 100},
    "statements_running": 1,
    "health": {
        "checks": [
            {"name": "engine", "ok": True},
            {"name": "storage", "ok": False, "reason": "Unreachable.", "detail": "no route"},
        ]
    },
    "pipeline": {"kind": "spark", "state": "ready", "location": "local[*]"},
    "memory": {"process_bytes": 1_500_000_000},
    "queue": [{"rows": 1200, "bytes": 64_000}],
}


def test_status_shows_every_part_in_a_line() -> None:
    assert list(status_lines("grpc://h:1", FACTS)) == [
        "SwanLake 1.0 at grpc://h:1: accepting, up 2 h",
        "sessions   2 of 100, 1 statements running",
        "queue      1,200 rows, 64.0 kB in 1 table",
        "pipeline   spark ready local[*]",
        "engine     ok",
        "storage    FAILED: no route",
        "memory     1.5 GB",
    ]


def test_status_of_a_caller_who_may_see_little_is_short() -> None:
    facts = {"version": "1.0", "state": "draining", "queue": []}
    assert list(status_lines("u", facts)) == [
        "SwanLake 1.0 at u: draining",
        "queue      0 rows, 0 B in 0 tables",
    ]


def test_rates_are_what_grew_between_two_samples() -> None:
    before = Sample(10.0, totals={"statements": 100, "errors": 1, "rows": 0, "seconds": 5})
    now = Sample(12.0, totals={"statements": 140, "errors": 1, "rows": 1000, "seconds": 6})
    assert rates(before, now) == Rates(20.0, 0.0, 500.0, 0.025)


def test_rates_are_unknown_before_the_second_sample_and_never_negative() -> None:
    assert rates(None, Sample(1.0)) == Rates()
    before = Sample(1.0, totals={"statements": 100.0})
    assert rates(before, Sample(2.0, totals={"statements": 3.0})).statements == 0.0


def test_heading_of_top_has_rates_sessions_and_memory() -> None:
    sample = Sample(1.0, FACTS, [{}], [{"in_transaction": True}, {"in_transaction": False}])
    lines = list(heading("grpc://h:1", sample, Rates(12.34, 0.0, 5.0, 0.0021)))
    assert lines[1] == "statements 12.3/s   errors 0.0/s   rows 5.0/s   mean 2.1 ms"
    assert lines[2] == "sessions 2 of 100, 1 in transactions   running 1   memory 1.5 GB"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59, "59 s"), (120, "2 min"), (7200, "2 h"), (172800, "2 d")]
)
def test_durations_have_the_largest_unit_that_fits(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1500, "1.5 kB"), (2e12, "2.0 TB")])
def test_sizes_have_the_largest_unit_that_fits(size: float, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ('openjdk version "17.0.15" 2025-04-15', OK),
        ('java version "21" 2023-09-19', OK),
        ('java version "1.8.0_202"', PROBLEM),
        ('openjdk version "11.0.2"', PROBLEM),
        ("", PROBLEM),
    ],
)
def test_java_is_checked_by_its_major_version(text: str, state: str) -> None:
    finding = java_finding("/usr/bin/java", text)
    assert finding.state == state
    assert bool(finding.remedy) == (state == PROBLEM)


def test_extension_of_another_version_is_a_problem() -> None:
    [good] = extension_findings("1.5.5", {"a": "1.5.5", "b": "1.5.5"})
    [bad] = extension_findings("1.5.5", {"a": "1.5.4", "b": None, "c": "1.5.5"})
    assert good.state == OK
    assert (bad.state, bad.text) == (PROBLEM, "DuckDB is 1.5.5, but a 1.5.4, b missing")


def test_full_disk_and_wrong_clock_are_found() -> None:
    assert disk_finding("disk", Path("/x"), 10**10).state == OK
    assert disk_finding("disk", Path("/x"), 10**6).state == WARNING
    assert clock_finding("PostgreSQL", 0.2).state == OK
    assert clock_finding("PostgreSQL", -60.0).state == PROBLEM


def test_banner_tells_what_a_client_of_a_protected_server_needs(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, auth="token", tls_cert=Path("c"), tls_key=Path("k"))
    text = "\n".join(banner_lines("/bin/swanlake", "grpc+tls://h:1", "https://h:2", settings))
    assert "/bin/swanlake sql --url grpc+tls://h:1 --token-file FILE --tls-ca FILE" in text
    assert "https://h:2" in text
    assert str(tmp_path) in text


def test_no_browser_is_opened_without_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    assert not open_browser("http://127.0.0.1:1")
