"""``swanlake doctor``: checks what a server needs, and says what to fix."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import click

from swanlake import config
from swanlake.cli.activity import json_option
from swanlake.cli.doctor.finding import OK, PROBLEM, WARNING, Finding
from swanlake.cli.doctor.machine import check_java, check_open_files, check_spark, check_versions
from swanlake.cli.doctor.server import ask_server, check_console, server_findings
from swanlake.cli.doctor.storage import check_catalog, check_home, check_queue
from swanlake.cli.options import config_option, setting_option
from swanlake.cli.output import text_style
from swanlake.errors import ConfigError, SwanLakeError

EXIT_PROBLEM, EXIT_CONFIG = 1, 2
_SETTINGS = ("home", "host", "port", "data_path", "pipeline")

_CHECKS: tuple[Callable[[config.Settings], Iterator[Finding]], ...] = (
    check_versions,
    check_java,
    check_spark,
    check_open_files,
    check_home,
    check_queue,
    check_catalog,
    check_console,
)


@click.command()
@config_option
@json_option
@click.option("--token-file", type=click.Path(path_type=Path), help="For a running server.")
@click.option("--tls-ca", type=click.Path(path_type=Path), help="For a running server.")
def doctor(
    config_file: Path | None,
    output: str,
    token_file: Path | None,
    tls_ca: Path | None,
    **flags: str | None,
) -> None:
    """Check everything that a server with these settings needs, whether or not it runs.

    Exit codes: 0 nothing is wrong, 1 a problem was found, 2 the settings are wrong.
    """
    try:
        settings = config.load(flags, config_file=config_file).settings
    except ConfigError as wrong:
        findings = [Finding("settings", PROBLEM, str(wrong), "Correct the setting.")]
        _print(findings, output)
        raise SystemExit(EXIT_CONFIG) from None
    server = ask_server(settings, token_file, tls_ca)
    findings = [Finding("settings", OK, "all settings are valid")]
    for check in _CHECKS:
        findings += _safely(check, settings)
    findings += server_findings(server, settings)
    _print(findings, output)
    if any(finding.state == PROBLEM for finding in findings):
        raise SystemExit(EXIT_PROBLEM)


for _name in reversed(_SETTINGS):
    doctor = setting_option(config.SETTINGS[_name])(doctor)  # type: ignore[assignment]


def _print(findings: list[Finding], output: str) -> None:
    if output == "json":
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
        return
    style = text_style(sys.stdout)
    for finding in findings:
        mark = {OK: "ok     ", WARNING: "warning", PROBLEM: "PROBLEM"}[finding.state]
        emphasis = "" if finding.state == OK else style.heading
        end = style.reset if emphasis else ""
        click.echo(f"{emphasis}{mark}{end}  {finding.check:<12} {finding.text}")
        if finding.remedy:
            click.echo(f"{'':<22} → {finding.remedy}")
    problems = sum(1 for finding in findings if finding.state == PROBLEM)
    click.echo(f"{problems or 'No'} problem{'' if problems == 1 else 's'} found.")


def _safely(
    check: Callable[[config.Settings], Iterator[Finding]], settings: config.Settings
) -> list[Finding]:
    """The findings of a check; one that cannot be made is a finding too."""
    name = check.__name__.removeprefix("check_").replace("_", " ")
    try:
        return list(check(settings))
    except (SwanLakeError, OSError, subprocess.SubprocessError) as failed:
        return [Finding(name, PROBLEM, " ".join(str(failed).split()))]
