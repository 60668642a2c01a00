"""The examples of the client documents run in their order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.server_process import ServerProcess

DOCS = Path(__file__).parents[3] / "docs"
DEFAULT_URL = "grpc://127.0.0.1:4214"


@pytest.mark.parametrize("document", ["client.md", "writer.md"])
def test_examples_run(document: str, server: ServerProcess) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / document).read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block.replace(DEFAULT_URL, server.url), document, "exec"), names)
