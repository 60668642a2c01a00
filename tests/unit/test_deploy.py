"""The files of deploy/: each parses, and what it names exists."""

from __future__ import annotations

import configparser
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from swanlake import config
from swanlake.cli.commands import serve
from swanlake.config import Settings
from swanlake.status.guard import HEALTH_PATHS
from swanlake.status.metrics import METRICS, PROCESS_METRICS

DEPLOY = Path(__file__).parents[2] / "deploy"
ERRORS = (DEPLOY.parent / "docs" / "errors.md").read_text()
GRACE_SECONDS = Settings().shutdown_grace_seconds


def parsed(name: str) -> Any:
    """A YAML file with one document."""
    return yaml.safe_load((DEPLOY / name).read_text())


# ---- PromQL --------------------------------------------------------------------------------------

_NAME = re.compile(r"\b(?:swanlake|process)_[a-z0-9_]+")
_BY = re.compile(r"\bby \(([^)]*)\)")


def sample_names() -> set[str]:
    """Every name that a sample of ours can have."""
    names = {*PROCESS_METRICS}
    for row in METRICS:
        suffixes = ("_bucket", "_sum", "_count") if row.kind == "histogram" else ("",)
        names |= {row.name + suffix for suffix in suffixes}
    return names


def faults(expression: str) -> list[str]:
    """What is wrong with an expression, as far as names and brackets tell."""
    found = [
        f"no metric {name}" for name in _NAME.findall(expression) if name not in sample_names()
    ]
    labels = {row.label for row in METRICS} | {"instance", "le"}
    for group in _BY.findall(expression):
        found += [f"no label {name}" for name in re.split(r",\s*", group) if name not in labels]
    for opening, closing in ("()", "{}", "[]"):
        if expression.count(opening) != expression.count(closing):
            found.append(f"{opening} without {closing}")
    return found


def dashboard() -> Any:
    return json.loads((DEPLOY / "grafana" / "swanlake.json").read_text())


def alerts() -> list[dict[str, Any]]:
    return [rule for group in parsed("prometheus/alerts.yml")["groups"] for rule in group["rules"]]


def test_dashboard_shows_metrics_that_exist() -> None:
    panels = dashboard()["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(expressions) >= len(panels) > 0
    assert {
        expression: faults(expression) for expression in expressions if faults(expression)
    } == {}
    [query] = [each for each in dashboard()["templating"]["list"] if each["name"] == "instance"]
    assert faults(query["query"]["query"]) == []


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in dashboard()["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(ids) == len(set(ids))


def test_alerts_are_about_metrics_that_exist() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names)) > 0
    for rule in alerts():
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert faults(rule["expr"]) == [], rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"].endswith(".")
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))


def test_alerts_name_errors_that_exist() -> None:
    for rule in alerts():
        for pattern in re.findall(r'outcome=~"([^"]+)"', rule["expr"]):
            for identifier in pattern.split("|"):
                assert f"`{identifier}`" in ERRORS, identifier


@pytest.mark.parametrize(
    "expression",
    ["swanlake_missing_total", "sum by (nothing) (swanlake_sessions)", "sum(swanlake_sessions"],
)
def test_wrong_expressions_are_found(expression: str) -> None:
    assert faults(expression) != []


def test_prometheus_reads_the_alerts() -> None:
    settings = parsed("prometheus/prometheus.yml")
    for file in settings["rule_files"]:
        assert (DEPLOY / "prometheus" / file).exists()
    [job] = settings["scrape_configs"]
    assert f'job="{job["job_name"]}"' in (DEPLOY / "prometheus" / "alerts.yml").read_text()
    assert job["static_configs"][0]["targets"] == [f"swanlake:{Settings().status_port}"]


# ---- containers ----------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, with continued lines joined."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines)]


