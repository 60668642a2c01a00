"""The examples of docs/sqlalchemy.md and docs/clients.md run as they stand."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from pathlib import Path

from swanlake.client.sqlalchemy_dialect import (
    _OPTIONS,
    alembic_impl,  # noqa: F401 - an installed package registers it with Alembic
)
from tests.server_process import ServerProcess

DOCS = Path(__file__).parents[3] / "docs"
DOCUMENT = (DOCS / "sqlalchemy.md").read_text()
POLARS = (DOCS / "clients.md").read_text().split("\n## Polars\n")[1].split("\n## ")[0]


def test_examples_run(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server()
    for example in re.findall(r"```python\n(.*?)```", DOCUMENT + POLARS, re.DOTALL):
        names: dict[str, object] = {}
        exec(example.replace("127.0.0.1:4214", f"127.0.0.1:{server.port}"), names)
        if "engine" in names:
            names["engine"].dispose()  # type: ignore[attr-defined]
    gc.collect()  # warns about anything that an example did not close


def test_url_options_are_documented() -> None:
    documented = set(re.findall(r"^\| `(\w+)` \|", DOCUMENT, re.MULTILINE))
    assert {"tls", *_OPTIONS} <= documented
