"""A caller of the console's API, as its pages are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import httpx

SECONDS = 240.0


class Console:
    """Requests of one caller; a refused one gives its status and its body."""

    def __init__(self, url: str, token: str = "") -> None:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self.http = httpx.Client(base_url=url, headers=headers, timeout=SECONDS)
        self.session = str(uuid4())

    def get(self, path: str, **parameters: str) -> Any:
        """The document at a path."""
        response = self.http.get(f"/api/{path}", params=parameters)
        assert response.status_code == 200, response.text
        return response.json()

    def post(self, path: str, **body: Any) -> httpx.Response:
        """The response to a change."""
        return self.http.post(f"/api/{path}", json=body, headers={"x-swanlake-request": "1"})

    def call(self, procedure: str, **arguments: Any) -> Any:
        """The rows of a procedure."""
        response = self.post("call", procedure=procedure, arguments=arguments)
        assert response.status_code == 200, response.text
        return response.json()["rows"]

    def run(self, sql: str, limit: int = 1000, **more: Any) -> httpx.Response:
        """The response to a statement of the SQL page."""
        body = {"sql": sql, "session": self.session, "query_id": str(uuid4()), "limit": limit}
        return self.post("sql/run", **body | more)

    def rows(self, sql: str, limit: int = 1000) -> Any:
        """The answer to a statement that succeeds."""
        response = self.run(sql, limit)
        assert response.status_code == 200, response.text
        return response.json()

    @contextmanager
    def live(self, topic: str, **parameters: str) -> Iterator[Iterator[tuple[str, Any]]]:
        """The events of a stream: names and data."""
        with self.http.stream(
            "GET", "/api/live", params={"topic": topic, **parameters}
        ) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            yield _events(response.iter_lines())


def _events(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))