def test_image_runs_without_privileges_and_checks_readiness() -> None:
    last = dict(instructions())
    known = "FROM RUN COPY USER WORKDIR VOLUME EXPOSE HEALTHCHECK ENV ENTRYPOINT CMD".split()
    assert {name for name, _ in instructions()} <= {*known}
    assert last["USER"] not in ("root", "0")
    assert "/readyz" in HEALTH_PATHS
    assert f"127.0.0.1:{Settings().status_port}/readyz" in last["HEALTHCHECK"]
    assert last["EXPOSE"] == f"{Settings().port} {Settings().status_port}"
    # Not through a shell, which would not pass signals on.
    assert json.loads(last["ENTRYPOINT"]) == ["swanlake"]
    check_serve(json.loads(last["CMD"]))
    config.load(environ=dict([last["ENV"].split("=")]))


def check_serve(arguments: list[str]) -> None:
    """Checks the arguments of ``swanlake``."""
    assert arguments[0] == "serve"
    serve.make_context("serve", arguments[1:]).close()


def test_compose_file_runs_what_it_depends_on() -> None:
    compose = parsed("compose.yaml")
    services = compose["services"]
    assert {"postgres", "storage", "spark-master", "spark-worker", "swanlake"} <= services.keys()
    for service in services.values():
        assert set(service.get("depends_on", ())) <= services.keys()
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (DEPLOY / source).exists()
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:")
    build = services["swanlake"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).exists()
    environment = services["swanlake"]["environment"]
    settings = config.load(environ=environment).settings
    assert settings.insecure
    assert settings.storage_endpoint == "http://storage:9000"
    assert f"/{settings.data_path.split('/')[2]}\n" in services["bucket"]["command"][0] + "\n"
    assert settings.spark_master == services["spark-worker"]["command"][0]
    assert int(services["swanlake"]["stop_grace_period"].removesuffix("s")) > GRACE_SECONDS


def manifests() -> dict[str, Any]:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / "swanlake.yaml").read_text())
    found = {f"{each['kind']} {each['metadata']['name']}": each for each in documents}
    assert all(each["apiVersion"] for each in found.values())
    return found


def test_pods_are_selected_probed_and_stopped_in_time() -> None:
    found = manifests()
    spec = found["StatefulSet swanlake"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels
    assert found[f"Service {spec['serviceName']}"]["spec"]["clusterIP"] == "None"
    for name in ("Service swanlake", "Service swanlake-pods"):
        assert found[name]["spec"]["selector"] == labels
    pod = spec["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > GRACE_SECONDS
    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["enableServiceLinks"]
    [container] = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"flight": Settings().port, "status": Settings().status_port}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["path"] in HEALTH_PATHS
        assert container[probe]["httpGet"]["port"] in ports
    volumes = {each["name"] for each in pod["volumes"]}
    volumes |= {each["metadata"]["name"] for each in spec["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_pods_have_valid_settings() -> None:
    [container] = manifests()["StatefulSet swanlake"]["spec"]["template"]["spec"]["containers"]
    check_serve(container["args"])
    variables = {entry["name"]: entry.get("value", "secret") for entry in container["env"]}
    settings = config.load(environ=variables).settings
    assert settings.auth != "none"
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(settings.tls_cert.parent if settings.tls_cert else "") in mounted
    home = dict(pairwise(container["args"]))["--home"]
    assert str(Path(home).parent) in mounted


# ---- systemd -------------------------------------------------------------------------------------


def unit() -> Iterator[tuple[str, str]]:
    parser = configparser.ConfigParser(interpolation=None, strict=True, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string((DEPLOY / "swanlake.service").read_text())
    assert parser.sections() == ["Unit", "Service", "Install"]
    yield from parser["Service"].items()


def test_unit_waits_for_the_server_and_watches_it() -> None:
    service = dict(unit())
    assert service["Type"] == "notify"
    assert float(service["WatchdogSec"]) >= Settings().watchdog_seconds
    assert float(service["TimeoutStopSec"]) > GRACE_SECONDS
    program, *arguments = service["ExecStart"].split()
    assert program.endswith("/swanlake")
    assert "--supervise" not in arguments, "systemd is the supervisor"
    check_serve(arguments)
    home = dict(pairwise(arguments))["--home"]
    assert home.startswith(service["ReadWritePaths"] + "/")
