"""A real S3 server: versitygw, built from source by Go, whose objects are plain files."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from uuid import uuid4

import pytest
from botocore.session import Session

from swanlake.lake.files.storage_options import StorageOptions

_VERSION = "v1.8.0"
_MODULE = f"github.com/versity/versitygw/cmd/versitygw@{_VERSION}"
_BUILD_SECONDS = 1800
_START_SECONDS = 120.0
KEY_ID, SECRET, REGION = "swanlake-tests", "a-secret-of-tests", "us-east-1"


def gateway_program() -> Path:
    """The server's program, built once per version and machine; skips the test without Go."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    program = cache / "swanlake-tests" / f"versitygw-{_VERSION}" / "versitygw"
    if program.exists():
        return program
    if shutil.which("go") is None:
        pytest.skip("NO TEST OF OBJECT STORAGE RUNS: Go, which builds the S3 server, is missing")
    program.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=program.parent) as folder:
        built = subprocess.run(
            ["go", "install", "-ldflags", "-s -w", _MODULE],
            env=os.environ | {"GOBIN": folder, "CGO_ENABLED": "0"},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_BUILD_SECONDS,
        )
        if built.returncode != 0:
            pytest.skip(f"NO TEST OF OBJECT STORAGE RUNS: Go cannot build it: {built.stderr}")
        os.replace(Path(folder) / "versitygw", program)  # atomic: runs may build side by side
    return program


class S3Server:
    """An S3 server with its own data; removed at the end of ``with``.

    A bucket is a directory of ``root``, and an object is a file in it, which a test can age or
    damage.
    """

    def __init__(self, program: Path) -> None:
        self._program = program
        self._directory = tempfile.TemporaryDirectory(prefix="swanlake-s3-")
        self.root = Path(self._directory.name) / "buckets"
        self.root.mkdir()
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def options(self) -> StorageOptions:
        """How SwanLake reaches the server."""
        return StorageOptions(self.endpoint, REGION, KEY_ID, SECRET, path_style=True, timeout=5.0)

    def environment(self, data_path: str, **settings: str) -> dict[str, str]:
        """The settings of a SwanLake server whose files are here."""
        return {
            "SWANLAKE_DATA_PATH": data_path,
            "SWANLAKE_STORAGE_ENDPOINT": self.endpoint,
            "SWANLAKE_STORAGE_REGION": REGION,
            "SWANLAKE_STORAGE_KEY_ID": KEY_ID,
            "SWANLAKE_STORAGE_SECRET": SECRET,
        } | settings

    def botocore(self) -> Any:
        """A client for what SwanLake does not do."""
        return Session().create_client(
            "s3",
            region_name=REGION,
            endpoint_url=self.endpoint,
            aws_access_key_id=KEY_ID,
            aws_secret_access_key=SECRET,
        )

    def new_bucket(self, name: str = "") -> str:
        """The URL of an empty bucket."""
        name = name or f"bucket-{uuid4().hex[:12]}"
        (self.root / name).mkdir()
        return f"s3://{name}"

    def path(self, url: str) -> Path:
        """The file of an object, or the directory of a prefix."""
        return self.root / url.removeprefix("s3://")

    def start(self) -> S3Server:
        # A deaf one would be asked for its answer below: it says 403 to a stranger.
        self._process = subprocess.Popen(
            [
                *(self._program, "--port", f"127.0.0.1:{self.port}", "--region", REGION),
                *("--quiet", "posix", self.root),
            ],
            env=os.environ | {"ROOT_ACCESS_KEY": KEY_ID, "ROOT_SECRET_KEY": SECRET},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, "the S3 server has ended"
            assert time.monotonic() < deadline, "the S3 server does not answer"
            time.sleep(0.02)
        return self

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(self.endpoint, timeout=5).close()
        except HTTPError as refused:
            refused.close()  # an answer: the caller is a stranger
        except (URLError, OSError):
            return False
        return True

    def kill(self) -> None:
        """Ends the server as ``kill -9`` does."""
        self._send(signal.SIGKILL)
        assert self._process is not None
        self._process.wait(60)
        self._process = None

    def stop_answering(self) -> None:
        """The server accepts connections and answers nothing."""
        self._send(signal.SIGSTOP)

    def answer_again(self) -> None:
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def __enter__(self) -> S3Server:
        return self.start()

    def __exit__(self, *exception: Any) -> None:
        if self._process is not None:
            self.kill()
        self._directory.cleanup()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
