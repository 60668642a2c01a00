"""TLS certificates for localhost."""

from __future__ import annotations

import subprocess
from pathlib import Path

_NEW_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes".split()
_NAMES = "subjectAltName=IP:127.0.0.1,DNS:localhost"


def self_signed(directory: Path) -> tuple[Path, Path]:
    """A self-signed certificate and its key."""
    certificate, key = directory / "own.pem", directory / "own.key"
    _openssl(
        *("req", "-x509", *_NEW_KEY, "-days", "2", "-subj", "/CN=localhost", "-addext", _NAMES),
        *("-keyout", str(key), "-out", str(certificate)),
    )
    return certificate, key


def ca_signed(directory: Path) -> tuple[Path, Path]:
    """A certificate signed by a private authority (not included), and its key."""
    authority, authority_key = self_signed(directory)
    certificate, key, request = (directory / f"leaf.{kind}" for kind in ("pem", "key", "csr"))
    names = directory / "names"
    names.write_text(_NAMES + "\n")
    _openssl("req", *_NEW_KEY, "-subj", "/CN=leaf", "-keyout", str(key), "-out", str(request))
    _openssl(
        *("x509", "-req", "-days", "2", "-CAcreateserial", "-in", str(request)),
        *("-CA", str(authority), "-CAkey", str(authority_key)),
        *("-extfile", str(names), "-out", str(certificate)),
    )
    return certificate, key


def client_certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """A client's certificate for the name, signed by the one of ``self_signed``, and its key."""
    certificate, key, request = (directory / f"{name}.{kind}" for kind in ("pem", "key", "csr"))
    _openssl("req", *_NEW_KEY, "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(request))
    _openssl(
        *("x509", "-req", "-days", "2", "-CAcreateserial", "-in", str(request)),
        *("-CA", str(directory / "own.pem"), "-CAkey", str(directory / "own.key")),
        *("-out", str(certificate)),
    )
    return certificate, key


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
