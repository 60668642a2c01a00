"""The declared metrics follow Prometheus' rules for names, and are documented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from swanlake.status.metrics import METRICS, PROCESS_METRICS, MetricRow

BASE_UNITS = ("seconds", "bytes", "ratio")
OTHER_UNITS = re.compile(
    r"_(ms|millis|milliseconds|minutes|hours|days|kb|mb|megabytes|percent)(_|$)"
)


def name_faults(name: str, kind: str, help: str, label: str = "") -> list[str]:
    """What Prometheus' rules for names and our own object to."""
    faults = []
    if not re.fullmatch(r"swanlake(_[a-z0-9]+)+", name):
        faults.append("not in snake case with the prefix swanlake_")
    if (kind == "counter") != name.endswith("_total"):
        faults.append("a counter ends with _total, and nothing else does")
    if OTHER_UNITS.search(name):
        faults.append("not a base unit")
    if any(f"_{unit}_" in name.removesuffix("_total") for unit in BASE_UNITS):
        faults.append("the unit is not the end of the name")
    if kind == "histogram" and not name.endswith(BASE_UNITS):
        faults.append("a histogram without a unit")
    if re.search(r"_(gauge|counter|histogram|count|sum|bucket)$", name):
        faults.append("the type, or a suffix of histograms, in the name")
    if label and (label in name.split("_") or not re.fullmatch(r"[a-z]+", label)):
        faults.append("the label in the name")
    if not help.endswith(".") or "|" in help:
        faults.append("the help is not a sentence")
    return faults


@pytest.mark.parametrize("row", METRICS, ids=lambda row: row.name)
def test_names_follow_the_rules(row: MetricRow) -> None:
    assert name_faults(row.name, row.kind, row.help, row.label) == []


@pytest.mark.parametrize(
    ("name", "kind", "label"),
    [
        ("swanlake_queries", "counter", ""),
        ("swanlake_sessions_total", "gauge", ""),
        ("queries_total", "counter", ""),
        ("swanlake_flush_duration_ms", "gauge", ""),
        ("swanlake_flush_duration", "histogram", ""),
        ("swanlake_seconds_of_flush", "gauge", ""),
        ("swanlake_Flushes_total", "counter", ""),
        ("swanlake_queue_count", "gauge", ""),
        ("swanlake_flushes_by_result_total", "counter", "result"),
    ],
)
def test_wrong_names_are_found(name: str, kind: str, label: str) -> None:
    assert name_faults(name, kind, "Help.", label) != []


def test_every_metric_is_documented() -> None:
    lines = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text().splitlines()
    documented = {line for line in lines if line.startswith(("| `swanlake_", "| `process_"))}
    declared = {
        f"| `{row.name}` | {row.kind} | {f'`{row.label}`' if row.label else ''} | {row.help} |"
        for row in METRICS
    }
    kinds = {name: "counter" if name.endswith("_total") else "gauge" for name in PROCESS_METRICS}
    declared |= {
        f"| `{name}` | {kinds[name]} |  | {help} |" for name, help in PROCESS_METRICS.items()
    }
    assert documented == declared
